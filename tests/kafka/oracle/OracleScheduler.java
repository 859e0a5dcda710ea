import org.apache.kafka.server.util.Scheduler;

import java.util.concurrent.FutureTask;
import java.util.concurrent.RunnableScheduledFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.Delayed;
import java.util.concurrent.TimeUnit;

/** Deletes what is due to be deleted at once; flushing and periodic work are left out. */
final class OracleScheduler implements Scheduler {
    @Override
    public void startup() {
    }

    @Override
    public void shutdown() {
    }

    @Override
    public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
        var future = new Done(task);
        if (periodMs < 0 && !name.contains("flush"))
            future.run();
        return future;
    }

    @Override
    public void resizeThreadPool(int newSize) {
    }

    private static final class Done extends FutureTask<Void> implements RunnableScheduledFuture<Void> {
        Done(Runnable task) {
            super(task, null);
        }

        @Override
        public boolean isPeriodic() {
            return false;
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return 0;
        }

        @Override
        public int compareTo(Delayed other) {
            return Long.compare(getDelay(TimeUnit.NANOSECONDS), other.getDelay(TimeUnit.NANOSECONDS));
        }
    }
}
