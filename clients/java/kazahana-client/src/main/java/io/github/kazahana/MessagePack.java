package io.github.kazahana;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As much of MessagePack as the protocol needs. */
final class MessagePack {
    /** The maximum nesting of values: more than any answer needs, and no danger to the stack. */
    static final int MAX_DEPTH = 32;

    private MessagePack() {}

    /** Encodes a request's method and parameters, which follow its message ID. */
    static byte[] request(String method, Object... params) {
        Writer out = new Writer();
        out.value(method);
        out.value(Arrays.asList(params));
        return out.bytes();
    }

    /** Writes values: null, Boolean, integers of 64 bits, Double, Float, String, byte[], List, and Map, whose null members are left out. */
    static final class Writer {
        private ByteBuffer buffer = ByteBuffer.allocate(64);

        byte[] bytes() {
            return Arrays.copyOf(buffer.array(), buffer.position());
        }

        private ByteBuffer room(int size) {
            if (buffer.remaining() < size) {
                buffer = ByteBuffer.allocate(2 * (buffer.position() + size)).put(buffer.flip());
            }
            return buffer;
        }

        void value(Object value) {
            if (value == null) {
                room(1).put((byte) 0xc0);
            } else if (value instanceof Boolean flag) {
                room(1).put((byte) (flag ? 0xc3 : 0xc2));
            } else if (value instanceof Double || value instanceof Float) {
                room(9).put((byte) 0xcb).putDouble(((Number) value).doubleValue());
            } else if (value instanceof BigInteger big && big.bitLength() == 64 && big.signum() > 0) {
                room(9).put((byte) 0xcf).putLong(big.longValue());
            } else if (value instanceof BigInteger big && big.bitLength() > 63) {
                throw KazahanaException.invalid(big + " is too large: integers have at most 64 bits");
            } else if (value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte
                    || value instanceof BigInteger) {
                integer(((Number) value).longValue());
            } else if (value instanceof String text) {
                byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
                if (!new String(bytes, StandardCharsets.UTF_8).equals(text)) {
                    throw KazahanaException.invalid("a text with half a surrogate pair has no UTF-8");
                }
                header(bytes.length, 0xa0, 31, 0xda);
                room(bytes.length).put(bytes);
            } else if (value instanceof byte[] bytes) {
                header(bytes.length, 0, -1, 0xc5);
                room(bytes.length).put(bytes);
            } else if (value instanceof List<?> list) {
                header(list.size(), 0x90, 15, 0xdc);
                list.forEach(this::value);
            } else if (value instanceof Map<?, ?> map) {
                header((int) map.values().stream().filter(member -> member != null).count(), 0x80, 15, 0xde);
                map.forEach((key, member) -> {
                    if (member != null) {
                        value(key);
                        value(member);
                    }
                });
            } else {
                throw KazahanaException.invalid("a " + value.getClass().getName() + " cannot be sent to the daemon");
            }
        }

        private void integer(long number) {
            if (number >= -32 && number < 128) {
                room(1).put((byte) number);
            } else {
                room(9).put((byte) (number < 0 ? 0xd3 : 0xcf)).putLong(number);
            }
        }

        /** The head of a string, bytes, an array or a map: in one byte up to {@code most}, else a code with 16 bits, or the next with 32. */
        private void header(int length, int fixed, int most, int code) {
            if (length <= most) {
                room(1).put((byte) (fixed | length));
            } else if (length < 0x10000) {
                room(3).put((byte) code).putShort((short) length);
            } else {
                room(5).put((byte) (code + 1)).putInt(length);
            }
        }
    }

    // For the codes 0xc0 to 0xdf: how many bytes follow, besides how many bytes of length. 0xc1 is never used.
    private static final int[] FOLLOW = {
        0, -1, 0, 0, 0, 0, 0, 1, 1, 1, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17, 0, 0, 0, 0, 0, 0, 0
    };
    private static final int[] LENGTH = {
        0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4
    };

    private static long unsigned(byte[] buf, int at, int bytes) {
        long n = 0;
        for (int i = 0; i < bytes; i++) {
            n = n << 8 | buf[at + i] & 0xff;
        }
        return n;
    }

    /** Finds the ends of messages. It looks at each byte once, however the reads cut the messages. */
    static final class Splitter {
        private final int limit;
        private long at; // position in the message: everything before it is known
        private long due = 1; // values still to come

        Splitter(int limit) {
            this.limit = limit;
        }

