package io.github.kazahana;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

/** The client against a real daemon. */
class DaemonTest {
    private static final Duration TERM = Duration.ofSeconds(30);

    @Test
    void idsAreUniqueAndAscend() {
        try (Daemon daemon = new Daemon(); Kazahana client = daemon.client()) {
            long last = 0;
            for (int i = 0; i < 1000; i++) {
                long id = client.nextId();
                assertTrue(id > last);
                last = id;
            }
            for (int count : new int[] {1, 3, 65_536}) {
                long[] ids = client.nextIds(count);
                assertEquals(count, ids.length);
                assertTrue(ids[0] > last);
                last = ids[count - 1];
            }
        }
    }

    @Test
    void anIdIsExplained() {
        try (Daemon daemon = new Daemon(); Kazahana client = daemon.client()) {
            long id = client.nextId();
            Inspection found = client.inspect(id);
            assertEquals(id, found.id());
            assertTrue(!found.fallback());
            assertEquals(found, client.inspect(Long.toString(id)));
            assertEquals(found, client.inspect("0x" + Long.toHexString(id)));
            assertEquals(found, client.inspect(found.external()));
            long[] bounds = client.bounds(found.time(), found.time().plusMillis(1));
            assertTrue(bounds[0] <= id && id <= bounds[1]);
            assertEquals((1 << 22) - 1, bounds[1] - bounds[0]);
        }
    }

    @Test
    void externalIdsWithTheDaemonsSecret() throws Exception {
        String secret = "correct horse battery staple";
        Path file = Files.createTempFile("kz-", "");
        Files.writeString(file, secret + "\n");
        Files.setPosixFilePermissions(file, java.nio.file.attribute.PosixFilePermissions.fromString("rw-------"));
        try (Daemon daemon = new Daemon("--external-secret-file", file.toString()); Kazahana client = daemon.client()) {
            ExternalCodec codec = ExternalCodec.withSecret(secret.getBytes(StandardCharsets.UTF_8));
            long id = client.nextId();
            String external = client.toExternal(id);
            assertEquals(codec.encode(id), external);
            assertEquals(id, client.toInternal(external));
            assertEquals(id, client.toInternal(external, Instant.now().plusSeconds(60)));
            assertThrows(KazahanaException.InvalidExternalIdException.class, () -> client.toInternal(external, Instant.EPOCH));
        } finally {
            Files.delete(file);
        }
    }

    @Test
    void theRest() {
        try (Daemon daemon = new Daemon(); Kazahana client = daemon.client()) {
            assertEquals(7, client.uuid().version());
            client.ping();
            assertEquals(daemon.socket(), client.status().get("socket"));
            long first = client.nextSequence("invoices");
            long[] next = client.nextSequences("invoices", 3);
            assertTrue(next[0] > first && next[2] == next[0] + 2);
            assertThrows(KazahanaException.InvalidParamsException.class, () -> client.nextIds(0));
            assertThrows(KazahanaException.UnknownMethodException.class, () -> client.call("Nothing"));
            try (Kazahana other = Kazahana.client().socket(daemon.socket()).service("nobody").build()) {
                assertThrows(KazahanaException.UnknownServiceException.class, other::nextId);
            }
        }
    }

    @Test
    void withoutALeaseThereAreFallbackIdsOrAnError() {
        try (Daemon daemon = new Daemon("--provider", "none:"); Kazahana client = daemon.client();
                Kazahana strict = Kazahana.client().socket(daemon.socket()).regularOnly().build()) {
            assertTrue(client.inspect(client.nextId()).fallback());
            assertThrows(KazahanaException.NoProviderException.class, strict::nextId);
        }
    }

