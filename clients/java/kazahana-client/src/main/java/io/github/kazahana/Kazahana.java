package io.github.kazahana;

import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.UUID;

/**
 * A client of the kazahana daemon of this host. Any number of threads, platform or virtual, may share one: their calls are pipelined
 * over one connection, which is made at the first call, and again after a loss. A call whose connection is lost is repeated while its
 * time lasts. Every method that asks the daemon throws a {@link KazahanaException}, and {@link java.util.concurrent.CancellationException}
 * if its thread is interrupted while it waits; the thread stays interrupted.
 */
public interface Kazahana extends NextIdSupplier, AutoCloseable {
    /** The most IDs or values of one call. */
    int MAX_BATCH = 65_536;

    /**
     * Returns a builder. All of its options have defaults.
     *
     * @return the builder
     */
    static Builder client() {
        return new Builder();
    }

    /**
     * Returns an ID that is greater than every ID of the service that was returned before the call. With {@link Builder#prefetch} it
     * usually comes from memory, and is greater than the earlier ones of this client only.
     *
     * @return the ID, 1 to 2^63-1
     */
    @Override
    long nextId();

    /**
     * Returns IDs in one round trip.
     *
     * @param count how many: 1 to {@link #MAX_BATCH}
     * @return the IDs, ascending
     */
    long[] nextIds(int count);

    /**
     * Explains an ID by the service's layout.
     *
     * @param id the ID
     * @return its contents
     */
    Inspection inspect(long id);

    /**
     * Explains an ID that is written as text.
     *
     * @param id in decimal, hexadecimal after 0x, or external
     * @return its contents
     */
    Inspection inspect(String id);

    /**
     * Returns the smallest and the largest ID of an interval, for a range scan in a database.
     *
     * @param from the interval's begin
     * @param to its end, which is excluded
     * @return two IDs: {@code WHERE id BETWEEN bounds[0] AND bounds[1]}
     */
    long[] bounds(Instant from, Instant to);

    /**
     * Returns the external ID, made with the service's secret, which the daemon knows.
     *
     * @param id the ID
     * @return 11 characters
     */
    String toExternal(long id);

    /**
     * Returns the ID of an external ID.
     *
     * @param external 11 characters
     * @return the ID
     */
    long toInternal(String external);

    /**
     * Returns the ID of an external ID, unless the ID is from after a time. That refuses almost every forged one.
     *
     * @param external 11 characters
     * @param latest the latest time, usually now
     * @return the ID
     */
    long toInternal(String external, Instant latest);

    /**
     * Returns a UUID of the version that the daemon's configuration names: 7 by default, which begins with its time.
     *
     * @return the UUID
     */
    UUID uuid();

    /**
     * Returns the next value of a sequence. The values of a key count up from 1, unless the key was made otherwise.
     *
     * @param key 1 to 512 bytes of UTF-8
     * @return the value
     */
    default long nextSequence(String key) {
        return nextSequence(key, Map.of());
    }

    /**
     * Returns the next value of a sequence that counts as the options say. All calls of a key give the same ones; block and request_id
     * may differ.
     *
     * @param key 1 to 512 bytes of UTF-8
     * @param options step, start, max_value, on_max, ttl_ms, block and request_id, as in docs/protocol.md
     * @return the value
     */
    long nextSequence(String key, Map<String, ?> options);

    /**
     * Returns the next values of a sequence.
     *
     * @param key 1 to 512 bytes of UTF-8
     * @param count how many: 1 to {@link #MAX_BATCH}
     * @return the values, ascending
     */
    default long[] nextSequences(String key, int count) {
        return nextSequences(key, count, Map.of());
    }

    /**
     * Returns the next values of a sequence that counts as the options say.
     *
     * @param key 1 to 512 bytes of UTF-8
     * @param count how many: 1 to {@link #MAX_BATCH}
     * @param options as of {@link #nextSequence(String, Map)}
     * @return the values, ascending
     */
    long[] nextSequences(String key, int count, Map<String, ?> options);

    /**
     * Takes a lock, or fails at once with a {@link KazahanaException.LockHeldException}.
     *
     * @param key 1 to 512 bytes of UTF-8
     * @param ttl as of {@link #lock(String, Duration, Duration)}
     * @return the lock, which {@link HeldLock#close} gives back
     */
    default HeldLock lock(String key, Duration ttl) {
        return lock(key, ttl, Duration.ZERO);
    }

