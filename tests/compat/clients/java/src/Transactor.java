import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Transactions of the Java client. What it takes and answers: clients/python/transactor_loop.py. */
public final class Transactor {
    private static final String END = "end";
    private static final int BATCH = 20;
    private static final Duration IDLE_MAX = Duration.ofSeconds(60);

    private final String bootstrap;
    private KafkaProducer<String, String> producer;

    private Transactor(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws IOException {
        Transactor transactor = new Transactor(arguments[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                System.out.println(("ok " + transactor.answer(line.split("\t"))).strip());
            } catch (Exception error) {
                error.printStackTrace();
                Throwable cause = error instanceof java.util.concurrent.ExecutionException ? error.getCause() : error;
                System.out.println("FAILED " + cause.toString().replaceAll("\\s+", " "));
            }
        }
        Runtime.getRuntime().halt(0); // A producer that was shut out would wait for its coordinator.
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "open" -> open(words[1], words[2]);
            case "begin" -> producer.beginTransaction();
            case "send" -> producer.send(new ProducerRecord<>(words[1], Integer.parseInt(words[2]), null, words[3]))
                    .get(IDLE_MAX.toSeconds(), TimeUnit.SECONDS);
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "read" -> {
                return String.join(",", read(words[1], words[2], Integer.parseInt(words[3])));
            }
            case "copy" -> {
                return String.valueOf(copy(words[1], words[2], words[3], words[4]));
            }
            default -> throw new IllegalArgumentException("no such verb: " + words[0]);
        }
        return "";
    }

    private void open(String transactionalId, String timeoutMs) {
        producer = new KafkaProducer<>(Map.of(
                "bootstrap.servers", bootstrap,
                "transactional.id", transactionalId,
                "transaction.timeout.ms", timeoutMs), new StringSerializer(), new StringSerializer());
        producer.initTransactions();
    }

    private List<String> read(String isolation, String topic, int partition) {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(null, isolation)) {
            TopicPartition place = new TopicPartition(topic, partition);
            consumer.assign(List.of(place));
            consumer.seek(place, 0);
            while (true) {
                for (ConsumerRecord<String, String> record : poll(consumer)) {
                    if (record.value().equals(END)) {
                        return values;
                    }
                    values.add(record.value());
                }
            }
        }
    }

    private int copy(String transactionalId, String source, String target, String group) {
        open(transactionalId, "30000");
        int count = 0;
        try (KafkaConsumer<String, String> consumer = consumer(group, "committed")) {
            consumer.subscribe(List.of(source));
            boolean isDone = false;
            while (!isDone) {
                ConsumerRecords<String, String> records = poll(consumer);
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    isDone = record.value().equals(END);
                    if (isDone) {
                        break;
                    }
                    producer.send(new ProducerRecord<>(target, 0, null, record.value()));
                }
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (TopicPartition place : consumer.assignment()) {
                    offsets.put(place, new OffsetAndMetadata(consumer.position(place)));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                count += 1;
                if (count == 2) {
                    producer.flush(); // What was not sent yet never would be.
                    producer.abortTransaction();
                    isDone = false;
                    consumer.committed(consumer.assignment()).forEach(consumer::seek);
                } else {
                    producer.commitTransaction();
                }
            }
        }
        producer.close();
        return count;
    }

    private static ConsumerRecords<String, String> poll(KafkaConsumer<String, String> consumer) {
        long deadline = System.nanoTime() + IDLE_MAX.toNanos();
        while (System.nanoTime() < deadline) { // One poll may end early: it met an abort's marker, say.
            ConsumerRecords<String, String> records = consumer.poll(IDLE_MAX);
            if (!records.isEmpty()) {
                return records;
            }
        }
        throw new IllegalStateException("nothing more to read");
    }

    private KafkaConsumer<String, String> consumer(String group, String isolation) {
        Map<String, Object> config = new HashMap<>(Map.of(
                "bootstrap.servers", bootstrap,
                "isolation.level", "read_" + isolation,
                "auto.offset.reset", "earliest",
                "enable.auto.commit", false,
                "max.poll.records", BATCH));
        if (group != null) {
            config.put("group.id", group);
        }
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }
}
