package io.github.kazahana;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.IntFunction;
import java.util.function.LongSupplier;

/** Hands out IDs from batches that are fetched ahead, and none that is older than maxAge. */
final class Prefetcher {
    // Batches grow, at most so many times, while each is used up in less than the time.
    private static final int MAX_GROWTH = 16;
    private static final long BUSY_WITHIN = TimeUnit.MILLISECONDS.toNanos(1);

    /** How many IDs share a reading of the wall clock, which reveals a suspend. A power of two. */
    private static final int WALL_EVERY = 16;

    /** The IDs of one answer, and until when they may be handed out on both clocks: only one counts a suspend, only the other is steady. */
    private record Batch(long[] ids, AtomicInteger used, int refillAt, long until, long wallUntil) {
        static final Batch NONE = new Batch(new long[0], new AtomicInteger(), 0, 0, 0);

        boolean isUsedUp() {
            return used.get() >= ids.length;
        }
    }

    /** A batch under way, and the callers that wait for it. They are served first, so that none starves beside a busy one. */
    private static final class Fetch {
        final ArrayDeque<Waiter> waiters = new ArrayDeque<>();
        final long asked;
        final long until; // as of its Batch
        final long wallUntil;
        Channel.Call call;

        Fetch(long asked, long until, long wallUntil) {
            this.asked = asked;
            this.until = until;
            this.wallUntil = wallUntil;
        }

        /** Whether it failed because its time is over, whatever the error says. It is asked for again, for those who began to wait after it was. */
        boolean isOver(KazahanaException error) {
            return error instanceof KazahanaException.RequestTimeoutException || call.deadline - System.nanoTime() <= 0;
        }
    }

    /** It completes with an ID, or with 0: then ask again. */
    private static final class Waiter extends CompletableFuture<Long> {
        final long deadline;

        Waiter(long deadline) {
            this.deadline = deadline;
        }
    }

    private final Channel channel;
    private final IntFunction<Channel.Body> request;
    private final Duration timeout;
    private final int least;
    private final Duration maxAge;
    private final LongSupplier clock; // System.nanoTime, but for tests
    private final LongSupplier wallClock; // in ms
    private volatile Batch batch = Batch.NONE;

    private final ReentrantLock lock = new ReentrantLock(); // guards the rest, and the replacement of batch
    private Batch next;
    private Fetch fetching;
    private int era; // what was asked for in an earlier one is not handed out
    private int size;
    private long asked; // when the last fetch began

    Prefetcher(Channel channel, IntFunction<Channel.Body> request, Duration timeout, int least, Duration maxAge, LongSupplier clock,
            LongSupplier wallClock) {
        this.channel = channel;
        this.request = request;
        this.timeout = timeout;
        this.least = least;
        this.maxAge = maxAge;
        this.clock = clock;
        this.wallClock = wallClock;
        size = least;
        asked = clock.getAsLong() - BUSY_WITHIN;
    }

    long next() {
        long id = take();
        if (id != 0) {
            return id;
        }
        long deadline = System.nanoTime() + timeout.toNanos();
        long began = clock.getAsLong();
        while (true) {
            Waiter waiter = new Waiter(deadline);
            Fetch fetch = advance(waiter);
            id = fetch == null ? take() : await(waiter, fetch.call);
            // An ID that was asked for since the call began sorts rightly, however slow the answer was.
            if (id != 0 && (fetch == null || began - fetch.asked <= 0 || isFresh(fetch))) {
                return id;
            }
        }
    }

    private boolean isFresh(Fetch fetch) {
        return clock.getAsLong() - fetch.until <= 0 && wallClock.getAsLong() <= fetch.wallUntil;
    }

    /** Returns an ID, or 0 if no fresh one is here. It reads the clock after it has taken the ID: so a thread that was stopped in between throws the ID away. */
    private long take() {
        Batch now = batch;
        int i = now.isUsedUp() ? now.ids.length : now.used.getAndIncrement();
        if (i >= now.ids.length) {
            return 0;
        }
        if (clock.getAsLong() - now.until > 0 || i % WALL_EVERY == 0 && wallClock.getAsLong() > now.wallUntil) {
            now.used.set(now.ids.length);
            return 0;
        }
        if (i == now.refillAt) {
            refill();
        }
        return now.ids[i];
    }

