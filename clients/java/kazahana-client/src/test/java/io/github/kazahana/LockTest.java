package io.github.kazahana;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Locks against a scripted daemon, with a clock that the tests move. The real daemon is in DaemonTest. */
class LockTest {
    private static final Duration TERM = Duration.ofSeconds(30);
    private static final Duration PATIENCE = Duration.ofMinutes(1);

    private final Map<String, Object> lease = new ConcurrentHashMap<>(Map.of(
            "lock_key", "k", "lease_id", "lease-1", "owner_id", "anonymous/0", "fencing_token", 7L, "state", "ACTIVE", "expires_in_ms", TERM.toMillis()));
    private final AtomicLong now = new AtomicLong();
    private volatile Predicate<Script.Request> instead = request -> false; // answers it, or reports false
    private final Script script = new Script(request -> {
        if (!instead.test(request)) {
            request.reply(Map.copyOf(lease));
        }
    });

    @AfterEach
    void end() {
        script.close();
    }

    private HeldLock take(Duration wait) {
        return take(false, PATIENCE, wait);
    }

    private HeldLock take(boolean isSingle, Duration timeout, Duration wait) {
        return Holder.take(Path.of(script.socket()), isSingle, timeout, "k", TERM, wait, new BootClock(now::get, now::get));
    }

    private void pass(double seconds) {
        now.addAndGet((long) (seconds * 1e9));
    }

    private List<Script.Request> asked(String method) {
        return script.requests.stream().filter(request -> request.method().equals(method)).toList();
    }

    private static Object option(Script.Request request, String name) {
        return ((Map<?, ?>) request.params().get(1)).get(name);
    }

    private static BlockingQueue<KazahanaException.LockLostException> losses(HeldLock lock) {
        BlockingQueue<KazahanaException.LockLostException> losses = new LinkedBlockingQueue<>();
        lock.onLost(losses::add);
        return losses;
    }

    /** Waits for the loss, which the lock then tells in every way. */
    private static KazahanaException lossOf(HeldLock lock) throws InterruptedException {
        KazahanaException loss = losses(lock).poll(2, TimeUnit.MINUTES);
        assertEquals("LOCK_LOST", loss.code());
        assertFalse(lock.isHeld());
        assertThrows(KazahanaException.LockLostException.class, lock::close);
        lock.close();
        return loss;
    }

    private static String reason(KazahanaException loss) {
        return loss.details().get("reason");
    }

    private void untilGone(Script.Request request) {
        Daemon.until("the client ends its connection", () -> script.left.contains(request.socket()));
    }

    @Test
    void aLockHasAConnectionOfItsOwnAndGivesItBack() {
        try (Kazahana client = script.options().build()) {
            client.ping();
            BlockingQueue<KazahanaException.LockLostException> losses;
            HeldLock kept;
            try (HeldLock lock = client.lock("k", Duration.ofSeconds(9), Duration.ofSeconds(2))) {
                kept = lock;
                losses = losses(lock);
                assertEquals(List.of("k", 7L, "lease-1", "anonymous/0", true),
                        List.of(lock.key(), lock.token(), lock.leaseId(), lock.ownerId(), lock.isHeld()));
            }
            kept.close();
            Script.Request acquire = asked("Lock.Acquire").get(0);
            assertEquals(List.of(9000L, "connection"), List.of(option(acquire, "ttl_ms"), option(acquire, "hold")));
            long wait = (long) option(acquire, "wait_ms");
            assertTrue(wait >= 0 && wait <= 2000, Long.toString(wait));
            assertEquals(Map.of("lease_id", "lease-1"), asked("Lock.Watch").get(0).params().get(1));
            Script.Request release = asked("Lock.Release").get(0);
            assertEquals("lease-1", option(release, "lease_id"));
            for (Script.Request request : List.of(acquire, release)) {
                assertTrue(((String) option(request, "request_id")).matches("[0-9a-f-]{36}"));
                assertEquals(acquire.socket(), request.socket());
            }
            assertNotEquals(option(acquire, "request_id"), option(release, "request_id"));
            assertEquals(1, asked("Lock.Release").size());
            assertNotEquals(script.connections.get(0), acquire.socket());
            untilGone(acquire);
            client.ping();
            assertFalse(kept.isHeld());
            assertTrue(losses.isEmpty());
        }
    }

