package io.github.kazahana;

import java.time.Instant;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.UUID;

/** All calls but those for IDs. {@link Client} makes them to a real daemon, {@link FakeKazahana} to a fake one. */
abstract class Calls implements Kazahana {

    private final Map<String, Object> ofService;

    /** A null service is the daemon's default. */
    Calls(String service) {
        ofService = service == null ? Map.of() : Map.of("service", service);
    }

    @Override
    public Inspection inspect(long id) {
        return explained(id);
    }

    @Override
    public Inspection inspect(String id) {
        return explained(Objects.requireNonNull(id));
    }

    private Inspection explained(Object id) {
        return Inspection.of(map(call("Inspect", id, ofService), "Inspect"));
    }

    @Override
    public long[] bounds(Instant from, Instant to) {
        // The daemon counts in milliseconds: round up, so that the one with `to` belongs to the interval.
        long end = to.plusNanos(999_999).toEpochMilli();
        long[] bounds = integers(call("Bounds", from.toEpochMilli(), end, ofService), "Bounds");
        if (bounds.length != 2) {
            throw wrong("Bounds", "two integers");
        }
        return bounds;
    }

    @Override
    public String toExternal(long id) {
        return text(call("ToExternal", id, ofService), "ToExternal");
    }

    @Override
    public long toInternal(String external) {
        return internal(external, ofService);
    }

    @Override
    public long toInternal(String external, Instant latest) {
        Map<String, Object> options = new HashMap<>(ofService);
        options.put("latest_ms", latest.toEpochMilli());
        return internal(external, options);
    }

    private long internal(String external, Map<String, Object> options) {
        long id = integer(call("ToInternal", Objects.requireNonNull(external), options), "ToInternal");
        if (id < 0) {
            throw wrong("ToInternal", "an ID");
        }
        return id;
    }

    @Override
    public UUID uuid() {
        try {
            return UUID.fromString(text(call("UUID"), "UUID"));
        } catch (IllegalArgumentException e) {
            throw wrong("UUID", "a UUID");
        }
    }

    @Override
    public long nextSequence(String key, Map<String, ?> options) {
        return integer(call("Sequence.Next", key, identified(options)), "Sequence.Next");
    }

    @Override
    public long[] nextSequences(String key, int count, Map<String, ?> options) {
        long[] values = integers(call("Sequence.NextBatch", key, count, identified(options)), "Sequence.NextBatch");
        if (values.length != count) {
            throw wrong("Sequence.NextBatch", count + " values");
        }
        return values;
    }

    /** Adds a request ID, which all attempts of a call share, unless the caller has one. */
    private static Map<String, Object> identified(Map<String, ?> options) {
        Map<String, Object> all = new HashMap<>(options);
        all.putIfAbsent("request_id", UUID.randomUUID().toString());
        return all;
    }

    @Override
    public Map<String, Object> status() {
        return Collections.unmodifiableMap(map(call("Status"), "Status"));
    }

    @Override
    public void ping() {
        call("Ping");
    }

    static KazahanaException wrong(String method, String due) {
        return KazahanaException.protocol("the daemon's answer to " + method + " is not " + due);
    }

    static long integer(Object value, String method) {
        if (value instanceof Long number) {
            return number;
        }
        throw wrong(method, "an integer below 2^63");
    }

    private static long[] integers(Object value, String method) {
        if (value instanceof List<?> list) {
            return list.stream().mapToLong(each -> integer(each, method)).toArray();
        }
        throw wrong(method, "an array");
    }

    static String text(Object value, String method) {
        if (value instanceof String text) {
            return text;
        }
        throw wrong(method, "a text");
    }

    @SuppressWarnings("unchecked") // the reader makes no other keys
    static Map<String, Object> map(Object value, String method) {
        if (value instanceof Map<?, ?> map) {
            return (Map<String, Object>) map;
        }
        throw wrong(method, "a map");
    }
}
