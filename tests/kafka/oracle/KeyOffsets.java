import org.apache.kafka.storage.internals.log.OffsetMap;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;

/** An offset map that is never full and compares whole keys, so that a round is never partial. */
final class KeyOffsets implements OffsetMap {
    private final Map<ByteBuffer, Long> offsets = new HashMap<>();
    private long latestOffset = -1;

    @Override
    public int slots() {
        return Integer.MAX_VALUE;
    }

    @Override
    public void put(ByteBuffer key, long offset) {
        ByteBuffer copy = ByteBuffer.allocate(key.remaining()).put(key.duplicate()).flip();
        offsets.put(copy, offset);
        latestOffset = offset;
    }

    @Override
    public long get(ByteBuffer key) {
        return offsets.getOrDefault(key, -1L);
    }

    @Override
    public void updateLatestOffset(long offset) {
        latestOffset = offset;
    }

    @Override
    public void clear() {
        offsets.clear();
        latestOffset = -1;
    }

    @Override
    public int size() {
        return offsets.size();
    }

    @Override
    public long latestOffset() {
        return latestOffset;
    }
}
