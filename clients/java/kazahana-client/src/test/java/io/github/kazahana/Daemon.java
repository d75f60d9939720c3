package io.github.kazahana;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.Stream;

/** A real daemon with a state directory of its own, which can be killed and started again. KAZAHANAD names its binary. */
public final class Daemon implements AutoCloseable {
    private static final long PATIENCE = TimeUnit.SECONDS.toNanos(120);

    private final Path directory;
    private final List<String> command = new ArrayList<>();
    private Process process;

    public Daemon(String... flags) {
        try {
            directory = Files.createTempDirectory("kz-");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        String binary = System.getenv("KAZAHANAD");
        if (binary == null) {
            throw new IllegalStateException("KAZAHANAD is not set: clients/java/scripts/test builds a daemon and sets it");
        }
        // The kernel ends the daemon when the tests are killed.
        if (Files.exists(Path.of("/usr/bin/setpriv"))) {
            command.addAll(List.of("setpriv", "--pdeathsig", "KILL"));
        }
        command.addAll(List.of(binary, "serve", "--config", "none", "--socket", socket(), "--state-dir", directory.resolve("state").toString()));
        command.addAll(List.of("--startup-wait", "60s", "--provider-timeout", "60s")); // a busy machine is no failure
        command.addAll(List.of(flags));
        start();
    }

    public String socket() {
        return directory.resolve("k.sock").toString();
    }

    public Kazahana client() {
        return Kazahana.client().socket(socket()).timeout(Duration.ofMinutes(1)).build();
    }

    /** Starts the daemon, and returns when it answers. */
    public void start() {
        try {
            Path log = directory.resolve("log");
            process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log.toFile()).start();
            until("the daemon answers", () -> {
                if (!process.isAlive()) {
                    throw new IllegalStateException("the daemon has ended: " + read(log));
                }
                try (Kazahana probe = Kazahana.client().socket(socket()).singleAttempt().build()) {
                    probe.ping();
                    return true;
                } catch (KazahanaException.DaemonUnavailableException e) {
                    return false;
                }
            });
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static String read(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    public void kill() {
        process.destroyForcibly().onExit().join();
    }

    /** Stops it from running, as a machine that hangs, or lets it go on. */
    public void freeze(boolean isFrozen) {
        try {
            new ProcessBuilder("kill", isFrozen ? "-STOP" : "-CONT", Long.toString(process.pid())).start().onExit().join();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Tells it to stop, and waits for its end. */
    public void stop() {
        process.destroy();
        process.onExit().join();
    }

    @Override
    public void close() {
        kill();
        delete(directory);
    }

    static void delete(Path directory) {
        try (Stream<Path> all = Files.walk(directory)) {
            all.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Waits for something that will come true; only a hang lets it fail. */
    static void until(String what, BooleanSupplier condition) {
        long end = System.nanoTime() + PATIENCE;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() - end > 0) {
                throw new AssertionError("in vain: " + what);
            }
            try {
                Thread.sleep(5);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    /** Makes a call with a client that nothing closes, and waits until the client's thread ends. */
    public static void assertForgotten(Runnable call) {
        Set<Thread> before = clientThreads();
        call.run();
        Set<Thread> made = clientThreads();
        made.removeAll(before);
        if (made.isEmpty() || !made.stream().allMatch(Thread::isDaemon)) {
            throw new AssertionError("a client should run a daemon thread: " + made);
        }
        until("the threads of a forgotten client end", () -> {
            System.gc();
            return made.stream().noneMatch(Thread::isAlive);
        });
    }

    private static Set<Thread> clientThreads() {
        Set<Thread> all = new HashSet<>(Thread.getAllStackTraces().keySet());
        all.removeIf(thread -> !thread.getName().equals("kazahana"));
        return all;
    }
}