    @Test
    void aDaemonThatIsKilledAndRestartedUnderLoadCostsNoCallAndRepeatsNoId() throws Exception {
        try (Daemon daemon = new Daemon()) {
            Set<Long> ids = ConcurrentHashMap.newKeySet();
            AtomicBoolean isOver = new AtomicBoolean();
            ExecutorService threads = Executors.newCachedThreadPool();
            List<Kazahana> clients = List.of(daemon.client(),
                    Kazahana.client().socket(daemon.socket()).timeout(Duration.ofMinutes(1)).prefetch(64).build());
            List<CompletableFuture<Void>> callers = new ArrayList<>();
            for (Kazahana client : clients) {
                for (int n = 0; n < 8; n++) {
                    boolean isBatch = n == 0;
                    callers.add(CompletableFuture.runAsync(() -> {
                        long last = 0;
                        while (!isOver.get()) {
                            for (long id : isBatch ? client.nextIds(20) : new long[] {client.nextId()}) {
                                assertTrue(id > last, id + " after " + last);
                                assertTrue(ids.add(id), "twice: " + id);
                                last = id;
                            }
                        }
                    }, threads));
                }
            }
            for (int life = 0; life < 4; life++) {
                int enough = ids.size() + 5000;
                Daemon.until("IDs go on", () -> ids.size() >= enough || callers.stream().anyMatch(CompletableFuture::isDone));
                if (life == 3) {
                    break;
                }
                if (life == 1) {
                    daemon.stop();
                } else {
                    daemon.kill();
                }
                daemon.start();
            }
            isOver.set(true);
            callers.forEach(CompletableFuture::join);
            clients.forEach(Kazahana::close);
            threads.shutdown();
        }
    }

    @Test
    void aSequenceCountsAsItsOptionsSay() {
        try (Daemon daemon = new Daemon(); Kazahana client = daemon.client()) {
            Map<String, Object> tens = Map.of("start", 0, "step", 10, "max_value", 40, "on_max", "error");
            assertEquals(0, client.nextSequence("tens", tens));
            assertArrayEquals(new long[] {10, 20}, client.nextSequences("tens", 2, tens));
            Map<String, Object> once = new HashMap<>(tens);
            once.put("request_id", "repeated");
            assertEquals(30, client.nextSequence("tens", once));
            assertEquals(30, client.nextSequence("tens", once));
            KazahanaException error = assertThrows(KazahanaException.SequenceExhaustedException.class, () -> client.nextSequences("tens", 2, tens));
            assertEquals(List.of(40L, 1L), List.of(error.number("max_value").getAsLong(), error.number("left").getAsLong()));
            assertThrows(KazahanaException.InvalidParamsException.class, () -> client.nextSequence("tens"));
            assertThrows(KazahanaException.InvalidParamsException.class, () -> client.nextSequence("tens", Map.of("stride", 1)));
            assertThrows(KazahanaException.RequestIdReusedException.class, () -> client.nextSequences("tens", 2, once));
        }
    }

    @Test
    void aLockHasOneHolderAtATimeAndAGrowingToken() {
        try (Daemon daemon = new Daemon(); Kazahana client = daemon.client()) {
            HeldLock first = client.lock("k", TERM);
            KazahanaException held = assertThrows(KazahanaException.LockHeldException.class, () -> client.lock("k", TERM));
            assertEquals(first.ownerId(), held.details().get("owner"));
            assertTrue(held.number("retry_after_ms").getAsLong() > 0);
            CompletableFuture<HeldLock> waiting = CompletableFuture.supplyAsync(() -> client.lock("k", TERM, Duration.ofHours(1)));
            assertTrue(first.isHeld() && !waiting.isDone());
            first.close();
            try (HeldLock second = waiting.join()) {
                assertTrue(second.isHeld());
                assertTrue(second.token() > first.token() && first.token() > 0);
            }
            assertEquals("RELEASED", ((Map<?, ?>) client.call("Lock.Get", "k")).get("state"));
        }
    }

    @Test
    void theDaemonRenewsALockThatIsHeld() {
        try (Daemon daemon = new Daemon(); Kazahana client = daemon.client(); HeldLock lock = whileShort(client, Duration.ofSeconds(12))) {
            String end = (String) ((Map<?, ?>) client.call("Lock.Get", "k")).get("expires_at");
            Daemon.until("it is renewed", () -> end.compareTo((String) ((Map<?, ?>) client.call("Lock.Get", "k")).get("expires_at")) < 0);
            assertThrows(KazahanaException.LockHeldException.class, () -> client.lock("k", TERM));
        }
    }

