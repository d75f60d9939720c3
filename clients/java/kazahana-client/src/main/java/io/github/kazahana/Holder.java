package io.github.kazahana;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.Selector;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/**
 * A lock on a connection of its own. One daemon thread takes the lock, watches over it, and gives it back. It alone uses the connection,
 * and blocks only in the selector; other threads wait for its futures, and wake it up.
 */
final class Holder implements HeldLock {
    private static final Duration LONGEST = Duration.ofDays(1);

    /** How often the thread looks about: a selector's timeout stands still while the machine is suspended. */
    private static final long LOOK = TimeUnit.SECONDS.toNanos(1);

    private static final int READ_BUFFER = 4 << 10;

    /** A lock in an answer. */
    private record Lease(String id, String owner, long token, String state, long leftMs) {
        static Lease read(byte[] answer, String method) {
            Map<String, Object> found = Calls.map(new MessagePack.Reader(answer, 0).value(), method);
            Lease lease = new Lease(Calls.text(found.get("lease_id"), method), Calls.text(found.get("owner_id"), method),
                    Calls.integer(found.get("fencing_token"), method), Calls.text(found.get("state"), method),
                    Calls.integer(found.get("expires_in_ms"), method));
            if (lease.token <= 0 || lease.leftMs < 0) {
                throw Calls.wrong(method, "a lock with a fencing token");
            }
            return lease;
        }
    }

    private final Path named; // null: found at each connect
    private final boolean isSingle;
    private final Duration timeout;
    private final String key;
    private final Duration ttl;
    private final Duration wait;
    private final BootClock clock;
    private final Selector selector = Channel.openSelector();
    private final long began = System.nanoTime();

    private final CompletableFuture<HeldLock> granted = new CompletableFuture<>();
    private final CompletableFuture<Void> released = new CompletableFuture<>();
    private final CompletableFuture<KazahanaException.LockLostException> lost = new CompletableFuture<>();
    private final AtomicBoolean isLeaving = new AtomicBoolean();
    private volatile Lease lease; // null before the grant, as is term
    volatile Term term; // tests look at it

    // All below belong to the thread.
    private final ByteBuffer buffer = ByteBuffer.allocate(READ_BUFFER);
    private Connection connection; // null: never connected
    private String loss; // why the daemon says that the lock is lost

    private Holder(Path named, boolean isSingle, Duration timeout, String key, Duration ttl, Duration wait, BootClock clock) {
        this.named = named;
        this.isSingle = isSingle;
        this.timeout = timeout;
        this.key = key;
        this.ttl = ttl;
        this.wait = wait;
        this.clock = clock;
    }

    /** Takes a lock, in as much time as {@code wait} and {@code timeout} together. */
    static HeldLock take(Path named, boolean isSingle, Duration timeout, String key, Duration ttl, Duration wait, BootClock clock) {
        for (Duration time : List.of(ttl, wait)) {
            if (time.isNegative() || time.compareTo(LONGEST) > 0) {
                throw KazahanaException.invalid("a term of " + ttl + " and a wait of " + wait + ": each is a day at most, and not negative");
            }
        }
        Connection.request("Lock.Acquire", key); // its errors are the caller's
        Holder holder = new Holder(named, isSingle, timeout, key, ttl, wait, clock);
        Channel.startThread("kazahana lock", holder::run);
        try {
            return await(holder.granted);
        } catch (CancellationException e) {
            holder.granted.completeExceptionally(e);
            holder.leave(); // it may have been granted before
            throw e;
        }
    }

    /** Waits for the thread, which keeps to the deadlines. */
    private static <T> T await(CompletableFuture<T> result) {
        return Channel.await(result, System.nanoTime(), () -> {});
    }

    @Override
    public String key() {
        return key;
    }

    @Override
    public long token() {
        return lease.token;
    }

    @Override
    public String leaseId() {
        return lease.id;
    }

    @Override
    public String ownerId() {
        return lease.owner;
    }

    @Override
    public boolean isHeld() {
        return term.isCertain(clock.now()) && !isLeaving.get() && !lost.isDone();
    }

    @Override
    public void onLost(Consumer<KazahanaException.LockLostException> told) {
        tell(lost, told);
    }

