package io.github.kazahana;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.LongSupplier;

/**
 * A clock that goes on while the machine is suspended, which System.nanoTime() does not on Linux. It compares that clock with another
 * one, which is coarse: the time since boot, or where there is no /proc/uptime, the wall clock. It may count a suspend as a little
 * longer, and never as shorter, unless the wall clock is set back meanwhile. It does not notice a suspend of a few hundredths of a second.
 */
final class BootClock {
    static final BootClock SYSTEM = new BootClock(System::nanoTime, coarse());

    /** The resolution of the coarse clock. */
    static final long STEP = TimeUnit.MILLISECONDS.toNanos(10);

    private final LongSupplier steady;
    private final LongSupplier coarse;
    private final ReentrantLock lock = new ReentrantLock(); // guards the rest, and the reading of the coarse clock
    private long ahead; // of the coarse clock before the steady one
    private long suspended;

    /** Both clocks are in nanoseconds. */
    BootClock(LongSupplier steady, LongSupplier coarse) {
        this.steady = steady;
        this.coarse = coarse;
        long before = steady.getAsLong();
        ahead = coarse.getAsLong() - before;
    }

    /** Returns the time in nanoseconds, since any moment. */
    long now() {
        lock.lock();
        try {
            // The steady clock twice: the thread may be stopped in between.
            long before = steady.getAsLong();
            long far = coarse.getAsLong();
            long now = steady.getAsLong();
            if (far - now - ahead > STEP) {
                suspended += far - before - ahead + 2 * STEP;
                ahead = far - before;
            } else if (far - before - ahead < -STEP) { // it was set back, or begun in a slow moment
                ahead = far - before;
            }
            return now + suspended;
        } finally {
            lock.unlock();
        }
    }

    private static LongSupplier coarse() {
        RandomAccessFile uptime; // open for ever: a process without a free descriptor keeps its locks. An interrupt would close a channel.
        try {
            uptime = new RandomAccessFile("/proc/uptime", "r"); // 350735.47 234388.90
        } catch (FileNotFoundException e) {
            return () -> TimeUnit.MILLISECONDS.toNanos(System.currentTimeMillis());
        }
        byte[] bytes = new byte[64];
        return () -> {
            try {
                uptime.seek(0);
                String text = new String(bytes, 0, uptime.read(bytes), StandardCharsets.US_ASCII);
                return TimeUnit.MILLISECONDS.toNanos(10 * Long.parseLong(text.substring(0, text.indexOf(' ')).replace(".", "")));
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        };
    }
}
