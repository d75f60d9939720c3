package io.github.kazahana;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/**
 * A {@link Kazahana} for unit tests. It needs no daemon and gives the same answers in every run: IDs of the default layout, UUIDs,
 * sequences and fencing tokens that count from 1. It never waits: a held lock is a LockHeldException even with a wait.
 */
public final class FakeKazahana extends Calls {
    private static final Instant EPOCH = Instant.parse("2026-01-01T00:00:00Z");
    private static final long START_MS = 86_400_000; // the first ID is a day old
    private static final int MACHINE_ID = 1;
    private static final int BIT_ID = 14;
    private static final int BIT_SEQ = 8;
    private static final int LOW_BITS = BIT_ID + BIT_SEQ; // the first of them says fallback

    private final List<String> calls = Collections.synchronizedList(new ArrayList<>());
    private final Deque<RuntimeException> failures = new ArrayDeque<>();
    private final Map<String, Long> sequences = new HashMap<>();
    private final Map<String, FakeLock> locks = new HashMap<>();
    private final ExternalCodec codec;
    private long count;
    private long uuids;
    private long tokens;
    private boolean isClosed;

    /** Makes a fake that has no secret for external IDs. */
    public FakeKazahana() {
        this(ExternalCodec.plain());
    }

    /**
     * Makes a fake with a codec for external IDs.
     *
     * @param codec the codec
     */
    public FakeKazahana(ExternalCodec codec) {
        super(null);
        this.codec = codec;
    }

    /**
     * Makes the next call fail; several failures queue up.
     *
     * @param error for example {@code KazahanaException.parse("NO_PROVIDER: as the test wants it")}
     */
    public synchronized void fail(RuntimeException error) {
        failures.add(error);
    }

    /**
     * Makes the holder of a lock lose it.
     *
     * @param key the lock's name
     */
    public void loseLock(String key) {
        FakeLock lock;
        synchronized (this) {
            lock = locks.remove(key);
        }
        if (lock != null) {
            lock.lost.complete(KazahanaException.lost(key, "expired", null)); // which calls what the holder has registered
        }
    }

    /**
     * Returns the methods that were called, in order, by their names on the wire.
     *
     * @return a copy
     */
    public List<String> calls() {
        synchronized (calls) {
            return List.copyOf(calls);
        }
    }

    @Override
    public long nextId() {
        return (Long) call("NextID");
    }

    @Override
    public long[] nextIds(int count) {
        @SuppressWarnings("unchecked")
        List<Long> ids = (List<Long>) call("NextIDs", count);
        return ids.stream().mapToLong(Long::longValue).toArray();
    }

    @Override
    public synchronized HeldLock lock(String key, Duration ttl, Duration wait) {
        begin("Lock.Acquire");
        if (locks.containsKey(key)) {
            throw KazahanaException.parse("LOCK_HELD: the lock \"" + key + "\" is held retry_after_ms=" + ttl.toMillis() + " owner=fake");
        }
        FakeLock lock = new FakeLock(key, ++tokens);
        locks.put(key, lock);
        return lock;
    }

    private final class FakeLock implements HeldLock {
        final CompletableFuture<KazahanaException.LockLostException> lost = new CompletableFuture<>();
        private final String key;
        private final long token;
        private boolean isClosed;

        FakeLock(String key, long token) {
            this.key = key;
            this.token = token;
        }

        @Override
        public String key() {
            return key;
        }

        @Override
        public long token() {
            return token;
        }

        @Override
        public String leaseId() {
            return "lease-" + token;
        }

        @Override
        public String ownerId() {
            return "fake";
        }

        @Override
        public boolean isHeld() {
            synchronized (FakeKazahana.this) {
                return locks.get(key) == this;
            }
        }

        @Override
        public void onLost(Consumer<KazahanaException.LockLostException> told) {
            Holder.tell(lost, told);
        }

        @Override
        public void close() {
            synchronized (FakeKazahana.this) {
                if (isClosed) {
                    return;
                }
                isClosed = true;
                if (!locks.remove(key, this)) {
                    throw lost.join();
                }
                calls.add("Lock.Release");
            }
        }
    }

    private void begin(String method) {
        calls.add(method);
        if (isClosed) {
            throw KazahanaException.of("CLIENT_CLOSED", "the client is closed", null);
        }
        if (!failures.isEmpty()) {
            throw failures.remove();
        }
    }

    @Override
    public synchronized Object call(String method, Object... params) {
        begin(method);
        switch (method) {
            case "NextID":
                return id();
            case "NextIDs":
                return some((int) params[0], this::id);
            case "Inspect":
                return explain(params[0]);
            case "Bounds":
                return List.of(first((long) params[0]), first((long) params[1]) - 1);
            case "ToExternal":
                return codec.encode((long) params[0]);
            case "ToInternal":
                return codec.decode((String) params[0]);
            case "UUID":
                return new UUID(7 << 12, 1L << 63 | ++uuids).toString();
            case "Status":
                return Map.of("version", "fake", "features", List.of("ids", "uuid", "locks", "sequences"), "scope", "host", "mode", "regular");
            case "Ping":
                return "pong";
            case "Sequence.Next":
                return value(params[0], (Map<?, ?>) params[1]);
            case "Sequence.NextBatch":
                return some((int) params[1], () -> value(params[0], (Map<?, ?>) params[2]));
            default:
                throw KazahanaException.of("UNKNOWN_METHOD", "the fake has no method " + method, null);
        }
    }

    private long id() {
        long n = count++;
        long ms = START_MS + (n >> BIT_SEQ);
        return ms << LOW_BITS | MACHINE_ID << BIT_SEQ | n & (1 << BIT_SEQ) - 1;
    }

    private long value(Object key, Map<?, ?> options) {
        long step = options.get("step") instanceof Number number ? number.longValue() : 1;
        long start = options.get("start") instanceof Number number ? number.longValue() : step;
        return sequences.merge((String) key, start, (last, none) -> last + step);
    }

    private static List<Long> some(int count, NextIdSupplier next) {
        if (count < 1 || count > MAX_BATCH) {
            throw KazahanaException.invalid("a count of " + count + " is out of range: 1 to " + MAX_BATCH);
        }
        List<Long> all = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            all.add(next.nextId());
        }
        return all;
    }

    private Map<String, Object> explain(Object spelled) {
        long id = spelled instanceof Long number ? number
                : ((String) spelled).matches("0x[0-9a-fA-F]+|[0-9]+") ? Long.decode((String) spelled) : codec.decode((String) spelled);
        long time = (id >> LOW_BITS) + EPOCH.toEpochMilli();
        Map<String, Object> found = new HashMap<>();
        found.put("id", id);
        found.put("external", codec.encode(id));
        found.put("timestamp_ms", time);
        found.put("machine_id", id >> BIT_SEQ & (1 << BIT_ID - 1) - 1);
        found.put("sequence", id & (1 << BIT_SEQ) - 1);
        found.put("kind", (id >> LOW_BITS - 1 & 1) == 0 ? "regular" : "fallback");
        found.put("bit_id", (long) BIT_ID);
        found.put("bit_seq", (long) BIT_SEQ);
        found.put("epoch_ms", EPOCH.toEpochMilli());
        return found;
    }

    private static long first(long ms) {
        return Math.max(ms - EPOCH.toEpochMilli(), 0) << LOW_BITS;
    }

    @Override
    public synchronized void close() {
        isClosed = true;
    }
}
