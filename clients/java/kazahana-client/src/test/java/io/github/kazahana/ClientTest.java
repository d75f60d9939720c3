package io.github.kazahana;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.lang.reflect.Field;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The client against a scripted daemon: what it sends, and what it does when things go wrong. */
class ClientTest {
    private static final long FIRST = 117360159400092001L;

    private final ExecutorService threads = Executors.newCachedThreadPool();

    @AfterEach
    void end() {
        threads.shutdownNow();
    }

    private <T> CompletableFuture<T> async(Supplier<T> call) {
        return CompletableFuture.supplyAsync(call, threads);
    }

    /** A scripted daemon that counts up from FIRST. */
    static Consumer<Script.Request> counting() {
        AtomicLong next = new AtomicLong(FIRST);
        return request -> {
            switch (request.method()) {
                case "NextID" -> request.reply(next.getAndIncrement());
                case "NextIDs" -> request.reply(LongStream.range(0, (long) request.params().get(0)).mapToObj(i -> next.getAndIncrement()).toList());
                default -> request.reply("pong");
            }
        };
    }

    private static KazahanaException failure(CompletableFuture<?> call) {
        return assertInstanceOf(KazahanaException.class, assertThrows(CompletionException.class, call::join).getCause());
    }

    @Test
    void callsShareAConnectionAndAnswersAreMatchedByMsgid() {
        List<Script.Request> asked = new ArrayList<>();
        try (Script script = new Script(request -> {
            asked.add(request);
            if (asked.size() == 3) {
                for (int i = 2; i >= 0; i--) {
                    asked.get(i).reply(asked.get(i).method().equals("NextID") ? (Object) 5 : asked.get(i).method().equals("Status") ? Map.of("a", 1) : "pong");
                }
            }
        }); Kazahana client = script.options().build()) {
            CompletableFuture<Long> id = async(client::nextId);
            CompletableFuture<Map<String, Object>> status = async(client::status);
            client.ping();
            assertEquals(5, id.join());
            assertEquals(Map.of("a", 1L), status.join());
            assertEquals(1, script.connections.size());
        }
    }

    @Test
    void optionsReachTheDaemonUnderItsNames() {
        try (Script script = new Script(request -> request.reply(switch (request.method()) {
            case "NextIDs" -> List.of(1L);
            case "Bounds" -> List.of(1L, 2L);
            case "NextID", "ToInternal", "Sequence.Next" -> 1L;
            default -> "x";
        })); Kazahana client = script.options().service("orders").regularOnly().timeout(Duration.ofSeconds(20)).build()) {
            client.nextId();
            assertEquals(List.of("NextID", Map.of("service", "orders", "regular_only", true)), untimed(script));
            client.nextIds(1);
            assertEquals(List.of("NextIDs", 1L, Map.of("service", "orders", "regular_only", true)), untimed(script));
            client.toExternal(FIRST);
            assertEquals(List.of("ToExternal", FIRST, Map.of("service", "orders")), last(script));
            client.toInternal("SoAkz6KzylI", Instant.ofEpochMilli(5));
            assertEquals(List.of("ToInternal", "SoAkz6KzylI", Map.of("service", "orders", "latest_ms", 5L)), last(script));
            client.bounds(Instant.ofEpochMilli(5), Instant.ofEpochSecond(0, 6_000_001));
            assertEquals(List.of("Bounds", 5L, 7L, Map.of("service", "orders")), last(script));
            client.ping();
            assertEquals(List.of("Ping"), last(script));
            client.nextSequence("invoices");
            String id = (String) ((Map<?, ?>) last(script).get(2)).get("request_id");
            client.nextSequence("invoices", Map.of("step", 10, "on_max", "error", "request_id", "mine"));
            assertEquals(List.of("Sequence.Next", "invoices", Map.of("step", 10L, "on_max", "error", "request_id", "mine")), last(script));
            assertTrue(id.matches("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"), id);
        }
    }

    private static List<Object> last(Script script) {
        Script.Request request = script.requests.get(script.requests.size() - 1);
        List<Object> all = new ArrayList<>(List.of(request.method()));
        all.addAll(request.params());
        return all;
    }