    /**
     * Takes a lock. The daemon renews it until it is given back, however long the work takes.
     *
     * @param key 1 to 512 bytes of UTF-8
     * @param ttl how long others wait after a crash of the daemon or of the host: 100 ms to 24 h, in whole milliseconds
     * @param wait how long to wait while another owner holds the lock, up to 24 h, in addition to the client's timeout
     * @return the lock, which {@link HeldLock#close} gives back
     * @throws KazahanaException.LockHeldException if another owner still holds it then
     */
    HeldLock lock(String key, Duration ttl, Duration wait);

    /**
     * Returns what {@code kazahanad status --json} prints.
     *
     * @return the status, by the names of docs/protocol.md
     */
    Map<String, Object> status();

    /** Returns when the daemon has answered. */
    void ping();

    /**
     * Calls any method of the daemon by its name on the wire. The call is repeated if the connection is lost, so the method must be
     * idempotent, by its nature or by a {@code request_id} among the parameters.
     *
     * @param method the name
     * @param params null, Boolean, an integer of 64 bits, Double, String, byte[], List or Map, nested at will
     * @return null, Boolean, Long (BigInteger from 2^63 on), Double, String, byte[], List or Map
     */
    Object call(String method, Object... params);

    /** Fails the calls under way with {@link KazahanaException.ClientClosedException}, and closes the connection. */
    @Override
    void close();

    /** The options of a client. */
    final class Builder {
        Path socket;
        String service;
        Duration timeout = Duration.ofSeconds(10);
        Duration maxAge = Duration.ofMillis(50);
        int prefetch;
        boolean regularOnly;
        boolean singleAttempt;

        private Builder() {}

        /**
         * Names the daemon's socket. Without it, the environment variable KAZAHANA_SOCKET names it; else it is the first that exists of
         * $XDG_RUNTIME_DIR/kazahana/kazahanad.sock, /run/kazahana/kazahanad.sock and /tmp/kazahana-UID/kazahanad.sock.
         *
         * @param path PATH, unix:PATH or unix:///PATH
         * @return this
         */
        public Builder socket(String path) {
            socket = DaemonSocket.parse(path, "socket");
            return this;
        }

        /**
         * Names the service, that is, the stream of IDs. By default it is the daemon's own default.
         *
         * @param name the service's name
         * @return this
         */
        public Builder service(String name) {
            service = name;
            return this;
        }

        /**
         * Limits the time of a call over all its attempts. By default 10 s.
         *
         * @param limit 1 ms to 1 h
         * @return this
         */
        public Builder timeout(Duration limit) {
            timeout = checked("timeout", limit);
            return this;
        }

        /**
         * Fetches IDs ahead, in batches of at least so many, and hands them out from memory. By default 0: every call asks the daemon.
         *
         * @param count 0 to {@link #MAX_BATCH}
         * @return this
         */
        public Builder prefetch(int count) {
            if (count < 0 || count > MAX_BATCH) {
                throw KazahanaException.invalid("a prefetch of " + count + ": 0 to " + MAX_BATCH + " IDs are right");
            }
            prefetch = count;
            return this;
        }

        /**
         * Says when a prefetched ID is thrown away, since an old ID sorts wrongly. By default after 50 ms.
         *
         * @param age 1 ms to 1 h
         * @return this
         */
        public Builder maxAge(Duration age) {
            maxAge = checked("maxAge", age);
            return this;
        }

        /**
         * Makes calls for IDs fail instead of returning fallback IDs, which the daemon makes while it has no lease.
         *
         * @return this
         */
        public Builder regularOnly() {
            regularOnly = true;
            return this;
        }

        /**
         * Limits a call to one attempt. It fails at once if there is no daemon, if the daemon is stopping, or if the connection is lost.
         * That suits probes, and callers with retries of their own.
         *
         * @return this
         */
        public Builder singleAttempt() {
            singleAttempt = true;
            return this;
        }

        /**
         * Returns the client. It does not connect yet.
         *
         * @return the client
         */
        public Kazahana build() {
            return new Client(this);
        }

        private static Duration checked(String name, Duration time) {
            if (time.compareTo(Duration.ofMillis(1)) < 0 || time.compareTo(Duration.ofHours(1)) > 0) {
                throw KazahanaException.invalid("a " + name + " of " + time + ": 1 ms to 1 h is right");
            }
            return time;
        }
    }
}
