package io.github.kazahana;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** What all clients share: recorded exchanges, hostile answers, external IDs. */
class SharedVectorsTest {
    /** This client has no methods for these. */
    private static final Set<String> ABSENT = Set.of("Placement.Resolve");

    static Stream<JsonObject> exchanges() {
        return rows("wire_exchanges.json");
    }

    static Stream<JsonObject> hostile() {
        return rows("hostile_answers.json");
    }

    private static Stream<JsonObject> rows(String name) {
        JsonArray all = Shared.read(name).getAsJsonArray();
        assertTrue(all.size() >= 20);
        return StreamSupport.stream(all.spliterator(), false).map(each -> each.getAsJsonObject());
    }

    @ParameterizedTest
    @MethodSource("exchanges")
    void recordedExchange(JsonObject exchange) {
        List<?> request = (List<?>) new MessagePack.Reader(Shared.hex(exchange, "request_hex"), 0).value();
        List<?> params = (List<?>) Shared.revive(exchange.get("params"));
        byte[] body = MessagePack.request(Shared.text(exchange, "method"), params.toArray());
        MessagePack.Reader reader = new MessagePack.Reader(body, 0);
        assertEquals(request.subList(2, 4), List.of(reader.value(), reader.value()));

        byte[] response = Shared.hex(exchange, "response_hex");
        assertEquals(response.length, new MessagePack.Splitter(Connection.MAX_RESPONSE).end(response, 0, response.length));
        Connection.Message answer = Connection.message(response, 0, response.length);
        if (exchange.get("error") instanceof JsonObject error) {
            assertEquals(Shared.text(error, "code"), answer.error().code());
            assertTrue(answer.error().getMessage().startsWith(Shared.text(error, "message")), answer.error().getMessage());
            assertEquals(Shared.revive(error.get("details")), answer.error().details());
        } else {
            assertNull(answer.error());
            assertEquals(request.get(1), Integer.toUnsignedLong(answer.msgid()));
            assertEquals(Shared.revive(exchange.get("result")), new MessagePack.Reader(answer.result(), 0).value());
        }
    }

    private static Object call(Kazahana client, String method) {
        return switch (method) {
            case "NextID" -> client.nextId();
            case "NextIDs" -> client.nextIds(2);
            case "Inspect" -> client.inspect(1);
            case "ToInternal" -> client.toInternal("x");
            case "UUID" -> client.uuid();
            case "Status" -> client.status();
            case "Lock.Acquire" -> client.lock("k", Duration.ofSeconds(1));
            default -> throw new IllegalArgumentException(method);
        };
    }

    @ParameterizedTest
    @MethodSource("hostile")
    void hostileAnswerIsAnErrorOfTheProtocol(JsonObject row) {
        String method = Shared.text(row, "method");
        if (ABSENT.contains(method)) {
            return;
        }
        byte[] message = Shared.hex(row, "message_hex");
        try (Script script = new Script(request -> request.write(message)); Kazahana client = script.options().build()) {
            KazahanaException error = assertThrows(KazahanaException.class, () -> call(client, method));
            if (!row.has("any_error")) {
                assertInstanceOf(KazahanaException.ProtocolException.class, error);
            }
        }
    }

    @Test
    void mutatedMessagesAreAnswersOrErrorsOfTheProtocol() {
        List<byte[]> corpus = Stream.concat(
                hostile().map(row -> Shared.hex(row, "message_hex")), exchanges().map(row -> Shared.hex(row, "response_hex"))).toList();
        for (int seed = 0; seed < 20_000; seed++) {
            Random random = new Random(seed);
            byte[] bytes = corpus.get(random.nextInt(corpus.size())).clone();
            for (int n = random.nextInt(6); n > 0; n--) {
                bytes[random.nextInt(bytes.length)] = (byte) random.nextInt();
            }
            try {
                int end = new MessagePack.Splitter(Connection.MAX_RESPONSE).end(bytes, 0, bytes.length - random.nextInt(2));
                Connection.Message answer = end < 0 ? null : Connection.message(bytes, 0, end);
                if (answer != null && answer.error() == null) {
                    Object value = new MessagePack.Reader(answer.result(), 0).value();
                    if (value instanceof java.util.Map<?, ?>) {
                        call(answering(value), "Inspect");
                    }
                    Client.identifiers(answer.result(), 3);
                }
            } catch (KazahanaException e) {
                assertEquals("PROTOCOL_ERROR", e.code(), "seed " + seed);
            } catch (RuntimeException e) {
                throw new AssertionError("seed " + seed, e);
            }
        }
    }