    /** The daemon gives up a little earlier than the client. */
    private static List<Object> untimed(Script script) {
        List<Object> all = last(script);
        Map<?, ?> options = (Map<?, ?>) all.get(all.size() - 1);
        long timeout = (long) options.remove("timeout_ms");
        assertTrue(timeout > 0 && timeout <= 19_900, Long.toString(timeout));
        return all;
    }

    @Test
    void wrongOptionsAreRefused() {
        for (Consumer<Kazahana.Builder> wrong : List.<Consumer<Kazahana.Builder>>of(
                b -> b.timeout(Duration.ZERO), b -> b.timeout(Duration.ofHours(2)), b -> b.prefetch(-1), b -> b.prefetch(65_537),
                b -> b.maxAge(Duration.ZERO), b -> b.socket("tcp://x"), b -> b.socket(""), b -> b.socket("@x"), b -> b.socket("unix://host/x"))) {
            assertThrows(KazahanaException.InvalidParamsException.class, () -> wrong.accept(Kazahana.client()));
        }
        try (Script script = new Script(counting()); Kazahana client = script.options().build()) {
            for (Object wrong : List.of(new Object(), new java.math.BigDecimal("1.5"), "\ud800", java.math.BigInteger.ONE.shiftLeft(64))) {
                assertThrows(KazahanaException.InvalidParamsException.class, () -> client.call("Ping", wrong), wrong::toString);
            }
            client.ping(); // which the client survives
        }
    }

    @Test
    void aCallEndsAtItsDeadlineAndTheNextIsServed() {
        try (Script script = new Script(request -> {
            if (request.method().equals("Ping")) {
                request.reply("pong");
            }
        }); Kazahana client = script.options().timeout(Duration.ofMillis(300)).build()) {
            long begun = System.nanoTime();
            KazahanaException error = assertThrows(KazahanaException.RequestTimeoutException.class, client::nextId);
            assertEquals(300, error.number("waited_ms").getAsLong());
            assertTrue(System.nanoTime() - begun >= 299_000_000);
            assertTrue(error.getStackTrace()[0].getClassName().startsWith("io.github.kazahana.Channel"), "the stack is another thread's");
            Daemon.until("the next is served", () -> succeeds(client::ping));
            assertEquals(1, script.connections.size());
        }
    }

    static boolean succeeds(Runnable call) {
        try {
            call.run();
            return true;
        } catch (KazahanaException.RequestTimeoutException e) {
            return false; // the machine is slow
        }
    }

    @Test
    void aDeadlineHoldsAgainstADaemonThatSendsAByteAtATime() {
        try (Script script = new Script(request -> {
            request.write(new byte[] {(byte) 0x94, 1, 1, (byte) 0xc0, (byte) 0xc6, 0, 15, -1, -1});
            while (request.socket().isOpen()) {
                request.write(new byte[] {'x'});
                pause();
            }
        }); Kazahana client = script.options().timeout(Duration.ofMillis(200)).build()) {
            assertThrows(KazahanaException.RequestTimeoutException.class, client::nextId);
        }
    }