    @Test
    void closingTheClientDoesNotReleaseTheLock() {
        Kazahana client = script.options().build();
        HeldLock lock = client.lock("k", TERM);
        client.close();
        assertTrue(lock.isHeld());
        lock.close();
        assertEquals(1, asked("Lock.Release").size());
    }

    @Test
    void aLockOfAnotherIsAnErrorAndLeavesNoConnection() {
        instead = request -> {
            request.fail("LOCK_HELD: it is held retry_after_ms=1200 owner=anonymous/7");
            return true;
        };
        KazahanaException held = assertThrows(KazahanaException.LockHeldException.class, () -> take(Duration.ZERO));
        assertEquals(List.of(1200L, "anonymous/7"), List.of(held.number("retry_after_ms").getAsLong(), held.details().get("owner")));
        untilGone(script.requests.get(0));
        assertEquals(1, script.requests.size());
    }

    @Test
    void theWaitComesOnTopOfTheTimeout() {
        instead = request -> {
            if (request.method().equals("Lock.Acquire")) {
                Daemon.until("the timeout is over", ticks(300));
            }
            return false;
        };
        take(false, Duration.ofMillis(100), PATIENCE).close();
        assertTrue((long) option(asked("Lock.Acquire").get(0), "wait_ms") > 0);
    }

    private static java.util.function.BooleanSupplier ticks(long ms) {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
        return () -> System.nanoTime() - end >= 0;
    }

    @ParameterizedTest
    @ValueSource(strings = {"Lock.Acquire", "Lock.Watch"})
    void theDeadlineEndsTheWait(String silent) {
        instead = request -> request.method().equals(silent);
        assertThrows(KazahanaException.RequestTimeoutException.class, () -> take(false, Duration.ofMillis(200), Duration.ZERO));
        Daemon.until("it has asked", () -> !script.requests.isEmpty());
        untilGone(script.requests.get(0));
    }

    @Test
    void anInterruptEndsTheWait() {
        CompletableFuture<Boolean> ended = new CompletableFuture<>();
        instead = request -> true;
        Thread waiter = new Thread(() -> {
            assertThrows(CancellationException.class, () -> take(PATIENCE));
            ended.complete(Thread.interrupted());
        });
        waiter.start();
        Daemon.until("it asks", () -> !script.requests.isEmpty());
        waiter.interrupt();
        assertTrue(ended.join());
        untilGone(script.requests.get(0));
    }

    @Test
    void anAcquireWhoseConnectionBreaksIsRepeatedAsTheSameRequest() {
        instead = request -> {
            int acquires = asked("Lock.Acquire").size();
            if (request.method().equals("Lock.Acquire") && acquires == 1) {
                request.hangUp();
            } else if (request.method().equals("Lock.Acquire") && acquires == 2) {
                request.fail("REQUEST_ID_REUSED: that lease was released");
            } else {
                return false;
            }
            return true;
        };
        take(Duration.ZERO).close();
        List<Object> ids = asked("Lock.Acquire").stream().map(request -> option(request, "request_id")).toList();
        assertEquals(3, ids.size());
        assertEquals(ids.get(0), ids.get(1));
        assertNotEquals(ids.get(1), ids.get(2));
    }

    @Test
    void aRequestIdThatIsReusedTwiceIsTheAnswer() {
        instead = request -> {
            request.fail("REQUEST_ID_REUSED: says why");
            return true;
        };
        KazahanaException error = assertThrows(KazahanaException.RequestIdReusedException.class, () -> take(Duration.ZERO));
        assertEquals("says why", error.getMessage());
        assertEquals(2, script.requests.size());
    }