    /** Calls the function when the lock is lost. What it throws is reported as an uncaught exception of its thread. */
    static void tell(CompletableFuture<KazahanaException.LockLostException> lost, Consumer<KazahanaException.LockLostException> told) {
        lost.thenAccept(why -> {
            try {
                told.accept(why);
            } catch (RuntimeException | Error e) {
                Thread here = Thread.currentThread();
                here.getUncaughtExceptionHandler().uncaughtException(here, e);
            }
        });
    }

    @Override
    public void close() {
        if (leave()) {
            await(released);
        }
    }

    private boolean leave() {
        boolean isFirst = isLeaving.compareAndSet(false, true);
        selector.wakeup();
        return isFirst;
    }

    private void run() {
        try (selector) {
            take();
            if (granted.complete(this)) {
                keep();
                giveBack();
            }
        } catch (IOException | RuntimeException | Error e) {
            KazahanaException error = e instanceof KazahanaException known ? known : unavailable(e);
            if (!granted.completeExceptionally(error)) {
                lose("disconnected", error);
            }
        } finally {
            disconnect();
            released.complete(null);
        }
    }

    private static KazahanaException unavailable(Throwable why) {
        return KazahanaException.of("DAEMON_UNAVAILABLE", "the lock's connection was lost: " + why.getMessage(), why);
    }

    /** Takes the lock, by as many attempts as it needs. */
    private void take() throws IOException {
        long deadline = began + wait.plus(timeout).toNanos();
        String requestId = requestId();
        boolean isRenewed = false;
        boolean wasConnected = false;
        for (long pause = Channel.MIN_PAUSE; ; pause = Math.min(2 * pause, Channel.MAX_PAUSE)) {
            KazahanaException why;
            boolean isFinal = isSingle || System.nanoTime() - deadline >= 0;
            try {
                connection = Connection.open(named, selector);
                wasConnected = true;
                acquire(requestId, deadline);
                return;
            } catch (DaemonSocket.Unreachable e) {
                why = KazahanaException.of("DAEMON_UNAVAILABLE", e.getMessage(), e);
                isFinal |= e.hopeless || !wasConnected && System.nanoTime() - began >= Channel.FIRST_CONNECT;
            } catch (IOException e) {
                why = unavailable(e);
            } catch (KazahanaException.ShuttingDownException e) {
                why = e;
            } catch (KazahanaException.RequestIdReusedException e) {
                // As a rule, an earlier attempt was granted, and released with its connection.
                why = e;
                isFinal |= isRenewed;
                isRenewed = true;
                requestId = requestId();
            }
            if (isFinal) {
                throw why;
            }
            disconnect();
            selector.select(TimeUnit.NANOSECONDS.toMillis(pause / 2 + ThreadLocalRandom.current().nextLong(pause / 2)) + 1);
            checkWanted();
        }
    }

    /** Makes one attempt, on a new connection. */
    private void acquire(String requestId, long deadline) throws IOException {
        lease = null;
        loss = null;
        long left = Math.max(wait.toNanos() - (System.nanoTime() - began), 0);
        lease = answer(deadline, "Lock.Acquire", Map.of("ttl_ms", ttl.toMillis(), "wait_ms", TimeUnit.NANOSECONDS.toMillis(left),
                "request_id", requestId, "hold", "connection"));
        // The acquire may have waited: this answer has the remaining time.
        long asked = clock.now();
        try {
            Lease now = answer(deadline, "Lock.Watch", Map.of("lease_id", lease.id));
            if (now.id.equals(lease.id) && now.state.equals("ACTIVE")) {
                term = new Term(asked, now.leftMs);
                return;
            }
        } catch (KazahanaException e) {
            if (!isGone(e)) {
                throw e;
            }
        }
        throw new IOException("the lock was lost as soon as it was granted");
    }

    /** Watches over the lock until it is to be given back, or is lost. */
    private void keep() throws IOException {
        Channel.Call question = null;
        while (!isLeaving.get() && !lost.isDone()) {
            long now = clock.now(); // before it reads: an answer that is here already counts
            listen(Math.min(term.next() - now, LOOK));
            if (loss != null) {
                lose(loss, null);
            } else if (question != null && question.isDone()) {
                judge(question);
                question = null;
            } else if (question != null && term.next() - now <= 0) {
                lose("expired", KazahanaException.parse("TIMEOUT: the daemon does not confirm the lock"));
            } else if (term.next() - now <= 0) {
                term.ask(clock.now());
                question = send("Lock.Get", key);
            }
        }
    }