    private long await(Waiter waiter, Channel.Call call) {
        long deadline = Math.min(waiter.deadline - call.deadline, 0) + call.deadline;
        return Channel.await(waiter, deadline, () -> {
            if (call.deadline - System.nanoTime() <= 0) {
                channel.expire(call); // which tells all who wait for it
            }
            waiter.completeExceptionally(channel.timeoutError(timeout.toNanos()));
        });
    }

    /** Replaces a batch that is used up. If there is no other one, it returns the fetch for which the waiter waits. */
    private Fetch advance(Waiter waiter) {
        Fetch begun;
        lock.lock();
        try {
            if (!batch.isUsedUp()) {
                return null; // another thread was faster
            }
            if (next != null) {
                batch = next;
                next = null;
                return null;
            }
            begun = fetching == null ? begin() : null;
            fetching.waiters.add(waiter);
            if (begun == null) {
                return fetching;
            }
        } finally {
            lock.unlock();
        }
        channel.submit(begun.call);
        return begun;
    }

    private void refill() {
        Fetch begun = null;
        lock.lock();
        try {
            if (next == null && fetching == null) {
                begun = begin();
            }
        } finally {
            lock.unlock();
        }
        if (begun != null) {
            channel.submit(begun.call);
        }
    }

    /** Prepares a fetch, which the caller submits after it has released the lock: its answer takes the lock. */
    private Fetch begin() {
        long now = clock.getAsLong();
        size = Math.max(now - asked < BUSY_WITHIN ? 2 * size : size / 2, least);
        size = Math.min(Math.min(size, MAX_GROWTH * least), Kazahana.MAX_BATCH);
        asked = now;
        // An ID is not older than the request for it.
        long until = now + maxAge.toNanos();
        long wallUntil = wallClock.getAsLong() + maxAge.toMillis();
        int count = size;
        int begunIn = era;
        Fetch fetch = new Fetch(now, until, wallUntil);
        fetching = fetch;
        fetch.call = new Channel.Call(request.apply(count), timeout);
        fetch.call.whenComplete((result, failure) -> {
            long[] ids = {};
            Throwable error = failure;
            if (error == null) {
                try {
                    ids = Client.identifiers(result, count);
                } catch (KazahanaException e) {
                    error = e;
                }
            }
            came(fetch, new Batch(ids, new AtomicInteger(), ids.length >> 2, until, wallUntil), begunIn, error);
        });
        return fetch;
    }

    /** Serves the waiting callers, and puts the rest of a batch where take finds it. */
    private void came(Fetch fetch, Batch found, int begunIn, Throwable error) {
        lock.lock();
        try {
            fetching = null;
            if (begunIn != era) {
                found = Batch.NONE;
            }
            for (Waiter waiter : fetch.waiters) {
                if (error instanceof KazahanaException failure && (!fetch.isOver(failure) || waiter.deadline - System.nanoTime() <= 0)) {
                    waiter.completeExceptionally(failure.copy());
                } else if (found.isUsedUp()) {
                    waiter.complete(0L);
                } else if (waiter.complete(found.ids[found.used.get()])) {
                    found.used.incrementAndGet();
                }
            }
            if (found.refillAt < found.used.get()) {
                found = new Batch(found.ids, found.used, Math.min(found.used.get(), found.ids.length - 1), found.until, found.wallUntil);
            }
            if (batch.isUsedUp()) {
                batch = found;
            } else if (!found.isUsedUp()) {
                next = found;
            }
        } finally {
            lock.unlock();
        }
    }

    /** Forgets what is here or under way, because greater IDs have been handed out. */
    void drop() {
        lock.lock();
        try {
            era++;
            next = null;
            batch = Batch.NONE;
        } finally {
            lock.unlock();
        }
    }
}
