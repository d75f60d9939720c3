package io.github.kazahana;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * One connection's MessagePack-RPC. It closes once, and never opens again. The channel's lock guards {@link #waiting} and what is sent;
 * only the channel's thread reads. No method blocks.
 */
final class Connection {
    /** The largest answer that is accepted; 65,536 IDs as strings are 1.4 MB. */
    static final int MAX_RESPONSE = 4 << 20;

    /** The largest request that the daemon accepts; it closes the connection of a larger one. */
    static final int MAX_REQUEST = 256 << 10;

    /** With so many unsent bytes no request is added: a frozen daemon must not fill the memory. */
    static final int MAX_UNSENT = 1 << 20;

    private static final int LEAST_BUFFER = 4 << 10;

    /** An empty buffer of more bytes is given back, after a large request or answer. */
    private static final int MOST_BUFFER = 64 << 10;

    static final int HEAD = 7; // [0, msgid, ...: the array's head, the type, and a msgid of 5 bytes
    private static final long MSGIDS = 1L << 32;

    /** A message of the daemon: an answer, that is, an error or the encoded result; or a notification, with its encoded parameters. */
    record Message(String method, int msgid, KazahanaException error, byte[] result) {
        Message(int msgid, KazahanaException error, byte[] result) {
            this(null, msgid, error, result);
        }
    }

    final Path file;
    final Map<Integer, Channel.Call> waiting = new LinkedHashMap<>();
    boolean isRetired;

    /** What the daemon said last, if that refuses all calls that wait. */
    KazahanaException refusal;

    private final SocketChannel socket;
    private final SelectionKey key;
    private final MessagePack.Splitter splitter = new MessagePack.Splitter(MAX_RESPONSE);
    private ByteBuffer out = ByteBuffer.allocate(LEAST_BUFFER);
    private byte[] in = new byte[LEAST_BUFFER];
    private int begin; // of the first message in `in` that is not whole
    private int end; // of what was read
    private long lastId;

    /** Connects to the socket, or if that is null, to the one that is found now. */
    static Connection open(Path named, Selector selector) throws DaemonSocket.Unreachable {
        Path file = named;
        try {
            if (file == null) {
                file = DaemonSocket.find(System.getenv(), DaemonSocket.uid());
            }
            return new Connection(file, selector);
        } catch (DaemonSocket.Unreachable e) {
            throw e;
        } catch (IOException e) {
            throw DaemonSocket.explain(file, e);
        } catch (KazahanaException e) { // KAZAHANA_SOCKET is wrong
            throw new DaemonSocket.Unreachable(true, e.getMessage(), e);
        }
    }

    private Connection(Path file, Selector selector) throws IOException {
        this.file = file;
        socket = SocketChannel.open(StandardProtocolFamily.UNIX);
        try {
            socket.configureBlocking(false);
            // A Unix socket connects at once, or its queue of connections is full.
            if (!socket.connect(UnixDomainSocketAddress.of(file))) {
                throw new IOException("too many connections wait for it");
            }
            key = socket.register(selector, SelectionKey.OP_READ, this);
        } catch (IOException e) {
            socket.close();
            throw e;
        }
    }

    /** Encodes a request's method and parameters, unless the daemon would refuse their size. */
    static byte[] request(String method, Object... params) {
        byte[] request = MessagePack.request(method, params);
        int size = HEAD + request.length;
        if (size > MAX_REQUEST) {
            throw KazahanaException.invalid(method + ": a request of " + size + " bytes is too large: at most " + MAX_REQUEST + " are allowed");
        }
        return request;
    }

    boolean isFull() {
        return out.position() >= MAX_UNSENT;
    }

    /** Adds a request to what is to be sent. */
    void add(Channel.Call call, byte[] body) {
        // The daemon answers with msgid 0 what it could not read.
        do {
            lastId = (lastId + 1) % MSGIDS;
        } while (lastId == 0 || waiting.containsKey((int) lastId));
        call.connection = this;
        call.msgid = (int) lastId;
        waiting.put(call.msgid, call);
        if (out.remaining() < HEAD + body.length) {
            out = ByteBuffer.allocate(2 * (out.position() + HEAD + body.length)).put(out.flip());
        }
        out.putShort((short) 0x9400).put((byte) 0xce).putInt(call.msgid).put(body);
    }

    /** Writes as much as the socket takes. */
    void flush() {
        boolean isBehind = (key.interestOps() & SelectionKey.OP_WRITE) != 0;
        try {
            out.flip();
            socket.write(out);
            out.compact();
        } catch (IOException e) {
            // The daemon has closed the connection. Its last words are still to be read, and then the end.
            out.clear();
        }
        if (out.position() == 0 && out.capacity() > MOST_BUFFER) {
            out = ByteBuffer.allocate(LEAST_BUFFER);
        }
        if (isBehind != out.position() > 0) {
            key.interestOps(SelectionKey.OP_READ | (isBehind ? 0 : SelectionKey.OP_WRITE));
            key.selector().wakeup();
        }
    }

    /** Reads what is here, and returns the messages in it; null at the end. {@code shared} is any buffer. */
    List<Message> read(ByteBuffer shared) throws IOException {
        int count = socket.read(shared.clear());
        if (count < 0) {
            return null;
        }
        if (end + count > in.length) {
            byte[] larger = end - begin + count > in.length / 2 ? new byte[2 * (end - begin + count)] : in;
            System.arraycopy(in, begin, larger, 0, end - begin);
            in = larger;
            end -= begin;
            begin = 0;
        }
        shared.flip().get(in, end, count);
        end += count;
        List<Message> messages = new ArrayList<>();
        for (int next; begin < end && (next = splitter.end(in, begin, end)) >= 0; begin = next) {
            Message message = message(in, begin, next);
            if (message != null) {
                messages.add(message);
            }
        }
        if (begin == end && in.length > MOST_BUFFER) {
            in = new byte[LEAST_BUFFER];
            begin = 0;
            end = 0;
        }
        return messages;
    }

    /** Reads a message. This client expects no requests, and ignores them: then it is null. */
    static Message message(byte[] buf, int begin, int end) {
        MessagePack.Reader reader = new MessagePack.Reader(buf, begin);
        if ((buf[begin] & 0xf0) != 0x90) {
            throw KazahanaException.protocol("the daemon sent no MessagePack-RPC: is another program behind the socket?");
        }
        int length = reader.array();
        long type = length > 0 ? reader.integer() : -1;
        if (type == 0 && length == 4) {
            return null;
        }
        if (type == 2 && length == 3) {
            return new Message(String.valueOf(reader.value()), 0, null, Arrays.copyOfRange(buf, reader.position(), end));
        }
        if (type != 1 || length != 4) {
            throw KazahanaException.protocol("the daemon sent an array that is no message");
        }
        long msgid = reader.integer();
        Object error = reader.value();
        if (error == null) {
            return new Message((int) msgid, null, Arrays.copyOfRange(buf, reader.position(), end));
        }
        // An error is [kind, text]; other servers send a text alone.
        Object text = error instanceof List<?> pair && pair.size() > 1 ? pair.get(1) : error;
        if (text instanceof String described) {
            return new Message((int) msgid, KazahanaException.parse(described), null);
        }
        throw KazahanaException.protocol("an error of the daemon is neither a text nor [kind, text]");
    }

    void close() {
        try {
            socket.close();
        } catch (IOException e) {
            // It is gone in any case.
        }
    }
}