    /** Asks again where the machine was so busy that the short term ended before the answer came. */
    private static HeldLock whileShort(Kazahana client, Duration ttl) {
        long deadline = System.nanoTime() + Duration.ofMinutes(1).toNanos();
        while (true) {
            try {
                return client.lock("k", ttl, Duration.ofMinutes(1));
            } catch (KazahanaException.LockExpiredException e) {
                if (System.nanoTime() - deadline > 0) {
                    throw e;
                }
            }
        }
    }

    private static CompletableFuture<String> reasonOfLoss(HeldLock lock) {
        CompletableFuture<String> reason = new CompletableFuture<>();
        lock.onLost(why -> reason.complete(why.details().get("reason")));
        return reason;
    }

    @Test
    void aLockIsLostWithTheDaemonAndWhenAnotherReleasesIt() {
        try (Daemon daemon = new Daemon(); Kazahana client = daemon.client()) {
            HeldLock lock = client.lock("k", TERM);
            client.call("Lock.Release", "k", Map.of("lease_id", lock.leaseId()));
            assertEquals("released", reasonOfLoss(lock).join());
            lock = client.lock("k", TERM);
            daemon.kill();
            assertEquals("disconnected", reasonOfLoss(lock).join());
            assertThrows(KazahanaException.LockLostException.class, lock::close);
        }
    }

    @Test
    void aFrozenDaemonLosesTheLockByTheEndOfItsTerm() {
        try (Daemon daemon = new Daemon(); Kazahana client = daemon.client()) {
            HeldLock lock = whileShort(client, Duration.ofSeconds(2));
            CompletableFuture<String> reason = reasonOfLoss(lock);
            daemon.freeze(true);
            try {
                Daemon.until("it is not held", () -> !lock.isHeld());
                assertEquals("expired", reason.join());
                assertThrows(KazahanaException.LockLostException.class, lock::close);
            } finally {
                daemon.freeze(false);
            }
        }
    }

    /** Holders of one lock, in many threads, while the daemon is killed and restarted: no two believe in it at once. */
    @Test
    void noTwoHoldersAtOnceWhileTheDaemonIsKilledAndRestarted() {
        try (Daemon daemon = new Daemon(); Kazahana client = daemon.client()) {
            AtomicBoolean isOver = new AtomicBoolean();
            AtomicReference<HeldLock> holder = new AtomicReference<>();
            AtomicLong greatest = new AtomicLong();
            AtomicInteger times = new AtomicInteger();
            ExecutorService threads = Executors.newCachedThreadPool();
            List<CompletableFuture<Void>> callers = new ArrayList<>();
            for (int n = 0; n < 4; n++) {
                callers.add(CompletableFuture.runAsync(() -> {
                    while (!isOver.get()) {
                        try (HeldLock lock = whileShort(client, Duration.ofSeconds(1))) {
                            assertTrue(greatest.getAndAccumulate(lock.token(), Math::max) < lock.token(), "an old token");
                            HeldLock before = holder.getAndSet(lock);
                            assertTrue(before == null || !before.isHeld() || !lock.isHeld(), "two holders");
                            times.incrementAndGet();
                        } catch (KazahanaException.LockLostException e) {
                            // The daemon was killed.
                        }
                    }
                }, threads));
            }
            for (int life = 0; life < 3; life++) {
                int enough = times.get() + 20;
                Daemon.until("locks are taken", () -> times.get() >= enough || callers.stream().anyMatch(CompletableFuture::isDone));
                if (life < 2) {
                    daemon.kill();
                    daemon.start();
                }
            }
            isOver.set(true);
            callers.forEach(CompletableFuture::join);
            threads.shutdown();
        }
    }
}
