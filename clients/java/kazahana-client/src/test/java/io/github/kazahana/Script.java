package io.github.kazahana;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Consumer;

/** A daemon that does what the test says: the answer is called for each request. It notes connections and requests. */
final class Script implements AutoCloseable {
    /** A request that came. */
    record Request(long id, String method, List<?> params, SocketChannel socket) {
        void reply(Object result) {
            send(Arrays.asList(1, id, null, result));
        }

        void fail(String text) {
            send(Arrays.asList(1, id, List.of(0, text), null));
        }

        void send(List<?> message) {
            MessagePack.Writer out = new MessagePack.Writer();
            out.value(message);
            write(out.bytes());
        }

        void write(byte[] bytes) {
            try {
                socket.write(ByteBuffer.wrap(bytes));
            } catch (IOException e) {
                // The client has gone.
            }
        }

        void hangUp() {
            try {
                socket.close();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }

    final List<SocketChannel> connections = new CopyOnWriteArrayList<>();
    final List<Request> requests = new CopyOnWriteArrayList<>();
    final List<SocketChannel> left = new CopyOnWriteArrayList<>(); // connections that the client has ended
    private final Path directory;
    private final ServerSocketChannel server;
    private final Consumer<Request> answer;

    Script(Consumer<Request> answer) {
        this(temporary(), answer);
    }

    Script(Path directory, Consumer<Request> answer) {
        this.directory = directory;
        this.answer = answer;
        try {
            server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
            server.bind(UnixDomainSocketAddress.of(socket()));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        daemonThread(this::accept);
    }

    static Path temporary() {
        try {
            return Files.createTempDirectory("kz-");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    String socket() {
        return directory.resolve("s.sock").toString();
    }

    /** Options for a client, with a timeout that is for hangs only. */
    Kazahana.Builder options() {
        return Kazahana.client().socket(socket()).timeout(java.time.Duration.ofMinutes(1));
    }

    private static void daemonThread(Runnable run) {
        Thread thread = new Thread(run);
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() {
        try {
            while (true) {
                SocketChannel socket = server.accept();
                connections.add(socket);
                daemonThread(() -> serve(socket));
            }
        } catch (IOException e) {
            // It is closed.
        }
    }

    private void serve(SocketChannel socket) {
        MessagePack.Splitter splitter = new MessagePack.Splitter(1 << 20);
        byte[] bytes = {};
        ByteBuffer chunk = ByteBuffer.allocate(1 << 16);
        try {
            while (socket.read(chunk.clear()) >= 0) {
                int before = bytes.length;
                bytes = Arrays.copyOf(bytes, before + chunk.flip().remaining());
                chunk.get(bytes, before, chunk.remaining());
                for (int end; bytes.length > 0 && (end = splitter.end(bytes, 0, bytes.length)) > 0; ) {
                    List<?> message = (List<?>) new MessagePack.Reader(bytes, 0).value();
                    Request request = new Request((long) message.get(1), (String) message.get(2), (List<?>) message.get(3), socket);
                    requests.add(request);
                    answer.accept(request);
                    bytes = Arrays.copyOfRange(bytes, end, bytes.length);
                }
            }
            left.add(socket);
        } catch (IOException e) {
            // The client or the script has closed it.
        }
    }

    /** Ends the server and its connections, and leaves the directory. */
    void stop() {
        try {
            server.close();
            Files.deleteIfExists(Path.of(socket()));
            for (SocketChannel each : connections) {
                each.close();
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public void close() {
        stop();
        Daemon.delete(directory);
    }
}
