import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/** The record file of clients/python/record_file.py, for Java. */
final class RecordFile {
    private RecordFile() {
    }

    static List<ProducerRecord<byte[], byte[]>> read(Path path, String topic) throws IOException {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        try (DataInputStream in = new DataInputStream(new BufferedInputStream(Files.newInputStream(path)))) {
            // readRecord leaves the file either at its end or at the next record.
            for (long left = Files.size(path); left > 0; left = in.available()) {
                records.add(readRecord(in, topic));
            }
        }
        return records;
    }

    static void write(Path path, List<ConsumerRecord<byte[], byte[]>> records) throws IOException {
        try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(path)))) {
            for (ConsumerRecord<byte[], byte[]> record : records) {
                out.writeInt(record.partition());
                out.writeLong(record.offset());
                out.writeLong(record.timestamp());
                writeBytes(out, record.key());
                writeBytes(out, record.value());
                Header[] headers = record.headers().toArray();
                out.writeInt(headers.length);
                for (Header header : headers) {
                    writeBytes(out, header.key().getBytes(StandardCharsets.UTF_8));
                    writeBytes(out, header.value());
                }
            }
        }
    }

    private static ProducerRecord<byte[], byte[]> readRecord(DataInputStream in, String topic) throws IOException {
        int partition = in.readInt();
        in.readLong(); // The offset is for the broker to give.
        long timestampMs = in.readLong();
        byte[] key = readBytes(in);
        byte[] value = readBytes(in);
        int headerCount = in.readInt();
        List<Header> headers = new ArrayList<>();
        for (int i = 0; i < headerCount; i++) {
            headers.add(new RecordHeader(new String(readBytes(in), StandardCharsets.UTF_8), readBytes(in)));
        }
        return new ProducerRecord<>(topic, partition, timestampMs, key, value, headers);
    }

    private static byte[] readBytes(DataInputStream in) throws IOException {
        int length = in.readInt();
        if (length < 0) {
            return null;
        }
        byte[] data = new byte[length];
        in.readFully(data);
        return data;
    }

    private static void writeBytes(DataOutputStream out, byte[] data) throws IOException {
        out.writeInt(data == null ? -1 : data.length);
        if (data != null) {
            out.write(data);
        }
    }
}
