package io.github.kazahana;

import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.function.LongSupplier;

/** A client of a real daemon. */
final class Client extends Calls {
    /** The daemon's time limit is shorter than the call's by this part, and by this much at most: its error says more than ours. */
    private static final int MARGIN_PART = 20;

    private static final long MAX_MARGIN_MS = 100;

    /** Closes the clients that their users forgot. A call under way keeps its client: requests for IDs refer to it, and call holds it. */
    private static final Cleaner FORGOTTEN = Cleaner.create();

    private final Channel channel;
    private final Duration timeout;
    private final String service;
    private final boolean regularOnly;
    private final Path socket; // null: found
    private final boolean singleAttempt;
    private final Channel.Body single;
    private final Prefetcher ahead; // null: without

    Client(Builder options) {
        this(options, System::nanoTime, System::currentTimeMillis);
    }

    /** The clocks are for the age of prefetched IDs: in nanoseconds, and in Unix ms. */
    Client(Builder options, LongSupplier clock, LongSupplier wallClock) {
        super(options.service);
        channel = new Channel(options.socket, options.singleAttempt);
        FORGOTTEN.register(this, channel::close);
        timeout = options.timeout;
        service = options.service;
        regularOnly = options.regularOnly;
        socket = options.socket;
        singleAttempt = options.singleAttempt;
        single = frequent("NextID");
        ahead = options.prefetch == 0 ? null : new Prefetcher(
                channel, count -> remaining -> MessagePack.request("NextIDs", count, idOptions(remaining)),
                timeout, options.prefetch, options.maxAge, clock, wallClock);
    }

    /** A request without arguments, whose encoding is reused while almost no time has passed. */
    private Channel.Body frequent(String method) {
        long whole = timeout.toMillis();
        byte[] encoded = MessagePack.request(method, idOptions(whole));
        return remaining -> remaining >= whole - 1 ? encoded : MessagePack.request(method, idOptions(remaining));
    }

    private Map<String, Object> idOptions(long remaining) {
        Map<String, Object> options = new HashMap<>();
        options.put("service", service);
        options.put("regular_only", regularOnly ? true : null);
        options.put("timeout_ms", remaining - Math.min(remaining / MARGIN_PART, MAX_MARGIN_MS));
        return options;
    }

    @Override
    public long nextId() {
        if (ahead != null) {
            return ahead.next();
        }
        long id = new MessagePack.Reader(channel.call(single, timeout), 0).integer();
        if (id <= 0) {
            throw impossible(id);
        }
        return id;
    }

    @Override
    public long[] nextIds(int count) {
        try {
            return identifiers(channel.call(remaining -> MessagePack.request("NextIDs", count, idOptions(remaining)), timeout), count);
        } finally {
            if (ahead != null) {
                ahead.drop();
            }
        }
    }

    /** Reads IDs, each of which must be possible and greater than the one before. */
    static long[] identifiers(byte[] result, int count) {
        MessagePack.Reader reader = new MessagePack.Reader(result, 0);
        int found = reader.array();
        if (found != count) {
            throw KazahanaException.protocol("the daemon answered with " + found + " IDs where " + count + " are due");
        }
        long[] ids = new long[count];
        long last = 0;
        for (int i = 0; i < count; i++) {
            ids[i] = reader.integer();
            if (ids[i] <= last) {
                throw impossible(ids[i]);
            }
            last = ids[i];
        }
        return ids;
    }

    private static KazahanaException impossible(long id) {
        return KazahanaException.protocol(
                "the daemon answered with the ID " + id + ": IDs are 1 to 2^63-1, and ascend within an answer");
    }

    @Override
    public Object call(String method, Object... params) {
        byte[] request = Connection.request(method, params); // here, so that its errors are the caller's
        try {
            return new MessagePack.Reader(channel.call(remaining -> request, timeout), 0).value();
        } finally {
            Reference.reachabilityFence(this);
        }
    }

    @Override
    public HeldLock lock(String key, Duration ttl, Duration wait) {
        return Holder.take(socket, singleAttempt, timeout, key, ttl, wait, BootClock.SYSTEM);
    }

    @Override
    public void close() {
        channel.close();
        if (ahead != null) {
            ahead.drop();
        }
    }
}
