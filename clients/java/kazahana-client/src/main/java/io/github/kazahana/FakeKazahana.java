package io.github.kazahana;

import java.time.Instant;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/**
 * A {@link Kazahana} for unit tests. It needs no daemon and gives the same answers in every run: IDs of the default layout, UUIDs and
 * sequences that count from 1.
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
    private final ExternalCodec codec;
    private long count;
    private long uuids;
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
    public synchronized Object call(String method, Object... params) {
        calls.add(method);
        if (isClosed) {
            throw KazahanaException.of("CLIENT_CLOSED", "the client is closed", null);
        }
        if (!failures.isEmpty()) {
            throw failures.remove();
        }
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
                return Map.of("version", "fake", "features", List.of("ids", "uuid", "sequences"), "scope", "host", "mode", "regular");
            case "Ping":
                return "pong";
            case "Sequence.Next":
                return value((String) params[0]);
            case "Sequence.NextBatch":
                return some((int) params[1], () -> value((String) params[0]));
            default:
                throw KazahanaException.of("UNKNOWN_METHOD", "the fake has no method " + method, null);
        }
    }

    private long id() {
        long n = count++;
        long ms = START_MS + (n >> BIT_SEQ);
        return ms << LOW_BITS | MACHINE_ID << BIT_SEQ | n & (1 << BIT_SEQ) - 1;
    }

    private long value(String key) {
        return sequences.merge(key, 1L, Long::sum);
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
