package io.github.kazahana;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Calls over one connection at a time. After a loss it makes a new connection and repeats the calls under way: every method that this
 * package calls may be repeated.
 *
 * <p>Callers write their requests themselves, without blocking, and then wait. One daemon thread connects, reads, and writes what a
 * socket did not take at once. Nothing blocks under the lock, which is no monitor: so a virtual thread that waits pins nothing.
 */
final class Channel {
    /** How long to try the first connection: enough for a daemon that is starting, and short enough to report a missing one soon. */
    static final long FIRST_CONNECT = TimeUnit.SECONDS.toNanos(1);

    static final long MIN_PAUSE = TimeUnit.MILLISECONDS.toNanos(5);
    static final long MAX_PAUSE = TimeUnit.MILLISECONDS.toNanos(200);
    private static final int READ_BUFFER = 64 << 10;
    private static final long NOW = -1;
    private static final long CLOSED = -2;

    /** Encodes a request, for the remaining milliseconds. */
    interface Body {
        byte[] encode(long remaining);
    }

    /** A request under way. It completes with the encoded result. */
    static final class Call extends CompletableFuture<byte[]> {
        final Body body;
        final long timeout;
        final long deadline; // in System.nanoTime()
        Connection connection;
        int msgid;

        Call(Body body, Duration timeout) {
            this.body = body;
            this.timeout = timeout.toNanos();
            deadline = System.nanoTime() + this.timeout;
        }
    }

    private final Path named; // null: found at each connect
    private final boolean isSingle;
    private final ReentrantLock lock = new ReentrantLock(); // guards all below
    private final Set<Connection> retired = new LinkedHashSet<>(); // a stopping daemon still answers what it has begun
    private Set<Call> queue = new LinkedHashSet<>(); // not sent yet
    private Selector selector; // null: before the first call
    private Connection connection;
    private KazahanaException closedBy;
    private boolean wasConnected;
    private Long failingSince;
    private KazahanaException lastFailure;
    private long pause = MIN_PAUSE;
    private Long retryAt;

    Channel(Path named, boolean isSingle) {
        this.named = named;
        this.isSingle = isSingle;
    }

    /** Makes a call, and waits for its result until its deadline. */
    byte[] call(Body body, Duration timeout) {
        Call call = new Call(body, timeout);
        submit(call);
        try {
            return await(call, call.deadline, () -> expire(call));
        } catch (CancellationException e) {
            forget(call);
            throw e;
        }
    }

    /** Begins a call. Whoever waits for it watches its deadline. */
    void submit(Call call) {
        KazahanaException refused = null;
        lock.lock();
        try {
            if (closedBy != null) {
                refused = closedBy;
            } else {
                if (selector == null) {
                    start();
                }
                queue.add(call);
                if (connection == null) {
                    selector.wakeup();
                } else if (queue.size() == 1) {
                    send();
                }
            }
        } finally {
            lock.unlock();
        }
        if (refused != null) {
            call.completeExceptionally(refused.copy());
        }
    }

