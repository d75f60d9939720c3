package io.github.kazahana;

import java.util.concurrent.TimeUnit;

/**
 * How long a lock is certainly held, and when to ask the daemon for it: a daemon that hangs says nothing. All times are those of a
 * {@link BootClock}. What the daemon confirms counts from before it was asked.
 */
final class Term {
    /** This part of what is left is not relied on, as in the daemon: clocks run at different speeds. */
    private static final int MARGIN_PART = 20;

    /** After this part of what is left, the daemon is asked; and after a failure, sooner. */
    private static final int ASK_PART = 3;

    private static final int RETRY_PART = 10;

    /** How long to wait for the answer to a question that was not asked in time: this process may have been stopped. */
    private static final long LEAST_GRACE = TimeUnit.SECONDS.toNanos(1);

    private static final long MOST_GRACE = TimeUnit.SECONDS.toNanos(10);

    /** So many answers in a row that were over when they came end the lock. */
    private static final int MOST_STALE = 3;

    private volatile long until;
    private long length;
    private long asked;
    private volatile long next;
    private int stale;

    /** The daemon was asked at {@code asked}, and said that so many milliseconds were left. */
    Term(long asked, long leftMs) {
        this.asked = asked;
        take(leftMs);
    }

    private void take(long leftMs) {
        length = TimeUnit.MILLISECONDS.toNanos(leftMs);
        until = asked + length - length / MARGIN_PART;
        next = asked + length / ASK_PART;
    }

    boolean isCertain(long now) {
        return until - now > 0;
    }

    /** When to ask, or while a question is open, when to give up. */
    long next() {
        return next;
    }

    /** Notes that the daemon is asked now. */
    void ask(long now) {
        boolean isLate = stale > 0 || now - next > length / RETRY_PART;
        asked = now;
        next = isLate ? now + Math.min(Math.max(length / RETRY_PART, LEAST_GRACE), MOST_GRACE) : until;
    }

    /** Takes an answer. It reports false if the lock can no longer be relied upon. */
    boolean confirm(long now, long leftMs) {
        take(leftMs);
        stale = isCertain(now) ? 0 : stale + 1;
        return stale < MOST_STALE;
    }

    /** Takes a failure to answer. It reports false if the lock can no longer be relied upon. */
    boolean fail(long now) {
        next = Math.min(until - now, length / RETRY_PART) + now;
        return isCertain(now);
    }
}
