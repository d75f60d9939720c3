// Asker KIND SOCKET FILE: asks for IDs until its standard input ends, and writes what it got.
//
// KIND is threads (half of them of a client that fetches ahead) or prefetch (all of them).
// storm_test.go says what a record of the file looks like.

import io.github.kazahana.Kazahana;
import io.github.kazahana.KazahanaException;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Supplier;

public final class Asker {
    private static final int THREADS = 8;
    private static final int AHEAD = 64;
    private static final int LARGEST = 100;
    private static final long PREFETCHED = 1L << 63;
    private static final long FLUSH_NS = 50_000_000;

    private static volatile boolean isOver;

    private final OutputStream out;
    private long flushed;

    private Asker(OutputStream out) {
        this.out = out;
    }

    /** System.nanoTime is the monotonic clock of the machine, on Linux. */
    private synchronized void add(long head, long sent, long[] ids) throws IOException {
        long received = System.nanoTime();
        ByteBuffer record = ByteBuffer.allocate(8 * (3 + ids.length)).order(ByteOrder.LITTLE_ENDIAN);
        record.putLong(head | ids.length).putLong(sent).putLong(received);
        for (long id : ids) {
            record.putLong(id);
        }
        out.write(record.array());
        if (received - flushed > FLUSH_NS) {
            flushed = received;
            out.flush();
        }
    }

    private void ask(long head, Supplier<long[]> next) {
        try {
            while (!isOver) {
                long sent = System.nanoTime();
                long[] ids = {};
                try {
                    ids = next.get();
                } catch (KazahanaException e) {
                    System.err.println(e);
                }
                add(head, sent, ids);
            }
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private static long[] some(Kazahana client) {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        return random.nextBoolean() ? new long[] {client.nextId()} : client.nextIds(1 + random.nextInt(LARGEST));
    }

    private static long[] ahead(Kazahana client) {
        long[] ids = new long[LARGEST];
        for (int i = 0; i < LARGEST; i++) {
            ids[i] = client.nextId();
        }
        return ids;
    }

    public static void main(String[] args) throws Exception {
        Kazahana.Builder options = Kazahana.client().socket(args[1]).timeout(Duration.ofMinutes(1));
        try (Kazahana plain = options.build(); Kazahana fetching = options.prefetch(AHEAD).build();
                OutputStream out = new BufferedOutputStream(Files.newOutputStream(Path.of(args[2])), 1 << 20)) {
            Asker asker = new Asker(out);
            List<Thread> threads = new ArrayList<>();
            for (int caller = 0; caller < THREADS; caller++) {
                boolean isAhead = args[0].equals("prefetch") || caller < THREADS / 2;
                long head = (isAhead ? PREFETCHED : 0) | (long) caller << 32;
                threads.add(new Thread(() -> asker.ask(head, () -> isAhead ? ahead(fetching) : some(plain))));
            }
            threads.forEach(Thread::start);
            while (System.in.read() >= 0) {
                // Nothing is said on it.
            }
            isOver = true;
            for (Thread thread : threads) {
                thread.join();
            }
        }
    }
}