    private static void pause() {
        try {
            Thread.sleep(5);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    @Test
    void aDaemonThatDoesNotReadBlocksNobodyForLongerThanTheDeadline() {
        try (Script script = new Script(request -> {
            while (request.socket().isOpen()) {
                pause();
            }
        }); Kazahana client = script.options().timeout(Duration.ofMillis(500)).build()) {
            byte[] large = new byte[255 << 10];
            List<CompletableFuture<Object>> calls = Stream.generate(() -> async(() -> client.call("Ping", large))).limit(16).toList();
            calls.forEach(call -> assertEquals("TIMEOUT", failure(call).code()));
        }
    }

    @Test
    void moreCallsAtOnceThanASocketTakes() {
        try (Script script = new Script(counting()); Kazahana client = script.options().build()) {
            byte[] large = new byte[255 << 10];
            List<CompletableFuture<Object>> calls = Stream.generate(() -> async(() -> client.call("Ping", large))).limit(16).toList();
            calls.forEach(call -> assertEquals("pong", call.join()));
        }
    }

    /** A socket may take at once what fills the client's buffer: then no event asks for the rest of the queue. */
    @Test
    void aSocketThatTakesAllGetsTheWholeQueue() throws Exception {
        try (Script script = new Script(counting())) {
            Channel channel = new Channel(Path.of(script.socket()), false);
            Channel.Body ping = remaining -> MessagePack.request("Ping", new byte[256 << 10]);
            channel.call(ping, Duration.ofMinutes(1));
            Connection connection = field(channel, "connection");
            SocketChannel socket = field(connection, "socket");
            socket.setOption(StandardSocketOptions.SO_SNDBUF, 2 * Connection.MAX_UNSENT); // the system may allow less
            ReentrantLock lock = field(channel, "lock");
            Set<Channel.Call> queue = field(channel, "queue");
            lock.lock();
            try {
                Stream.generate(() -> new Channel.Call(ping, Duration.ofMinutes(1))).limit(16).forEach(queue::add); // as while there was no connection
                channel.send();
                assertTrue(queue.isEmpty() || connection.isFull(), queue.size() + " calls are left, and no event to come");
            } finally {
                lock.unlock();
            }
            channel.close();
        }
    }

    @Test
    void aForgottenClientEndsWithItsThread() {
        try (Script script = new Script(counting())) {
            Daemon.assertForgotten(() -> script.options().build().ping());
            Daemon.assertForgotten(() -> script.options().prefetch(8).build().nextId());
        }
    }

    /** A large batch or a large request must not cost its memory for as long as the connection lives. */
    @Test
    void buffersShrinkOnceTheyAreEmpty() throws Exception {
        try (Script script = new Script(request -> {
            if (request.method().equals("Large")) {
                request.reply(new byte[1 << 20]);
            } else {
                request.reply("pong");
            }
        })) {
            Channel channel = new Channel(Path.of(script.socket()), false);
            try {
                channel.call(remaining -> MessagePack.request("Large", new byte[512 << 10]), Duration.ofMinutes(1));
                channel.call(remaining -> MessagePack.request("Ping"), Duration.ofMinutes(1));
                Connection connection = field(channel, "connection");
                byte[] in = field(connection, "in");
                ByteBuffer out = field(connection, "out");
                assertTrue(in.length <= 64 << 10 && out.capacity() <= 64 << 10, in.length + " and " + out.capacity() + " bytes are kept");
            } finally {
                channel.close();
            }
        }
    }

    @SuppressWarnings("unchecked")
    private static <T> T field(Object of, String name) throws ReflectiveOperationException {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return (T) field.get(of);
    }

    /** The daemon would close the connection, and so fail the calls of other threads. */
    @Test
    void aRequestThatIsTooLargeForTheDaemonIsNotSent() {
        try (Script script = new Script(counting()); Kazahana client = script.options().build()) {
            client.call("Ping", new byte[Connection.MAX_REQUEST - 64]);
            KazahanaException error = assertThrows(
                    KazahanaException.InvalidParamsException.class, () -> client.call("Ping", new byte[Connection.MAX_REQUEST]));
            assertTrue(error.getMessage().contains("at most 262144"), error.getMessage());
            assertEquals(1, script.requests.size());
        }
    }

    @Test
    void anInterruptEndsOneCallAndNothingElse() throws Exception {
        AtomicReference<Script.Request> held = new AtomicReference<>();
        try (Script script = new Script(request -> {
            if (request.method().equals("NextID")) {
                held.set(request);
            } else {
                request.reply("pong");
            }
        }); Kazahana client = script.options().build()) {
            AtomicReference<Throwable> thrown = new AtomicReference<>();
            AtomicInteger interrupted = new AtomicInteger();
            Thread caller = new Thread(() -> {
                try {
                    client.nextId();
                } catch (CancellationException e) {
                    thrown.set(e);
                    interrupted.set(Thread.currentThread().isInterrupted() ? 1 : 0);
                    // A channel of Java closes when an interrupted thread uses it. This one stays.
                    try {
                        client.ping();
                    } catch (CancellationException again) {
                        thrown.set(again);
                    }
                }
            });
            caller.start();
            Daemon.until("it waits", () -> held.get() != null);
            caller.interrupt();
            caller.join();
            assertInstanceOf(CancellationException.class, thrown.get());
            assertEquals(1, interrupted.get());
            held.get().reply(7);
            client.ping();
            assertEquals(1, script.connections.size());
        }
    }

    @Test
    void errorsOfTheDaemonAreTyped() {
        try (Script script = new Script(request -> request.fail("CLOCK_BACKWARD: the clock is behind the last ID backward_ms=7000 limit_ms=5000"));
                Kazahana client = script.options().build()) {
            KazahanaException error = assertThrows(KazahanaException.ClockBackwardException.class, client::nextId);
            assertEquals(7000, error.number("backward_ms").getAsLong());
            assertTrue(error.toString().contains("CLOCK_BACKWARD: the clock is behind"), error.toString());
        }
        assertEquals(KazahanaException.class, KazahanaException.parse("NEWS: x").getClass());
        assertEquals("PROTOCOL_ERROR", KazahanaException.parse("no code").code());
        assertEquals(Map.of("a", "1", "b", "x \"y\"\n\u00e9", "c", "\u0007"), KazahanaException.parse("X: m a=1 b=\"x \\\"y\\\"\\n\\u00e9\" c=\"\\a\"").details());
        assertEquals(Map.of("b", "2"), KazahanaException.parse("X: a=1 m b=2").details());
        assertEquals(Map.of(), KazahanaException.parse("X: a=\"1").details());
        KazahanaException.parse("X: a=\"" + "\\x".repeat(20_000)); // no stack overflows
    }

    @Test
    void callsUnderWaySurviveAConnectionThatBreaks() {
        AtomicInteger broken = new AtomicInteger();
        AtomicInteger count = new AtomicInteger();
        Consumer<Script.Request> answer = counting();
        try (Script script = new Script(request -> {
            if (count.incrementAndGet() % 10 == 0 && broken.incrementAndGet() <= 3) {
                request.hangUp();
            } else {
                answer.accept(request);
            }
        }); Kazahana client = script.options().build()) {
            Set<Long> ids = ConcurrentHashMap.newKeySet();
            Stream.generate(() -> async(() -> ids.add(client.nextId()))).limit(50).toList().forEach(CompletableFuture::join);
            assertEquals(50, ids.size());
            assertTrue(broken.get() >= 3);
        }
    }

    @Test
    void aStoppingDaemonAnswersWhatItHasBegunAndTheRestIsAskedElsewhere() {
        Consumer<Script.Request> answer = counting();
        AtomicReference<Script> self = new AtomicReference<>();
        AtomicReference<Script.Request> begun = new AtomicReference<>();
        try (Script script = new Script(request -> {
            if (request.socket() != self.get().connections.get(0)) {
                answer.accept(request);
            } else if (request.method().equals("Status")) {
                begun.set(request);
            } else {
                request.fail("SHUTTING_DOWN: the daemon is stopping: connect again");
            }
        }); Kazahana client = script.options().build()) {
            self.set(script);
            CompletableFuture<Map<String, Object>> status = async(client::status);
            Daemon.until("it is begun", () -> begun.get() != null);
            assertEquals(FIRST, client.nextId());
            assertEquals(2, script.connections.size());
            begun.get().reply(Map.of("still", "here"));
            assertEquals(Map.of("still", "here"), status.join());
            Daemon.until("the old connection closes", () -> isGone(begun.get()));
            assertEquals(FIRST + 1, client.nextId());
        }
    }

    private static boolean isGone(Script.Request request) {
        try {
            request.socket().write(java.nio.ByteBuffer.wrap(new byte[] {(byte) 0xc0}));
            return false;
        } catch (IOException e) {
            return true;
        }
    }

    @Test
    void aDaemonThatComesBackFindsItsCallersWaiting() {
        Path directory = Script.temporary();
        Script first = new Script(directory, counting());
        try (Kazahana client = first.options().build()) {
            client.nextId();
            first.stop();
            List<CompletableFuture<Long>> waiting = Stream.generate(() -> async(client::nextId)).limit(3).toList();
            pause();
            try (Script second = new Script(directory, counting())) {
                waiting.forEach(CompletableFuture::join);
                assertEquals(3, second.requests.size());
            }
        }
    }

    @Test
    void aDaemonThatDoesNotComeBackIsNamedAtTheDeadline() {
        try (Script script = new Script(counting()); Kazahana client = script.options().timeout(Duration.ofMillis(300)).build()) {
            Daemon.until("it is there", () -> succeeds(client::nextId));
            script.stop();
            // A slow machine notices the loss only after some calls.
            Daemon.until("the loss is noticed", () -> !assertThrows(KazahanaException.class, client::nextId).code().equals("TIMEOUT"));
            KazahanaException error = assertThrows(KazahanaException.DaemonUnavailableException.class, client::nextId);
            assertTrue(error.getMessage().contains(script.socket()) && error.getMessage().contains("kazahanad serve"), error.getMessage());
            assertInstanceOf(IOException.class, error.getCause());
        }
    }

    @Test
    void aDaemonThatWasNeverThereIsToldSoon() throws IOException {
        Path directory = Script.temporary();
        Kazahana.Builder options = Kazahana.client().socket(directory.resolve("s.sock").toString()).timeout(Duration.ofHours(1));
        try (Kazahana client = options.build()) {
            KazahanaException error = assertThrows(KazahanaException.DaemonUnavailableException.class, client::nextId);
            assertTrue(error.getMessage().startsWith("there is no socket at " + directory), error.getMessage());
        }
        // One that is starting is waited for: for a second, in which a busy machine may not start it.
        for (int attempt = 1;; attempt++) {
            Files.createDirectories(directory);
            try (Kazahana client = options.build()) {
                CompletableFuture<Long> id = async(client::nextId);
                pause();
                try (Script script = new Script(directory, counting())) {
                    assertEquals(FIRST, id.join());
                    return;
                }
            } catch (CompletionException e) {
                if (attempt == 20 || !(e.getCause() instanceof KazahanaException.DaemonUnavailableException)) {
                    throw e;
                }
            }
        }
    }

    @Test
    void whatWaitingCannotChangeIsToldAtOnce() throws IOException {
        Path file = Files.createTempFile("kz-", "");
        try (Script other = new Script(counting()); Kazahana reached = other.options().build();
                Kazahana client = Kazahana.client().socket(file.toString()).timeout(Duration.ofHours(1)).build()) {
            reached.ping();
            KazahanaException error = assertThrows(KazahanaException.DaemonUnavailableException.class, client::nextId);
            assertTrue(error.getMessage().endsWith("is not a socket"), error.getMessage());
        } finally {
            Files.delete(file);
        }
    }

    @Test
    void addressesAreReadAsInTheTableOfAllClients() {
        for (JsonElement one : Shared.read("socket_addresses.json").getAsJsonArray()) {
            JsonObject row = one.getAsJsonObject();
            String text = row.get("text").getAsString();
            if (row.has("path")) {
                assertEquals(Path.of(row.get("path").getAsString()), DaemonSocket.parse(text, "socket"), text);
                continue;
            }
            KazahanaException error = assertThrows(KazahanaException.InvalidParamsException.class, () -> Kazahana.client().socket(text), text);
            assertTrue(error.getMessage().contains(row.get("refused").getAsString()) && !error.getMessage().contains("secret"), error.getMessage());
        }
    }

    @Test
    void theSocketIsFoundInTheUsualPlaces() throws IOException {
        Path directory = Script.temporary();
        try {
            Map<String, String> runtime = Map.of("XDG_RUNTIME_DIR", directory.toString());
            int nobody = 0x7ffffffe;
            if (!Files.exists(Path.of("/run/kazahana/kazahanad.sock"))) {
                DaemonSocket.Unreachable error = assertThrows(DaemonSocket.Unreachable.class, () -> DaemonSocket.find(runtime, nobody));
                for (String tried : List.of(directory + "/kazahana/kazahanad.sock", "/run/kazahana/kazahanad.sock", "/tmp/kazahana-" + nobody, "kazahanad serve")) {
                    assertTrue(error.getMessage().contains(tried), error.getMessage());
                }
                Path foreign = Files.createDirectory(Path.of("/tmp/kazahana-" + nobody));
                try {
                    Files.createFile(foreign.resolve("kazahanad.sock"));
                    String said = assertThrows(DaemonSocket.Unreachable.class, () -> DaemonSocket.find(runtime, nobody)).getMessage();
                    for (Path ignored : List.of(directory, foreign)) { // su and sudo -E keep the former, and any user can make the latter
                        assertTrue(said.contains("ignored: " + ignored + " belongs to another user"), said);
                    }
                } finally {
                    Daemon.delete(foreign);
                }
            }
            Path there = Files.createDirectory(directory.resolve("kazahana")).resolve("kazahanad.sock");
            Files.createFile(there);
            assertEquals(there, DaemonSocket.find(runtime, DaemonSocket.uid()));
            assertEquals(Path.of("/named"), DaemonSocket.find(Map.of("KAZAHANA_SOCKET", " unix:///named "), nobody));
            assertEquals(Files.getAttribute(directory, "unix:uid"), DaemonSocket.uid());
        } finally {
            Daemon.delete(directory);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"PERMISSION_DENIED", "OVERLOADED"})
    void aClientThatIsTurnedAwayHearsItOnce(String code) {
        AtomicInteger told = new AtomicInteger();
        try (Script script = new Script(request -> {
            if (told.getAndIncrement() == 0) {
                pause(); // the others are sent
                request.fail(code + ": not you");
                request.hangUp();
            }
        }); Kazahana client = script.options().singleAttempt().build()) {
            List<CompletableFuture<Long>> calls = Stream.generate(() -> async(client::nextId)).limit(1).toList();
            calls.forEach(call -> assertEquals(code, failure(call).code()));
        }
    }

    @Test
    void whatTheDaemonCouldNotReadIsToldToAllThatWait() {
        try (Script script = new Script(request -> {
            request.send(java.util.Arrays.asList(1, 0, List.of(1, "PARSE_ERROR: that was no message"), null));
            request.hangUp();
        }); Kazahana client = script.options().build()) {
            assertEquals("PARSE_ERROR", assertThrows(KazahanaException.class, client::nextId).code());
        }
    }

    @Test
    void anotherProgramBehindTheSocketIsAnErrorAtOnce() {
        try (Script script = new Script(request -> request.write("HTTP/1.1 400 Bad Request\r\n\r\n".getBytes())); Kazahana client = script.options().build()) {
            KazahanaException error = assertThrows(KazahanaException.ProtocolException.class, client::nextId);
            assertTrue(error.getMessage().contains("another program"), error.getMessage());
        }
    }

    @Test
    void aSingleAttemptFailsAtOnce() {
        Path directory = Script.temporary();
        Script script = new Script(directory, request -> {
            if (request.method().equals("Ping")) {
                request.hangUp();
            } else {
                request.fail("SHUTTING_DOWN: the daemon is stopping");
            }
        });
        try (Kazahana client = script.options().timeout(Duration.ofHours(1)).singleAttempt().build()) {
            assertThrows(KazahanaException.ShuttingDownException.class, client::nextId);
            assertThrows(KazahanaException.DaemonUnavailableException.class, client::ping);
            assertEquals(2, script.requests.size());
            script.stop();
            assertThrows(KazahanaException.DaemonUnavailableException.class, client::nextId);
        } finally {
            script.close();
        }
    }

    @Test
    void aSocketThatAcceptsAndClosesIsTriedAgainUntilTheDeadline() {
        try (Script script = new Script(Script.Request::hangUp); Kazahana client = script.options().timeout(Duration.ofSeconds(1)).build()) {
            AtomicInteger calls = new AtomicInteger();
            Daemon.until("it is tried again", () -> {
                calls.incrementAndGet();
                assertThrows(KazahanaException.class, client::nextId);
                return script.connections.size() > 2 * calls.get();
            });
            // With pauses of 5 to 200 ms: some tries, and not thousands.
            assertTrue(script.connections.size() < 100 * calls.get(), script.connections.size() + " connections");
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 8})
    void closeFailsTheCallsUnderWayAndLaterOnes(int prefetch) {
        try (Script script = new Script(request -> {})) {
            Kazahana client = script.options().prefetch(prefetch).build();
            List<CompletableFuture<Long>> calls = Stream.generate(() -> async(client::nextId)).limit(3).toList();
            Daemon.until("they wait", () -> script.requests.size() == (prefetch > 0 ? 1 : 3));
            client.close();
            calls.forEach(call -> assertInstanceOf(KazahanaException.ClientClosedException.class, failure(call)));
            assertThrows(KazahanaException.ClientClosedException.class, client::nextId);
            assertThrows(KazahanaException.ClientClosedException.class, () -> client.nextIds(2));
            client.close();
            Daemon.until("the connection closes", () -> isGone(script.requests.get(0)));
        }
    }

    @Test
    void theFakeCountsAndFails() {
        try (FakeKazahana fake = new FakeKazahana()) {
            long first = fake.nextId();
            assertEquals(362387865600256L, first); // as in the other languages
            assertArrayEquals(new long[] {first + 1, first + 2}, fake.nextIds(2));
            assertEquals(Instant.parse("2026-01-02T00:00:00Z"), fake.inspect(first).time());
            assertEquals(fake.inspect(first), fake.inspect(fake.toExternal(first)));
            long[] day = fake.bounds(Instant.parse("2026-01-02T00:00:00Z"), Instant.parse("2026-01-03T00:00:00Z"));
            assertTrue(day[0] <= first && first <= day[1]);
            assertEquals(1, fake.nextSequence("k"));
            assertArrayEquals(new long[] {2, 3}, fake.nextSequences("k", 2));
            assertArrayEquals(new long[] {5, 15}, fake.nextSequences("tens", 2, Map.of("start", 5, "step", 10)));
            assertEquals(7, fake.uuid().version());
            fake.fail(KazahanaException.parse("NO_PROVIDER: as the test wants it"));
            assertThrows(KazahanaException.NoProviderException.class, fake::nextId);
            assertThrows(KazahanaException.InvalidParamsException.class, () -> fake.nextIds(0));
            assertEquals("NextID", fake.calls().get(0));
            fake.ping();
            assertEquals("fake", fake.status().get("version"));
            fake.close();
            assertThrows(KazahanaException.ClientClosedException.class, fake::nextId);
        }
    }

    @Test
    void theFakesLocksAreHeldLostAndGivenBack() {
        FakeKazahana fake = new FakeKazahana();
        List<String> told = new ArrayList<>();
        try (HeldLock lock = fake.lock("k", Duration.ofSeconds(3))) {
            lock.onLost(why -> told.add("released"));
            assertEquals(1, lock.token());
            assertTrue(lock.isHeld());
            KazahanaException held = assertThrows(KazahanaException.LockHeldException.class, () -> fake.lock("k", Duration.ofSeconds(3), Duration.ofHours(1)));
            assertEquals(List.of("fake", 3000L), List.of(held.details().get("owner"), held.number("retry_after_ms").getAsLong()));
        }
        HeldLock lock = fake.lock("k", Duration.ofSeconds(3));
        lock.onLost(why -> told.add(why.details().get("reason")));
        fake.loseLock("k");
        fake.loseLock("k");
        assertTrue(!lock.isHeld());
        assertEquals(3, fake.lock("k", Duration.ofSeconds(3)).token());
        assertThrows(KazahanaException.LockLostException.class, lock::close);
        lock.close();
        assertEquals(List.of("expired"), told);
        assertEquals(List.of("Lock.Acquire", "Lock.Acquire", "Lock.Release", "Lock.Acquire", "Lock.Acquire"), fake.calls());
        fake.fail(KazahanaException.parse("LOCK_FENCED: as the test wants it until_ms=5"));
        assertThrows(KazahanaException.LockFencedException.class, () -> fake.lock("another", Duration.ofSeconds(3)));
    }
}
