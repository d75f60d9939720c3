package io.github.kazahana;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.math.BigInteger;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The vectors that all languages share. */
final class Shared {
    private Shared() {}

    static JsonElement read(String name) {
        try {
            return JsonParser.parseString(Files.readString(Path.of("../../../testdata", name)));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    static byte[] hex(JsonObject of, String name) {
        return HexFormat.of().parseHex(of.get(name).getAsString());
    }

    static String text(JsonObject of, String name) {
        return of.get(name).getAsString();
    }

    /** A value as the reader returns it: {"$int": "..."} is an integer. */
    static Object revive(JsonElement json) {
        if (json == null || json.isJsonNull()) {
            return null;
        }
        if (json instanceof JsonArray array) {
            List<Object> values = new ArrayList<>();
            array.forEach(each -> values.add(revive(each)));
            return values;
        }
        if (json instanceof JsonObject object) {
            if (object.has("$int")) {
                BigInteger n = object.get("$int").getAsBigInteger();
                return n.bitLength() > 63 ? n : (Object) n.longValue();
            }
            Map<String, Object> members = new LinkedHashMap<>();
            object.entrySet().forEach(member -> members.put(member.getKey(), revive(member.getValue())));
            return members;
        }
        if (json.getAsJsonPrimitive().isBoolean()) {
            return json.getAsBoolean();
        }
        if (json.getAsJsonPrimitive().isString()) {
            return json.getAsString();
        }
        double number = json.getAsDouble();
        return number == Math.rint(number) ? (Object) json.getAsLong() : number;
    }
}
