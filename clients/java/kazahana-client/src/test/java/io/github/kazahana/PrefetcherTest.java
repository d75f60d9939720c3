package io.github.kazahana;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class PrefetcherTest {
    private static final long FIRST = 117360159400092001L;

    private final AtomicLong clock = new AtomicLong(); // in ns
    private final AtomicLong wallClock = new AtomicLong(); // in ms

    private Client client(Script script, int prefetch, Duration maxAge) {
        return new Client(script.options().prefetch(prefetch).maxAge(maxAge), clock::get, wallClock::get);
    }

    @Test
    void idsComeFromBatchesAscendingAndNoneTwice() {
        try (Script script = new Script(ClientTest.counting()); Kazahana client = client(script, 64, Duration.ofHours(1))) {
            for (int i = 0; i < 5000; i++) {
                assertEquals(FIRST + i, client.nextId());
            }
            assertTrue(script.requests.size() <= 5000 / 64 + 2, script.requests.size() + " requests");
            long largest = script.requests.stream().mapToLong(request -> (long) request.params().get(0)).max().getAsLong();
            assertEquals(16 * 64, largest); // the clock stands still: they are used up fast
        }
    }

    @Test
    void batchesShrinkWhileTheyAreUsedUpSlowly() {
        try (Script script = new Script(ClientTest.counting()); Kazahana client = client(script, 4, Duration.ofHours(1))) {
            for (int i = 0; i < 400; i++) {
                client.nextId();
                clock.addAndGet(1_000_000);
            }
            assertTrue(script.requests.stream().allMatch(request -> (long) request.params().get(0) <= 8));
            assertEquals(4L, script.requests.get(script.requests.size() - 1).params().get(0));
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void anIdIsNeverOlderThanMaxAgeByEitherClock(boolean isWall) {
        try (Script script = new Script(ClientTest.counting()); Kazahana client = client(script, 100, Duration.ofMillis(20))) {
            assertEquals(FIRST, client.nextId());
            for (int i = 1; i < 16; i++) { // the wall clock is read for each 16th ID
                assertEquals(FIRST + i, client.nextId());
            }
            assertEquals(1, script.requests.size());
            if (isWall) {
                wallClock.addAndGet(21);
            } else {
                clock.addAndGet(20_000_001);
            }
            assertEquals(FIRST + 100, client.nextId());
        }
    }

    /** An ID that was asked for after the call began is used. A call that began later waits for the next answer. */
    @Test
    void anAnswerSlowerThanMaxAgeServesOnlyThoseWhoWaitedBefore() {
        AtomicReference<Script.Request> first = new AtomicReference<>();
        Consumer<Script.Request> answer = ClientTest.counting();
        try (Script script = new Script(request -> {
            if (!first.compareAndSet(null, request)) {
                answer.accept(request);
            }
        }); Client client = client(script, 10, Duration.ofMillis(20))) {
            CompletableFuture<Long> early = CompletableFuture.supplyAsync(client::nextId);
            Daemon.until("the first is asked for", () -> first.get() != null);
            clock.addAndGet(30_000_000);
            AtomicReference<Thread> caller = new AtomicReference<>();
            CompletableFuture<Long> late = CompletableFuture.supplyAsync(() -> {
                caller.set(Thread.currentThread());
                return client.nextId();
            });
            Daemon.until("it waits", () -> caller.get() != null && caller.get().getState() == Thread.State.TIMED_WAITING);
            answer.accept(first.get());
            assertEquals(FIRST, early.join());
            assertEquals(FIRST + 10, late.join());
        }
    }

    @Test
    void nothingIsFetchedWhileNobodyAsks() throws InterruptedException {
        try (Script script = new Script(ClientTest.counting()); Kazahana client = client(script, 10, Duration.ofHours(1))) {
            client.nextId();
            client.nextId();
            Thread.sleep(100);
            assertEquals(1, script.requests.size());
        }
    }

    @Test
    void theIdsOfOneClientAscendWhicheverWayTheThreadsAsk() {
        try (Script script = new Script(ClientTest.counting()); Kazahana client = script.options().prefetch(10).build()) {
            Set<Long> all = ConcurrentHashMap.newKeySet();
            CompletableFuture<?>[] threads = IntStream.range(0, 4).mapToObj(thread -> CompletableFuture.runAsync(() -> {
                long last = 0;
                for (int i = 0; i < 2000; i++) {
                    long[] ids = i % 7 == thread ? client.nextIds(3) : new long[] {client.nextId()};
                    for (long id : ids) {
                        assertTrue(id > last, id + " after " + last);
                        assertTrue(all.add(id), "twice: " + id);
                        last = id;
                    }
                }
            })).toArray(CompletableFuture<?>[]::new);
            CompletableFuture.allOf(threads).join();
        }
    }

    @Test
    void allWhoWaitGetTheErrorAndTheNextCallAsksAgain() {
        AtomicBoolean isBroken = new AtomicBoolean(true);
        try (Script script = new Script(request -> {
            if (isBroken.get()) {
                request.fail("NO_PROVIDER: none");
            } else {
                request.reply(IntStream.rangeClosed(1, ((Long) request.params().get(0)).intValue()).boxed().toList());
            }
        }); Kazahana client = script.options().prefetch(10).build()) {
            List<CompletableFuture<Long>> calls = IntStream.range(0, 3).mapToObj(i -> CompletableFuture.supplyAsync(client::nextId)).toList();
            for (CompletableFuture<Long> call : calls) {
                assertEquals(KazahanaException.NoProviderException.class, call.handle((id, error) -> error.getCause().getClass()).join());
            }
            isBroken.set(false);
            assertEquals(1, client.nextId());
        }
    }

    @Test
    void aBatchThatIsNotAnsweredEndsAtTheDeadlineAndTheNextIsAskedFor() {
        AtomicInteger asked = new AtomicInteger();
        try (Script script = new Script(request -> {
            if (asked.incrementAndGet() > 1) {
                request.reply(IntStream.rangeClosed(1, ((Long) request.params().get(0)).intValue()).boxed().toList());
            }
        }); Kazahana client = script.options().prefetch(2).timeout(Duration.ofMillis(300)).build()) {
            assertThrows(KazahanaException.RequestTimeoutException.class, client::nextId);
            Daemon.until("the next is served", () -> {
                try {
                    return client.nextId() == 1;
                } catch (KazahanaException.RequestTimeoutException e) {
                    return false; // the machine is slow
                }
            });
        }
    }

    /** A call has its own time, whenever the fetch that it waits for began, and however that ends. */
    @Test
    void aFetchWhoseTimeIsOverWithoutADaemonIsAskedForAgain() {
        Path directory = Script.temporary();
        Consumer<Script.Request> answer = ClientTest.counting();
        Duration timeout = Duration.ofSeconds(1);
        Script first = new Script(directory, answer);
        try (Kazahana client = first.options().prefetch(4).maxAge(Duration.ofHours(1)).timeout(timeout).build()) {
            Daemon.until("it is there", () -> ClientTest.succeeds(client::nextId));
            first.stop();
            for (int i = 1; i < 4; i++) {
                client.nextId(); // the second ID begins a fetch, for which nobody waits
            }
            long asked = System.nanoTime();
            Daemon.until("the time of the fetch is over", () -> System.nanoTime() - asked > timeout.toNanos());
            AtomicReference<Thread> caller = new AtomicReference<>();
            CompletableFuture<Long> late = CompletableFuture.supplyAsync(() -> {
                long began = System.nanoTime();
                caller.set(Thread.currentThread());
                try {
                    return client.nextId();
                } catch (KazahanaException e) { // the machine is slow
                    assertTrue(System.nanoTime() - began >= timeout.toNanos(), e.toString());
                    return 0L;
                }
            });
            Daemon.until("it waits", () -> late.isDone() || caller.get() != null && caller.get().getState() == Thread.State.TIMED_WAITING);
            try (Script second = new Script(directory, answer)) {
                late.join();
            }
        }
    }
}