        /** Returns the end of the message that begins at {@code start}, or -1 if it is incomplete: then ask for the same one again. */
        int end(byte[] buf, int start, int length) {
            while (due > 0 && start + at < length) {
                int here = (int) (start + at);
                int code = buf[here] & 0xff;
                long size = 1;
                long children = 0;
                if (code >= 0x80 && code < 0x90) {
                    children = 2 * (code & 15);
                } else if (code >= 0x90 && code < 0xa0) {
                    children = code & 15;
                } else if (code >= 0xa0 && code < 0xc0) {
                    size += code & 31;
                } else if (code == 0xc1) {
                    throw KazahanaException.protocol("the byte 0xc1 is not MessagePack");
                } else if (code >= 0xc0 && code < 0xe0) {
                    int bytes = LENGTH[code - 0xc0];
                    if (here + 1 + bytes > length) {
                        break;
                    }
                    long n = unsigned(buf, here + 1, bytes);
                    size += bytes + FOLLOW[code - 0xc0];
                    if (code >= 0xdc) {
                        children = code >= 0xde ? 2 * n : n;
                    } else {
                        size += n;
                    }
                }
                at += size;
                due += children - 1;
                if (at + due > limit) {
                    throw KazahanaException.protocol("a message is larger than " + limit + " bytes");
                }
            }
            if (due > 0 || start + at > length) {
                return -1;
            }
            int end = (int) (start + at);
            at = 0;
            due = 1;
            return end;
        }
    }

    /** Reads values of a message that a Splitter has found whole. The results do not refer to the bytes. */
    static final class Reader {
        private final byte[] buf;
        private int at;

        Reader(byte[] buf, int at) {
            this.buf = buf;
            this.at = at;
        }

        int position() {
            return at;
        }

        Object value() {
            return value(0);
        }

        /** Reads an integer of 64 bits; from 2^63 on it is negative. */
        long integer() {
            int code = buf[at] & 0xff;
            if (code < 0x80 || code >= 0xe0) {
                return buf[at++];
            }
            if (code < 0xcc || code > 0xd3) {
                throw KazahanaException.protocol("the daemon answered with something else where an integer is due");
            }
            int bytes = FOLLOW[code - 0xc0];
            long n = unsigned(buf, at + 1, bytes);
            at += 1 + bytes;
            return code < 0xd0 ? n : n << 64 - 8 * bytes >> 64 - 8 * bytes;
        }

        /** Reads the head of an array and returns its length. */
        int array() {
            int code = buf[at++] & 0xff;
            if (code >= 0x90 && code < 0xa0) {
                return code & 15;
            }
            if (code != 0xdc && code != 0xdd) {
                throw KazahanaException.protocol("the daemon answered with something else where an array is due");
            }
            return length(code);
        }

        private int length(int code) {
            int bytes = LENGTH[code - 0xc0];
            at += bytes;
            return (int) unsigned(buf, at - bytes, bytes);
        }

        private Object value(int depth) {
            int code = buf[at] & 0xff;
            if (code < 0x80 || code >= 0xe0 || code >= 0xcc && code < 0xd4) {
                long n = integer();
                return code == 0xcf && n < 0 ? new BigInteger(Long.toUnsignedString(n)) : (Object) n;
            }
            if (code >= 0x90 && code < 0xa0 || code == 0xdc || code == 0xdd) {
                return list(depth);
            }
            at++;
            if (code < 0x90) {
                return map(code & 15, depth);
            }
            if (code < 0xc0) {
                return text(code & 31);
            }
            switch (code) {
                case 0xc0:
                    return null;
                case 0xc2, 0xc3:
                    return code == 0xc3;
                case 0xca:
                    return (double) Float.intBitsToFloat((int) unsigned(buf, (at += 4) - 4, 4));
                case 0xcb:
                    return Double.longBitsToDouble(unsigned(buf, (at += 8) - 8, 8));
                case 0xd9, 0xda, 0xdb:
                    return text(length(code));
                case 0xde, 0xdf:
                    return map(length(code), depth);
                default: // bytes; or an extension, of which no daemon sends any, with its type
                    int length = length(code) + FOLLOW[code - 0xc0];
                    at += length;
                    return Arrays.copyOfRange(buf, at - length, at);
            }
        }

        private String text(int length) {
            at += length;
            return new String(buf, at - length, length, StandardCharsets.UTF_8);
        }

        private List<Object> list(int depth) {
            checkDepth(depth);
            int length = array();
            List<Object> values = new ArrayList<>(length);
            for (int i = 0; i < length; i++) {
                values.add(value(depth + 1));
            }
            return values;
        }

        private Map<String, Object> map(int length, int depth) {
            checkDepth(depth);
            Map<String, Object> members = new LinkedHashMap<>();
            for (int i = 0; i < length; i++) {
                Object key = value(depth + 1);
                if (key instanceof List || key instanceof Map || key instanceof byte[]) {
                    throw KazahanaException.protocol("the key of a map is an array, a map or bytes");
                }
                members.put(String.valueOf(key), value(depth + 1));
            }
            return members;
        }

        private static void checkDepth(int depth) {
            if (depth >= MAX_DEPTH) {
                throw KazahanaException.protocol("values nest deeper than " + MAX_DEPTH);
            }
        }
    }
}