    /** Reads one result as a call does. */
    private static Kazahana answering(Object result) {
        return new Calls(null) {
            @Override
            public Object call(String method, Object... params) {
                return result;
            }

            @Override
            public long nextId() {
                throw new UnsupportedOperationException();
            }

            @Override
            public long[] nextIds(int count) {
                throw new UnsupportedOperationException();
            }

            @Override
            public HeldLock lock(String key, Duration ttl, Duration wait) {
                throw new UnsupportedOperationException();
            }

            @Override
            public void close() {}
        };
    }

    private static void agrees(ExternalCodec codec, JsonArray vectors) {
        assertTrue(vectors.size() > 10);
        vectors.forEach(each -> {
            JsonObject vector = each.getAsJsonObject();
            long id = Long.parseLong(Shared.text(vector, "id"));
            assertEquals(Shared.text(vector, "external"), codec.encode(id));
            assertEquals(id, codec.decode(Shared.text(vector, "external")));
        });
    }

    @Test
    void externalIds() {
        JsonObject golden = Shared.read("external_ids.json").getAsJsonObject();
        assertEquals("SoAkz6KzylI", ExternalCodec.plain().encode(117360159433646374L)); // of the READMEs
        agrees(ExternalCodec.plain(), golden.getAsJsonArray("plain"));
        golden.getAsJsonArray("keyed").forEach(each -> {
            JsonObject keyed = each.getAsJsonObject();
            byte[] secret = Shared.text(keyed, "secret").getBytes(StandardCharsets.UTF_8);
            String service = keyed.has("service") ? Shared.text(keyed, "service") : "default";
            agrees(ExternalCodec.withSecret(secret, service), keyed.getAsJsonArray("vectors"));
        });
        golden.getAsJsonArray("rejected").forEach(each -> {
            JsonObject row = each.getAsJsonObject();
            ExternalCodec codec = row.has("secret")
                    ? ExternalCodec.withSecret(Shared.text(row, "secret").getBytes(StandardCharsets.UTF_8)) : ExternalCodec.plain();
            assertThrows(KazahanaException.InvalidExternalIdException.class, () -> codec.decode(Shared.text(row, "external")), each::toString);
        });
        assertThrows(KazahanaException.InvalidParamsException.class, () -> ExternalCodec.plain().encode(-1));
        assertThrows(KazahanaException.InvalidParamsException.class, () -> ExternalCodec.withSecret(new byte[0]));
    }

    @Test
    void inspectionsOfARealDaemon() {
        try (Daemon daemon = new Daemon(); Kazahana client = daemon.client()) {
            JsonArray inspected = Shared.read("external_ids.json").getAsJsonObject().getAsJsonArray("inspected");
            assertTrue(inspected.size() > 20);
            inspected.forEach(each -> {
                JsonObject want = each.getAsJsonObject();
                long id = Long.parseLong(Shared.text(want, "id"));
                assertEquals(new Inspection(id, Shared.text(want, "external"), Instant.ofEpochMilli(want.get("timestamp_ms").getAsLong()),
                        want.get("machine_id").getAsInt(), want.get("sequence").getAsInt(), Shared.text(want, "kind").equals("fallback"),
                        want.get("bit_id").getAsInt(), want.get("bit_seq").getAsInt(), Instant.ofEpochMilli(want.get("epoch_ms").getAsLong())),
                        client.inspect(id));
            });
        }
    }
}
