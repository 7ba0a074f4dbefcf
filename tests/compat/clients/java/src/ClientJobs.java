import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Future;
import java.util.stream.IntStream;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client: ClientJobs BOOTSTRAP JOB_FILE. The jobs are described in clients/python/job_loop.py. */
public final class ClientJobs {
    private static final Duration IDLE_MAX = Duration.ofSeconds(20);

    private final String bootstrap;

    private ClientJobs(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws IOException {
        ClientJobs client = new ClientJobs(arguments[0]);
        for (String line : Files.readAllLines(Path.of(arguments[1]))) {
            String[] job = line.split("\t");
            try {
                switch (job[0]) {
                    case "produce" -> client.produce(job[1], job[2], Path.of(job[3]));
                    case "consume" -> client.consume(job[1], Integer.parseInt(job[2]), Path.of(job[3]));
                    case "list" -> client.list(Path.of(job[1]));
                    case "number" -> client.number(job[1], Integer.parseInt(job[2]), Integer.parseInt(job[3]));
                    default -> throw new IllegalArgumentException("no such job: " + job[0]);
                }
                System.out.println("ok");
            } catch (Exception error) {
                error.printStackTrace();
                System.out.println("FAILED " + error.toString().replaceAll("\\s+", " "));
            }
        }
    }

    private void produce(String topic, String codec, Path path) throws Exception {
        Map<String, Object> config = Map.of(
                "bootstrap.servers", bootstrap,
                "acks", "all",
                "enable.idempotence", false,
                "compression.type", codec,
                "linger.ms", 5,
                "batch.size", 65_536,
                "delivery.timeout.ms", 60_000);
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (ProducerRecord<byte[], byte[]> record : RecordFile.read(path, topic)) {
                sent.add(producer.send(record));
            }
            producer.flush();
            for (Future<RecordMetadata> future : sent) {
                future.get();
            }
        }
    }

    /** Everything at the client's defaults, which are idempotent. */
    private void number(String topic, int recordCount, int partitionCount) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap);
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < recordCount; i++) {
                byte[] value = "%-1000d".formatted(i).getBytes();
                sent.add(producer.send(new ProducerRecord<>(topic, i % partitionCount, null, value)));
            }
            producer.flush();
            for (Future<RecordMetadata> future : sent) {
                future.get();
            }
        }
    }

    private void consume(String topic, int partitionCount, Path path) throws IOException {
        Map<String, Object> config = Map.of(
                "bootstrap.servers", bootstrap,
                "enable.auto.commit", false,
                "auto.offset.reset", "none",
                "max.poll.records", 10_000);
        List<TopicPartition> partitions =
                IntStream.range(0, partitionCount).mapToObj(i -> new TopicPartition(topic, i)).toList();
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(partitions);
            partitions.forEach(partition -> consumer.seek(partition, 0));
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                ConsumerRecords<byte[], byte[]> polled = consumer.poll(IDLE_MAX);
                if (polled.isEmpty()) {
                    throw new IOException("nothing more after " + records.size() + " records, ends are " + ends);
                }
                polled.forEach(records::add);
            }
        }
        records.sort(Comparator.<ConsumerRecord<byte[], byte[]>>comparingInt(ConsumerRecord::partition)
                .thenComparingLong(ConsumerRecord::offset));
        RecordFile.write(path, records);
    }

    private void list(Path path) throws Exception {
        StringBuilder lines = new StringBuilder();
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap))) {
            Map<String, TopicDescription> topics =
                    admin.describeTopics(admin.listTopics().names().get()).allTopicNames().get();
            new TreeMap<>(topics).forEach((name, topic) ->
                    lines.append(name).append('\t').append(topic.partitions().size()).append('\n'));
        }
        Files.writeString(path, lines);
    }
}
