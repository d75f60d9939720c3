// Bench --daemon PROGRAM --seconds SECONDS: measures the cost of an ID with this client, beside UUID.randomUUID and a bare round trip over
// a Unix socket, and prints JSON. The suite clients of the repository's bench runs it in turn with the other languages' programs.

import io.github.kazahana.Kazahana;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.LongStream;

public final class Bench {
    private static final int THREADS = 64;
    private static final int BATCH = 100;
    private static final int PREFETCH = 64;

    /** How many calls are timed together, where a call costs less than reading the clock. */
    private static final int CHUNK = 256;

    /** The compiler of the running program needs more than one run. */
    private static final int WARM_UPS = 3;

    /** The request for one ID; its answer has 13 bytes. */
    private static final byte[] SINGLE = {(byte) 0x94, 0, 1, (byte) 0xa6, 'N', 'e', 'x', 't', 'I', 'D', (byte) 0x90};

    private static final int ANSWER = 13;

    private interface Call {
        void make() throws IOException;
    }

    private record Sample(double perSecond, long[] took) {}

    private interface Row {
        Sample run() throws Exception;
    }

    private final long each; // in ns
    private final List<String> table = new ArrayList<>();

    private Bench(double seconds) {
        each = (long) (seconds * 1e9);
    }

    public static void main(String[] args) throws Exception {
        if (args.length != 4 || !args[0].equals("--daemon") || !args[2].equals("--seconds")) {
            throw new IllegalArgumentException("usage: Bench --daemon PROGRAM --seconds SECONDS");
        }
        Path directory = Files.createTempDirectory("kz-");
        // By default the daemon gives 256 IDs a millisecond, fewer than a prefetched batch.
        Process daemon = new ProcessBuilder(args[1], "serve", "--config", "none", "--socket", directory + "/k.sock", "--state-dir", directory.toString(),
                "--max-throughput-per-ms", "65536", "--provider", "sqlite:" + directory + "/leases.db?bit_seq=16").inheritIO().start();
        try {
            new Bench(Double.parseDouble(args[3])).measure(directory);
        } finally {
            daemon.destroy();
            daemon.waitFor();
            try (var files = Files.walk(directory)) {
                files.sorted(java.util.Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
            }
        }
    }

    private void measure(Path directory) throws Exception {
        Kazahana.Builder options = Kazahana.client().socket(directory + "/k.sock");
        try (ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
            server.bind(UnixDomainSocketAddress.of(directory.resolve("e.sock")));
            Thread echoes = new Thread(() -> echo(server));
            echoes.setDaemon(true);
            echoes.start();
            try (SocketChannel echo = SocketChannel.open(server.getLocalAddress()); Kazahana plain = options.build();
                    Kazahana ahead = options.prefetch(PREFETCH).build()) {
                while (plain.inspect(plain.nextId()).fallback()) {
                    Thread.sleep(10); // the daemon has no lease yet
                }
                ByteBuffer answer = ByteBuffer.allocate(ANSWER);
                add("echo", () -> repeat(1, () -> {
                    echo.write(ByteBuffer.wrap(SINGLE));
                    for (answer.clear(); answer.hasRemaining(); ) {
                        echo.read(answer);
                    }
                }));
                add("single", () -> repeat(1, plain::nextId));
                add("pipelined, " + THREADS + " threads", () -> together(plain::nextId));
                add("batch of " + BATCH, () -> repeat(BATCH, () -> plain.nextIds(BATCH)));
                add("uuid4", () -> tight(UUID::randomUUID));
                add("prefetch " + PREFETCH, () -> tight(ahead::nextId));
            }
        }
        System.out.println("[" + String.join(",", table) + "]");
    }

    /** Answers with as many bytes as the daemon would. */
    private static void echo(ServerSocketChannel server) {
        ByteBuffer in = ByteBuffer.allocate(1 << 12);
        try (SocketChannel socket = server.accept()) {
            while (socket.read(in.clear()) >= 0) {
                socket.write(ByteBuffer.wrap(new byte[ANSWER]));
            }
        } catch (IOException e) {
            // The other end is closed.
        }
    }

    private void add(String name, Row row) throws Exception {
        for (int i = 0; i < WARM_UPS; i++) {
            row.run();
        }
        Sample s = row.run();
        Arrays.sort(s.took);
        table.add(String.format(Locale.ROOT, "{\"row\":\"%s\",\"per_second\":%f,\"p50_us\":%f,\"p99_us\":%f}",
                name, s.perSecond, s.took[s.took.length / 2] / 1e3, s.took[s.took.length * 99 / 100] / 1e3));
    }

    /** Calls for a while, and notes how long each call took. */
    private Sample repeat(int ids, Call call) throws IOException {
        LongStream.Builder took = LongStream.builder();
        long begin = System.nanoTime();
        long calls = 0;
        long before = begin;
        for (; before - begin < each; calls++) {
            call.make();
            long now = System.nanoTime();
            took.add(now - before);
            before = now;
        }
        return new Sample(calls * ids * 1e9 / (before - begin), took.build().toArray());
    }

    /** Is repeat for calls that cost less than reading the clock: a latency is the mean of a chunk. */
    private Sample tight(Call call) throws IOException {
        Sample s = repeat(CHUNK, () -> {
            for (int i = 0; i < CHUNK; i++) {
                call.make();
            }
        });
        Arrays.setAll(s.took, i -> s.took[i] / CHUNK);
        return s;
    }

    /** Makes many threads call over one connection. */
    private Sample together(Call call) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        try {
            List<Future<Sample>> running = new ArrayList<>();
            for (int i = 0; i < THREADS; i++) {
                running.add(threads.submit(() -> repeat(1, call)));
            }
            double perSecond = 0;
            LongStream took = LongStream.empty();
            for (Future<Sample> each : running) {
                perSecond += each.get().perSecond;
                took = LongStream.concat(took, LongStream.of(each.get().took));
            }
            return new Sample(perSecond, took.toArray());
        } finally {
            threads.shutdown();
        }
    }
}
