import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Loads that Kafka's own performance tools do not have.
 *
 * <pre>
 * small    BOOTSTRAP TOPIC PRODUCERS SECONDS   each producer sends one record of 100 bytes and waits for its answer
 * latency  BOOTSTRAP TOPIC RATE SECONDS        records of 100 bytes at a rate, read back by a waiting consumer
 * </pre>
 *
 * Prints one line: count, seconds, and the median, 99th and 99.9th percentile of the latencies in microseconds.
 */
public final class Load {
    private static final int RECORD_BYTES = 100;
    private static final Duration SILENCE_MAX = Duration.ofSeconds(60);

    public static void main(String[] arguments) throws Exception {
        int number = Integer.parseInt(arguments[3]);
        double seconds = Double.parseDouble(arguments[4]);
        if (arguments[0].equals("small")) {
            small(arguments[1], arguments[2], number, seconds);
        } else {
            latency(arguments[1], arguments[2], number, seconds);
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(String bootstrap, int lingerMs) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("linger.ms", lingerMs);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static void small(String bootstrap, String topic, int count, double seconds) throws Exception {
        CountDownLatch ready = new CountDownLatch(count);
        CountDownLatch go = new CountDownLatch(1);
        ExecutorService threads = Executors.newFixedThreadPool(count);
        try {
            List<Future<long[]>> producers = new ArrayList<>();
            for (int number = 0; number < count; number++) {
                producers.add(threads.submit(() -> oneByOne(bootstrap, topic, seconds, ready, go)));
            }
            if (!ready.await(SILENCE_MAX.toSeconds(), TimeUnit.SECONDS)) {
                throw new TimeoutException(ready.getCount() + " producers could not send their first record");
            }
            long start = System.nanoTime();
            go.countDown();
            List<long[]> latencies = new ArrayList<>();
            for (Future<long[]> producer : producers) {
                latencies.add(producer.get());
            }
            report(latencies.stream().flatMapToLong(Arrays::stream).toArray(), System.nanoTime() - start);
        } finally {
            threads.shutdownNow();
        }
    }

    private static long[] oneByOne(
            String bootstrap, String topic, double seconds, CountDownLatch ready, CountDownLatch go) throws Exception {
        long[] taken = new long[1 << 20];
        int done = 0;
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, 0)) {
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, new byte[RECORD_BYTES]);
            producer.send(record).get();
            ready.countDown();
            go.await();
            long end = System.nanoTime() + (long) (seconds * 1e9);
            for (long now = System.nanoTime(); now < end && done < taken.length; done++) {
                producer.send(record).get();
                long after = System.nanoTime();
                taken[done] = after - now;
                now = after;
            }
        }
        return Arrays.copyOf(taken, done);
    }

    private static void latency(String bootstrap, String topic, int rate, double seconds) throws Exception {
        int count = (int) (rate * seconds);
        int warmUp = Math.min(count, rate);
        CountDownLatch ready = new CountDownLatch(1);
        ExecutorService thread = Executors.newSingleThreadExecutor();
        try {
            Future<long[]> reader = thread.submit(() -> read(bootstrap, topic, count, warmUp, ready));
            if (!ready.await(SILENCE_MAX.toSeconds(), TimeUnit.SECONDS)) {
                throw new TimeoutException("the consumer does not find its partition");
            }
            long start = System.nanoTime();
            sendAtRate(bootstrap, topic, rate, count + warmUp, start);
            report(reader.get(), System.nanoTime() - start);
        } finally {
            thread.shutdownNow();
        }
    }

    /** The latencies of all records but the first ones. */
    private static long[] read(String bootstrap, String topic, int count, int warmUp, CountDownLatch ready)
            throws TimeoutException {
        long[] latencies = new long[count];
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "fetch.max.wait.ms", 500);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = List.of(new TopicPartition(topic, 0));
            consumer.assign(partitions);
            consumer.seekToEnd(partitions);
            consumer.position(partitions.get(0));
            ready.countDown();
            for (int read = 0; read < count + warmUp; ) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(SILENCE_MAX);
                if (records.isEmpty()) {
                    throw new TimeoutException(read + " of " + (count + warmUp) + " records have come");
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    long sent = ByteBuffer.wrap(record.value()).getLong();
                    if (read >= warmUp) {
                        latencies[read - warmUp] = System.nanoTime() - sent;
                    }
                    read++;
                }
            }
        }
        return latencies;
    }

    private static void sendAtRate(String bootstrap, String topic, int rate, int count, long start) throws Exception {
        AtomicReference<Exception> failure = new AtomicReference<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, 0)) {
            for (int sent = 0; sent < count; sent++) {
                long due = start + sent * 1_000_000_000L / rate;
                for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                byte[] value = new byte[RECORD_BYTES];
                // From when it was due: a generator that fell behind must not make the broker look good.
                ByteBuffer.wrap(value).putLong(due);
                producer.send(new ProducerRecord<>(topic, 0, null, value), (metadata, error) -> {
                    if (error != null) {
                        failure.set(error);
                    }
                });
            }
        }
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    private static void report(long[] latencies, long elapsed) {
        Arrays.sort(latencies);
        int count = latencies.length;
        System.out.printf(
                "%d %.3f %.1f %.1f %.1f%n",
                count,
                elapsed / 1e9,
                latencies[count / 2] / 1e3,
                latencies[(int) (count * 0.99)] / 1e3,
                latencies[(int) (count * 0.999)] / 1e3);
    }
}
