package io.github.kazahana;

import java.time.Instant;
import java.util.Map;

/**
 * The contents of an ID.
 *
 * @param id the ID
 * @param external its external form, with the service's secret
 * @param time when it was made
 * @param machineId of the lease under which it was made
 * @param sequence within the millisecond
 * @param fallback whether the daemon had no lease when it made the ID
 * @param bitId bits of the machine ID
 * @param bitSeq bits of the sequence
 * @param epoch the time at which the layout begins
 */
public record Inspection(
        long id, String external, Instant time, int machineId, int sequence, boolean fallback, int bitId, int bitSeq, Instant epoch) {
    static Inspection of(Map<String, Object> fields) {
        return new Inspection(
                number(fields, "id"), text(fields, "external"), Instant.ofEpochMilli(number(fields, "timestamp_ms")),
                (int) number(fields, "machine_id"), (int) number(fields, "sequence"), "fallback".equals(text(fields, "kind")),
                (int) number(fields, "bit_id"), (int) number(fields, "bit_seq"), Instant.ofEpochMilli(number(fields, "epoch_ms")));
    }

    private static long number(Map<String, Object> fields, String name) {
        if (fields.get(name) instanceof Long number) {
            return number;
        }
        throw KazahanaException.protocol("the answer to Inspect has no integer " + name);
    }

    private static String text(Map<String, Object> fields, String name) {
        if (fields.get(name) instanceof String text) {
            return text;
        }
        throw KazahanaException.protocol("the answer to Inspect has no text " + name);
    }
}
