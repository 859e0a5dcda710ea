import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Flips each bit of each segment file, one at a time, and prints what Kafka's classes then read: the bytes of the
 * batches before the first that they refuse or that is torn, and each one's base offset, last offset, leader epoch.
 */
public final class FlippedBits {
    public static void main(String[] arguments) throws IOException {
        StringBuilder lines = new StringBuilder();
        for (String argument : arguments) {
            byte[] whole = Files.readAllBytes(Path.of(argument));
            for (int bit = 0; bit < whole.length * Byte.SIZE; bit++) {
                byte[] flipped = whole.clone();
                flipped[bit / Byte.SIZE] ^= (byte) (0x80 >> bit % Byte.SIZE);
                lines.append(read(flipped)).append('\n');
            }
        }
        System.out.print(lines);
    }

    private static String read(byte[] bytes) {
        StringBuilder batches = new StringBuilder();
        int readable = 0;
        try {
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches()) {
                batch.ensureValid();
                for (Record record : batch)
                    record.ensureValid();
                batches.append(batch.baseOffset()).append(' ').append(batch.lastOffset()).append(' ')
                    .append(batch.partitionLeaderEpoch()).append(' ');
                readable += batch.sizeInBytes();
            }
        } catch (KafkaException | IllegalArgumentException refused) {
            // What it read until here is the answer.
        }
        return readable + " " + batches;
    }
}
