import org.apache.kafka.common.utils.Time;

import java.util.function.Supplier;

/** A clock that shows what it was set to. */
final class OracleClock implements Time {
    private long nowMs;

    void set(long nowMs) {
        this.nowMs = nowMs;
    }

    @Override
    public long milliseconds() {
        return nowMs;
    }

    @Override
    public long nanoseconds() {
        return nowMs * 1_000_000;
    }

    @Override
    public void sleep(long ms) {
        nowMs += ms;
    }

    @Override
    public void waitObject(Object monitor, Supplier<Boolean> condition, long deadlineMs) {
        throw new UnsupportedOperationException("nothing here waits");
    }
}