    @ParameterizedTest
    @ValueSource(strings = {"LOCK_NOT_OWNED: gone", "LOCK_EXPIRED: gone", "LOCK_NOT_FOUND: gone", "EXPIRED", "another", "hang up"})
    void aLockThatIsLostBeforeItIsWatchedIsAskedForAnew(String how) {
        instead = request -> {
            if (!request.method().equals("Lock.Watch") || asked("Lock.Watch").size() > 1) {
                return false;
            }
            if (how.contains(":")) {
                // The loss of the first lease is none of the second.
                request.send(List.of(2, "Lock.Lost", List.of(Map.of("lease_id", "lease-1", "reason", "expired"))));
                request.fail(how);
            } else if (how.equals("hang up")) {
                request.hangUp();
            } else {
                Map<String, Object> other = new java.util.HashMap<>(lease);
                other.put(how.equals("EXPIRED") ? "state" : "lease_id", how);
                request.reply(other);
            }
            return true;
        };
        HeldLock lock = take(Duration.ZERO);
        assertEquals(2, asked("Lock.Acquire").size());
        assertNotEquals(asked("Lock.Acquire").get(0).socket(), asked("Lock.Acquire").get(1).socket());
        assertTrue(lock.isHeld());
        lock.close();
    }

    @Test
    void aStoppingDaemonIsWaitedFor() {
        AtomicInteger times = new AtomicInteger();
        instead = request -> {
            if (times.incrementAndGet() > 3) {
                return false;
            }
            request.fail("SHUTTING_DOWN: the daemon is stopping");
            return true;
        };
        take(Duration.ZERO).close();
        assertEquals(4, script.connections.size());
        times.set(0);
        assertThrows(KazahanaException.ShuttingDownException.class, () -> take(true, PATIENCE, Duration.ZERO));
        assertEquals(5, script.connections.size());
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void withoutADaemonThereIsNoLock(boolean isSingle) {
        script.stop();
        KazahanaException error = assertThrows(KazahanaException.DaemonUnavailableException.class, () -> take(isSingle, PATIENCE, PATIENCE));
        assertTrue(error.getMessage().contains("kazahanad serve"), error.getMessage());
    }

    @Test
    void aClientThatIsTurnedAwayGetsTheReason() {
        instead = request -> {
            request.send(java.util.Arrays.asList(1, 0, List.of(0, "PERMISSION_DENIED: not you"), null));
            request.hangUp();
            return true;
        };
        assertThrows(KazahanaException.PermissionDeniedException.class, () -> take(PATIENCE));
    }

    @Test
    void wrongTimesAndKeysAreRefused() {
        try (Kazahana client = script.options().build()) {
            for (Duration wrong : List.of(Duration.ofMillis(-1), Duration.ofHours(25), Duration.ofDays(1L << 40))) {
                assertThrows(KazahanaException.InvalidParamsException.class, () -> client.lock("k", wrong));
                assertThrows(KazahanaException.InvalidParamsException.class, () -> client.lock("k", TERM, wrong));
            }
            assertThrows(KazahanaException.InvalidParamsException.class, () -> client.lock("\ud800", TERM));
            assertThrows(KazahanaException.InvalidParamsException.class, () -> client.lock("k".repeat(Connection.MAX_REQUEST), TERM));
            assertTrue(script.requests.isEmpty());
        }
    }

    @Test
    void theDaemonSaysThatTheLockIsLost() throws Exception {
        HeldLock lock = take(Duration.ZERO);
        Script.Request watch = asked("Lock.Watch").get(0);
        for (List<?> other : List.of(List.of(Map.of("lease_id", "another", "reason", "expired")), List.of(), List.of("lease-1"))) {
            watch.send(List.of(2, "Lock.Lost", other));
        }
        watch.send(List.of(2, "Something.New", List.of()));
        pass(11); // it asks, and so has read all that
        Daemon.until("it asks", () -> !asked("Lock.Get").isEmpty());
        assertTrue(lock.isHeld());
        watch.send(List.of(2, "Lock.Lost", List.of(Map.of("lease_id", "lease-1", "reason", "taken_over"))));
        KazahanaException loss = lossOf(lock);
        assertEquals("taken_over", reason(loss));
        assertEquals("the lock \"k\" is lost: taken_over", loss.getMessage());
        assertTrue(asked("Lock.Release").isEmpty());
        untilGone(watch);
    }

    @Test
    void aLossInsideABlockIsThrownAtItsEndAndHidesNoOtherError() {
        IllegalStateException own = assertThrows(IllegalStateException.class, () -> {
            try (HeldLock lock = take(Duration.ZERO)) {
                script.connections.get(0).close();
                Daemon.until("it is lost", () -> !lock.isHeld());
                throw new IllegalStateException("of the block");
            }
        });
        assertInstanceOf(KazahanaException.LockLostException.class, own.getSuppressed()[0]);
        assertThrows(KazahanaException.LockLostException.class, () -> {
            try (HeldLock lock = take(Duration.ZERO)) {
                script.connections.get(1).close();
                Daemon.until("it is lost", () -> !lock.isHeld());
            }
        });
    }

    @Test
    void aConnectionThatBreaksLosesTheLock() throws Exception {
        HeldLock lock = take(Duration.ZERO);
        script.connections.get(0).close();
        KazahanaException loss = lossOf(lock);
        assertEquals("disconnected", reason(loss));
        assertInstanceOf(KazahanaException.DaemonUnavailableException.class, loss.getCause());
        assertEquals(1, script.connections.size());
    }

    @ParameterizedTest
    @ValueSource(strings = {"state=EXPIRED:expired", "state=RELEASED:released", "lease_id=another:taken_over",
        "LOCK_NOT_FOUND=forgotten:expired", "LOCK_EXPIRED=its term is over:expired"})
    void aLockThatTheDaemonDoesNotConfirmIsLost(String row) throws Exception {
        String[] part = row.split("[=:]");
        HeldLock lock = take(Duration.ZERO);
        instead = request -> {
            if (part[0].startsWith("LOCK")) {
                request.fail(part[0] + ": " + part[1]);
                return true;
            }
            lease.put(part[0], part[1]);
            return false;
        };
        pass(10.1);
        assertEquals(part[2], reason(lossOf(lock)));
    }

    @Test
    void aLockThatTheDaemonConfirmsIsKept() {
        try (HeldLock lock = take(Duration.ZERO)) {
            for (int times = 1; times <= 5; times++) {
                int all = times;
                pass(10.1);
                Daemon.until("it asks", () -> asked("Lock.Get").size() == all);
            }
            Daemon.until("it is held for longer than its first term", lock::isHeld);
        }
    }

    @Test
    void aDaemonThatHangsLosesTheLockBeforeItsTermEnds() throws Exception {
        HeldLock lock = take(Duration.ZERO);
        instead = request -> request.method().equals("Lock.Get");
        pass(10.1);
        Daemon.until("it asks", () -> asked("Lock.Get").size() == 1);
        pass(18.3);
        assertTrue(lock.isHeld());
        pass(0.1); // a twentieth of the term is not relied on
        assertFalse(lock.isHeld());
        KazahanaException loss = lossOf(lock);
        assertEquals("expired", reason(loss));
        assertEquals("TIMEOUT", ((KazahanaException) loss.getCause()).code());
    }

    @Test
    void aDaemonThatCannotAnswerIsAskedAgainUntilTheTermEnds() throws Exception {
        HeldLock lock = take(Duration.ZERO);
        Predicate<Script.Request> failing = request -> {
            request.fail("STORE_UNAVAILABLE: it is away");
            return true;
        };
        instead = failing;
        pass(10.1);
        Daemon.until("it has taken the error", () -> ((Holder) lock).term.next() == 13_100_000_000L);
        instead = request -> false;
        pass(17);
        assertTrue(lock.isHeld());
        Daemon.until("it asks again", () -> asked("Lock.Get").size() == 2);
        pass(5);
        Daemon.until("it is held after its first term", lock::isHeld);
        instead = failing;
        pass(40);
        assertEquals("STORE_UNAVAILABLE", ((KazahanaException) lossOf(lock).getCause()).code());
    }

    /** While the process was stopped, the daemon has renewed the lock: it is asked before the lock counts as lost. Until then it is not held. */
    @Test
    void aProcessThatWasStoppedAsksBeforeItGivesTheLockUp() {
        AtomicReference<Script.Request> question = new AtomicReference<>();
        HeldLock lock = take(Duration.ZERO);
        BlockingQueue<KazahanaException.LockLostException> losses = losses(lock);
        instead = request -> request.method().equals("Lock.Get") && question.compareAndSet(null, request);
        pass(100);
        assertFalse(lock.isHeld());
        Daemon.until("it asks", () -> question.get() != null);
        assertFalse(lock.isHeld());
        question.get().reply(Map.copyOf(lease));
        Daemon.until("it is held again", lock::isHeld);
        assertTrue(losses.isEmpty());
        lock.close();
    }

    @Test
    void aStoppedProcessAndADaemonThatHangsLoseTheLock() throws Exception {
        HeldLock lock = take(Duration.ZERO);
        instead = request -> request.method().equals("Lock.Get");
        pass(100);
        Daemon.until("it asks", () -> asked("Lock.Get").size() == 1);
        pass(3.1); // a tenth of the term
        assertEquals("expired", reason(lossOf(lock)));
    }

    @Test
    void answersThatAreOverWhenTheyComeDoNotKeepTheLockForEver() throws Exception {
        HeldLock lock = take(Duration.ZERO);
        lease.put("expires_in_ms", 0L);
        pass(10.1);
        assertEquals("expired", reason(lossOf(lock)));
        assertEquals(3, asked("Lock.Get").size());
    }

    @Test
    void aCallbackThatTakesLongKeepsNeitherTheConnectionNorARelease() {
        CompletableFuture<Void> enough = new CompletableFuture<>();
        HeldLock lock = take(Duration.ZERO);
        lock.onLost(why -> enough.join());
        asked("Lock.Watch").get(0).send(List.of(2, "Lock.Lost", List.of(Map.of("lease_id", "lease-1", "reason", "expired"))));
        untilGone(asked("Lock.Watch").get(0));
        assertThrows(KazahanaException.LockLostException.class, lock::close);
        enough.complete(null);
    }

    @Test
    void aReleaseThatFindsTheLockGoneSaysSo() throws Exception {
        HeldLock lock = take(Duration.ZERO);
        instead = request -> {
            request.fail("LOCK_EXPIRED: the lease has expired");
            return true;
        };
        KazahanaException loss = assertThrows(KazahanaException.LockLostException.class, lock::close);
        assertEquals("LOCK_EXPIRED", ((KazahanaException) loss.getCause()).code());
    }

    @Test
    void aReleaseWithoutAnAnswerEndsTheConnectionWhichReleasesTheLock() {
        instead = request -> request.method().equals("Lock.Release");
        Daemon.until("it is taken in the time", () -> ClientTest.succeeds(() -> take(false, Duration.ofMillis(300), Duration.ZERO).close()));
        Daemon.until("it has asked", () -> !asked("Lock.Release").isEmpty());
        untilGone(asked("Lock.Release").get(0));

        instead = request -> {
            if (request.method().equals("Lock.Release")) {
                request.hangUp();
                return true;
            }
            return false;
        };
        assertDoesNotThrow(take(Duration.ZERO)::close);
    }

    @Test
    void aReleaseOfAnInterruptedThreadIsStillSent() {
        HeldLock lock = take(Duration.ZERO);
        instead = request -> request.method().equals("Lock.Release"); // which is answered later
        Thread.currentThread().interrupt();
        assertThrows(CancellationException.class, lock::close);
        assertTrue(Thread.interrupted());
        Daemon.until("it is released", () -> asked("Lock.Release").size() == 1);
        asked("Lock.Release").get(0).reply(Map.copyOf(lease));
        untilGone(asked("Lock.Release").get(0));
    }

    /** Past the end of the term as it is known here, the daemon may still hold the lock: its answer to the release says so. */
    @Test
    void aReleaseDuringAQuestionIsNoLoss() {
        HeldLock lock = take(Duration.ZERO);
        BlockingQueue<KazahanaException.LockLostException> losses = losses(lock);
        instead = request -> request.method().equals("Lock.Get");
        pass(100);
        Daemon.until("it asks", () -> asked("Lock.Get").size() == 1);
        lock.close();
        assertTrue(losses.isEmpty());
    }

    @Test
    void anErrorOfACallbackIsReportedAndHindersNoOther() throws Exception {
        BlockingQueue<Throwable> reported = new LinkedBlockingQueue<>();
        Thread.UncaughtExceptionHandler before = Thread.getDefaultUncaughtExceptionHandler();
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> reported.add(error));
        try {
            HeldLock lock = take(Duration.ZERO);
            BlockingQueue<KazahanaException.LockLostException> losses = losses(lock);
            IllegalStateException own = new IllegalStateException("of the callback");
            lock.onLost(why -> {
                throw own;
            });
            script.connections.get(0).close();
            assertEquals("disconnected", reason(losses.poll(2, TimeUnit.MINUTES)));
            assertEquals(own, reported.poll(2, TimeUnit.MINUTES));
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(before);
        }
    }
}
