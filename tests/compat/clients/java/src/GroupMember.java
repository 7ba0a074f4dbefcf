import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** The Java client as a member of a group. What it takes and tells: clients/python/member_loop.py. */
public final class GroupMember implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Map<String, String> ASSIGNORS = Map.of(
            "range", "org.apache.kafka.clients.consumer.RangeAssignor",
            "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
            "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    /** In front of an assignor of the broker: the new protocol (KIP-848). */
    private static final String SERVER = "server-";

    private final String topic;
    private final KafkaConsumer<String, String> consumer;
    private final Set<Integer> owned = new TreeSet<>();
    private final LinkedBlockingQueue<String> commands = new LinkedBlockingQueue<>();
    /** Read and not committed yet; a commit that was refused is tried again while it still owns them. */
    private final Map<Integer, Long> unsaved = new TreeMap<>();
    private int generation = -1;

    private GroupMember(String[] settings) {
        int sessionMs = Integer.parseInt(settings[5]);
        topic = settings[2].replaceFirst("^\\^", "");
        Map<String, Object> config = new HashMap<>(Map.of(
                "bootstrap.servers", settings[0],
                "group.id", settings[1],
                "client.id", settings[3],
                "auto.offset.reset", "earliest",
                "enable.auto.commit", false,
                "fetch.max.wait.ms", 100));
        if (settings[4].startsWith(SERVER)) {
            config.put("group.protocol", "consumer");
            config.put("group.remote.assignor", settings[4].substring(SERVER.length()));
        } else {
            config.put("group.protocol", "classic");
            config.put("partition.assignment.strategy", ASSIGNORS.get(settings[4]));
            config.put("session.timeout.ms", sessionMs);
            config.put("heartbeat.interval.ms", sessionMs / 6);
        }
        consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
        if (settings[2].startsWith("^")) {
            consumer.subscribe(new SubscriptionPattern(settings[2].substring(0, settings[2].length() - 1) + "."), this);
        } else {
            consumer.subscribe(List.of(topic), this);
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        GroupMember member = new GroupMember(arguments);
        Thread listener = new Thread(member::listen);
        listener.setDaemon(true);
        listener.start();
        member.run();
    }

    private void listen() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                commands.add(line.strip());
            }
        } catch (IOException error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(0);
    }

    private void run() throws InterruptedException {
        boolean shallHold = false;
        boolean isHolding = false;
        while (true) {
            String command = isHolding ? commands.poll(POLL.toMillis(), TimeUnit.MILLISECONDS) : commands.poll();
            if ("leave".equals(command)) {
                consumer.close();
                tell("left", "");
                return;
            }
            shallHold |= "hold".equals(command);
            if ("commit".equals(command)) {
                isHolding = false;
                commit();
            }
            if (isHolding) {
                continue;
            }
            ConsumerRecords<String, String> records = consumer.poll(POLL);
            if (!records.isEmpty()) {
                StringBuilder told = new StringBuilder();
                for (ConsumerRecord<String, String> record : records) {
                    told.append(told.isEmpty() ? "" : ",").append(
                            "[%d,%d,\"%s\"]".formatted(record.partition(), record.offset(), record.value()));
                    unsaved.put(record.partition(), record.offset() + 1);
                }
                tell("records", ",\"generation\":%d,\"records\":[%s]".formatted(generation, told));
            }
            if (shallHold && !records.isEmpty()) {
                shallHold = false;
                isHolding = true;
                tell("holding", "");
            } else if (!unsaved.isEmpty()) {
                commit();
            }
        }
    }

    private void commit() {
        Map<TopicPartition, OffsetAndMetadata> positions = unsaved.entrySet().stream().collect(Collectors.toMap(
                entry -> new TopicPartition(topic, entry.getKey()), entry -> new OffsetAndMetadata(entry.getValue())));
        String offsets = unsaved.entrySet().stream()
                .map(entry -> "\"%d\":%d".formatted(entry.getKey(), entry.getValue()))
                .collect(Collectors.joining(","));
        String facts = ",\"generation\":%d,\"offsets\":{%s}".formatted(generation, offsets);
        try {
            consumer.commitSync(positions);
            unsaved.clear();
            tell("committed", facts);
        } catch (RuntimeException error) {
            String text = error.toString().replaceAll("[\\s\"\\\\]+", " ");
            tell("refused", facts + ",\"error\":\"%s\"".formatted(text));
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        partitions.forEach(partition -> owned.add(partition.partition()));
        ConsumerGroupMetadata metadata = consumer.groupMetadata();
        generation = metadata.generationId();
        tell("assigned", ",\"generation\":%d,\"member\":\"%s\",\"partitions\":%s"
                .formatted(generation, metadata.memberId(), owned));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        List<Integer> gone = partitions.stream().map(TopicPartition::partition).toList();
        owned.removeAll(gone);
        unsaved.keySet().removeAll(gone);
        tell("revoked", ",\"partitions\":" + gone);
    }

    private static synchronized void tell(String event, String facts) {
        System.out.println("{\"event\":\"%s\",\"at\":%d%s}".formatted(event, System.currentTimeMillis(), facts));
    }
}
