package io.github.kazahana;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * A thousand virtual threads on a single carrier wait for one daemon, which answers when it has all requests. A thread that waited
 * without leaving the carrier would keep the others from asking. JAVA_VIRTUAL names a java of version 21 or later: scripts/setup gets one.
 */
class VirtualThreadsTest {
    private static final int THREADS = 1000;

    private static final int LOCKS = 20; // each has a thread of its own

    @ParameterizedTest
    @ValueSource(ints = {0, 64})
    void waitingPinsNoCarrier(int prefetch) throws Exception {
        waitingPinsNoCarrier("IDs", prefetch, prefetch > 0 ? 1 : THREADS, ClientTest.counting(), THREADS);
    }

    @Test
    void waitingForLocksPinsNoCarrier() throws Exception {
        AtomicLong tokens = new AtomicLong();
        waitingPinsNoCarrier("locks", 0, LOCKS, request -> request.reply(Map.of("lease_id", "lease", "owner_id", "me",
                "fencing_token", tokens.incrementAndGet(), "state", "ACTIVE", "expires_in_ms", 600_000)), LOCKS);
    }

    /** The daemon answers when so many requests wait, and from then on at once. */
    private static void waitingPinsNoCarrier(String what, int prefetch, int all, Consumer<Script.Request> answer, int due) throws Exception {
        String java = System.getenv("JAVA_VIRTUAL");
        assumeTrue(java != null && !java.isEmpty(), "there is no java of version 21: scripts/setup gets one");
        List<Script.Request> waiting = Collections.synchronizedList(new ArrayList<>());
        AtomicInteger came = new AtomicInteger();
        try (Script script = new Script(request -> {
            waiting.add(request);
            if (came.incrementAndGet() >= all) {
                synchronized (waiting) {
                    waiting.forEach(answer);
                    waiting.clear();
                }
            }
        })) {
            Process process = new ProcessBuilder(java, "-Djdk.virtualThreadScheduler.parallelism=1", "-Djdk.virtualThreadScheduler.maxPoolSize=1",
                    "-cp", System.getProperty("java.class.path"), VirtualThreadsTest.class.getName(), script.socket(), Integer.toString(prefetch), what)
                    .redirectErrorStream(true).start();
            String said = new String(process.getInputStream().readAllBytes()).strip();
            assertEquals(0, process.waitFor(), said);
            assertTrue(said.matches(due + " " + what + ", none twice, on one carrier of Java (2[1-9]|[3-9][0-9]).*"), said);
        }
    }

    /** Runs in the newer Java: compiled for 17, it finds virtual threads by their names. */
    public static void main(String[] args) throws Exception {
        ExecutorService threads = (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        Set<Long> ids = ConcurrentHashMap.newKeySet();
        boolean isLock = args[2].equals("locks");
        try (Kazahana client = Kazahana.client().socket(args[0]).prefetch(Integer.parseInt(args[1])).timeout(Duration.ofMinutes(1)).build()) {
            List<Future<?>> calls = new ArrayList<>();
            for (int i = 0; i < (isLock ? LOCKS : THREADS); i++) {
                calls.add(threads.submit(() -> {
                    if (!ids.add(isLock ? token(client) : client.nextId())) {
                        throw new IOException("one came twice");
                    }
                    return null;
                }));
            }
            for (Future<?> call : calls) {
                call.get(2, TimeUnit.MINUTES);
            }
        }
        System.out.println(ids.size() + " " + args[2] + ", none twice, on one carrier of Java " + System.getProperty("java.version"));
        threads.shutdown();
    }

    private static long token(Kazahana client) {
        try (HeldLock lock = client.lock("k", Duration.ofMinutes(10), Duration.ofMinutes(1))) {
            return lock.token();
        }
    }
}