    /** Waits for a result until a deadline, at which {@code expire} has to complete it. */
    static <T> T await(CompletableFuture<T> result, long deadline, Runnable expire) {
        try {
            try {
                return result.get(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
            } catch (TimeoutException e) {
                expire.run();
                return result.get();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new CancellationException("the thread was interrupted while it waited for the kazahana daemon");
        } catch (ExecutionException e) {
            if (e.getCause() instanceof KazahanaException error) {
                error.fillInStackTrace();
                throw error;
            }
            throw new IllegalStateException(e.getCause());
        }
    }

    /** Fails a call after its deadline. */
    void expire(Call call) {
        forget(call);
        call.completeExceptionally(timeoutError(call.timeout));
    }

    private void forget(Call call) {
        lock.lock();
        try {
            queue.remove(call);
            if (call.connection != null) {
                call.connection.waiting.remove(call.msgid, call);
            }
        } finally {
            lock.unlock();
        }
    }

    KazahanaException timeoutError(long timeout) {
        lock.lock();
        try {
            if (connection == null && lastFailure != null) {
                return lastFailure.copy();
            }
        } finally {
            lock.unlock();
        }
        long ms = TimeUnit.NANOSECONDS.toMillis(timeout);
        return KazahanaException.parse("TIMEOUT: no answer from the daemon waited_ms=" + ms);
    }

    void close() {
        close(KazahanaException.of("CLIENT_CLOSED", "the client is closed", null));
    }

    private void close(KazahanaException reason) {
        List<Call> failed = new ArrayList<>();
        lock.lock();
        try {
            if (closedBy != null) {
                return;
            }
            closedBy = reason;
            failed.addAll(queue);
            queue.clear();
            if (connection != null) {
                retired.add(connection);
            }
            for (Connection each : retired) {
                failed.addAll(each.waiting.values());
                each.close();
            }
            if (selector != null) {
                selector.wakeup();
            }
        } finally {
            lock.unlock();
        }
        fail(failed, reason);
    }

    private static void fail(Iterable<Call> calls, KazahanaException error) {
        calls.forEach(call -> call.completeExceptionally(error.copy()));
    }

    private void start() {
        Selector opened = openSelector();
        startThread("kazahana", () -> run(opened));
        selector = opened; // not before: without a thread, the next call tries again
    }

    static Selector openSelector() {
        try {
            return Selector.open();
        } catch (IOException e) {
            throw KazahanaException.of("DAEMON_UNAVAILABLE", "cannot wait for sockets: " + e.getMessage(), e);
        }
    }

    static void startThread(String name, Runnable run) {
        // The caller's thread locals and class loader must not live as long as the thread.
        Thread thread = new Thread(null, run, name, 0, false);
        thread.setContextClassLoader(null);
        thread.setDaemon(true);
        thread.start();
    }

    private void run(Selector opened) {
        ByteBuffer buffer = ByteBuffer.allocateDirect(READ_BUFFER);
        try (opened) {
            for (long wait; (wait = due()) != CLOSED; ) {
                if (wait == NOW) {
                    connect();
                } else {
                    opened.select(key -> ready(key, buffer), wait);
                }
            }
        } catch (IOException | RuntimeException | Error e) {
            close(KazahanaException.of("DAEMON_UNAVAILABLE", "the client's thread ended: " + e, e));
        }
    }

    /** Returns for how many milliseconds to wait for sockets, 0 without a limit; or NOW, if a call needs a connection; or CLOSED. */
    private long due() {
        lock.lock();
        try {
            if (closedBy != null) {
                return CLOSED;
            }
            if (connection != null || queue.isEmpty()) {
                return 0;
            }
            long left = retryAt == null ? 0 : retryAt - System.nanoTime();
            return left > 0 ? TimeUnit.NANOSECONDS.toMillis(left) + 1 : NOW;
        } finally {
            lock.unlock();
        }
    }

    private void connect() {
        try {
            opened(Connection.open(named, selector));
        } catch (DaemonSocket.Unreachable e) {
            disconnected(e);
        }
    }

    private void opened(Connection made) {
        lock.lock();
        try {
            if (closedBy != null) {
                made.close();
                return;
            }
            connection = made;
            wasConnected = true;
            failingSince = null;
            lastFailure = null;
            send();
        } finally {
            lock.unlock();
        }
    }

    /** Sends what is queued, as far as the connection takes it. The lock is held. */
    void send() {
        long now = System.nanoTime();
        while (connection != null && !connection.isFull() && !queue.isEmpty()) {
            Call call = queue.iterator().next();
            queue.remove(call);
            if (!call.isDone()) {
                connection.add(call, call.body.encode(TimeUnit.NANOSECONDS.toMillis(Math.max(call.deadline - now, 0))));
            }
            if (connection.isFull() || queue.isEmpty()) {
                connection.flush(); // if it took all, nothing would ask for the rest of the queue
            }
        }
    }

    private void ready(SelectionKey key, ByteBuffer buffer) {
        Connection ready = (Connection) key.attachment();
        List<Connection.Message> messages;
        try {
            if (key.isWritable()) {
                lock.lock();
                try {
                    ready.flush();
                    send();
                } finally {
                    lock.unlock();
                }
            }
            messages = key.isReadable() ? ready.read(buffer) : List.of();
        } catch (KazahanaException e) {
            ready.refusal = e;
            lost(ready, new IOException(e.getMessage(), e));
            return;
        } catch (IOException | java.nio.channels.CancelledKeyException e) {
            lost(ready, e instanceof IOException io ? io : new IOException(e));
            return;
        }
        if (messages == null) {
            lost(ready, new IOException("the daemon closed the connection"));
            return;
        }
        for (Connection.Message message : messages) {
            if (message.method() == null) { // it expects no notifications
                answered(ready, message);
            }
        }
        if (ready.isRetired && ready.waiting.isEmpty()) {
            lost(ready, new IOException("the daemon is stopping"));
        }
    }

    private void answered(Connection from, Connection.Message answer) {
        KazahanaException error = answer.error();
        Call call;
        lock.lock();
        try {
            call = answer.msgid() == 0 ? null : from.waiting.remove(answer.msgid());
            boolean isRefusal = error instanceof KazahanaException.PermissionDeniedException
                    || error instanceof KazahanaException.OverloadedException;
            // A daemon that turns a client away answers the first request, whose msgid is 1, and closes. If it could
            // not read the client, the msgid is 0.
            from.refusal = answer.msgid() == 0 || answer.msgid() == 1 && isRefusal ? error : null;
            if (call == null) {
                return; // nobody waits for it any more
            }
            if (error instanceof KazahanaException.ShuttingDownException && !isSingle) {
                askAgain(from, call);
                return;
            }
            pause = MIN_PAUSE;
        } finally {
            lock.unlock();
        }
        if (error == null) {
            call.complete(answer.result());
        } else {
            call.completeExceptionally(error);
        }
    }

    /** Repeats the call elsewhere: a stopping daemon still answers calls that it has begun, and refuses the others. The lock is held. */
    private void askAgain(Connection from, Call call) {
        queue.add(call);
        from.isRetired = true;
        if (from == connection) {
            connection = null;
            retired.add(from);
            retryLater();
        } else {
            send();
        }
    }

    private void retryLater() {
        retryAt = System.nanoTime() + pause / 2 + ThreadLocalRandom.current().nextLong(pause / 2);
        pause = Math.min(2 * pause, MAX_PAUSE);
    }

    private void lost(Connection gone, IOException why) {
        List<Call> failed = new ArrayList<>();
        KazahanaException error = gone.refusal;
        boolean wasCurrent;
        lock.lock();
        try {
            gone.close();
            retired.remove(gone);
            wasCurrent = gone == connection;
            if (wasCurrent) {
                connection = null;
            }
            Set<Call> again = new LinkedHashSet<>(gone.waiting.values());
            gone.waiting.clear();
            if (error == null && isSingle) {
                error = KazahanaException.of("DAEMON_UNAVAILABLE", "the connection to " + gone.file + " was lost: " + why.getMessage(), why);
            }
            if (error != null) {
                failed.addAll(again);
                again.clear();
            }
            again.addAll(queue);
            queue = again;
        } finally {
            lock.unlock();
        }
        fail(failed, error);
        if (wasCurrent) {
            disconnected(DaemonSocket.explain(gone.file, why));
        }
    }

    /** Fails the calls that wait, or tries to connect again while that makes sense. */
    private void disconnected(DaemonSocket.Unreachable why) {
        List<Call> failed = new ArrayList<>();
        KazahanaException failure = KazahanaException.of("DAEMON_UNAVAILABLE", why.getMessage(), why);
        lock.lock();
        try {
            long now = System.nanoTime();
            if (failingSince == null) {
                failingSince = now;
            }
            lastFailure = failure;
            if (isSingle || why.hopeless || !wasConnected && now - failingSince >= FIRST_CONNECT) {
                failed.addAll(queue);
                queue.clear();
            }
            if (queue.isEmpty()) {
                failingSince = null;
                retryAt = null;
            } else {
                retryLater();
            }
        } finally {
            lock.unlock();
        }
        fail(failed, failure);
    }
}