    private void judge(Channel.Call question) {
        try {
            Lease found = result(question, "Lock.Get");
            if (!found.id.equals(lease.id)) {
                lose("taken_over", null);
            } else if (!found.state.equals("ACTIVE") || !term.confirm(clock.now(), found.leftMs)) {
                lose(found.state.equals("RELEASED") ? "released" : "expired", null);
            }
        } catch (KazahanaException e) {
            if (isGone(e) || !term.fail(clock.now())) {
                lose("expired", e);
            }
        }
    }

    private void giveBack() {
        if (lost.isDone()) {
            return;
        }
        try {
            answer(System.nanoTime() + timeout.toNanos(), "Lock.Release", Map.of("lease_id", lease.id, "request_id", requestId()));
        } catch (KazahanaException e) {
            if (isGone(e)) {
                lose("expired", e);
            }
        } catch (IOException e) {
            // The end of the connection has given it back.
        }
    }

    private void lose(String reason, Throwable cause) {
        disconnect();
        KazahanaException.LockLostException error = KazahanaException.lost(key, reason, cause);
        released.completeExceptionally(error);
        lost.complete(error);
    }

    private static String requestId() {
        return UUID.randomUUID().toString();
    }

    private static boolean isGone(KazahanaException e) {
        return e instanceof KazahanaException.LockNotOwnedException || e instanceof KazahanaException.LockExpiredException
                || e instanceof KazahanaException.LockNotFoundException;
    }

    private Channel.Call send(String method, Object... params) {
        Channel.Call call = new Channel.Call(null, Duration.ZERO);
        connection.add(call, MessagePack.request(method, params));
        connection.flush();
        return call;
    }

    /** Asks about the lock, and waits for the answer until the deadline. */
    private Lease answer(long deadline, String method, Map<String, Object> options) throws IOException {
        long asked = System.nanoTime();
        Channel.Call call = send(method, key, options);
        for (long now = asked; !call.isDone(); now = System.nanoTime()) {
            if (now - deadline >= 0) {
                throw KazahanaException.parse("TIMEOUT: no answer to " + method + " waited_ms=" + TimeUnit.NANOSECONDS.toMillis(now - asked));
            }
            checkWanted();
            listen(Math.min(deadline - now, LOOK));
        }
        return result(call, method);
    }

    private void checkWanted() {
        if (granted.isCompletedExceptionally()) {
            throw new CancellationException();
        }
    }

    private static Lease result(Channel.Call call, String method) {
        try {
            return Lease.read(call.join(), method);
        } catch (CompletionException e) {
            throw (KazahanaException) e.getCause();
        }
    }

    /** Waits at most so long for messages, and takes those that are here. */
    private void listen(long nanos) throws IOException {
        selector.select(TimeUnit.NANOSECONDS.toMillis(Math.max(nanos, 0)) + 1);
        selector.selectedKeys().clear();
        connection.flush();
        List<Connection.Message> messages = connection.read(buffer);
        if (messages == null) {
            throw new IOException("the daemon closed the connection");
        }
        for (Connection.Message message : messages) {
            Channel.Call call = message.method() == null ? connection.waiting.remove(message.msgid()) : null;
            if (message.method() != null) {
                notice(message);
            } else if (message.error() == null && call != null) {
                call.complete(message.result());
            } else if (call != null) {
                call.completeExceptionally(message.error());
            } else if (message.error() != null) {
                throw message.error(); // which answers no request: the daemon turns this client away
            }
        }
    }

    private void notice(Connection.Message message) {
        if (message.method().equals("Lock.Lost") && lease != null
                && new MessagePack.Reader(message.result(), 0).value() instanceof List<?> params && !params.isEmpty()
                && params.get(0) instanceof Map<?, ?> what && lease.id.equals(what.get("lease_id"))) {
            loss = String.valueOf(what.get("reason"));
        }
    }

    private void disconnect() {
        if (connection != null) {
            connection.close();
        }
    }
}
