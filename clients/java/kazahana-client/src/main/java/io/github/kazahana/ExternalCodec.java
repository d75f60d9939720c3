package io.github.kazahana;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.util.Base64;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * Turns IDs into external IDs and back, without a daemon: 64 bits, permuted, as 11 characters of base64url. Anyone who knows the secret
 * can decode every external ID.
 */
public final class ExternalCodec {
    private static final String KEY_INFO = "kazahana external id v1";
    private static final int LENGTH = 11;

    // Multipliers of moremur (Pelle Evensen, 2019), a permutation of 64 bits, and their inverses modulo 2^64.
    private static final long A = 0x3c79ac492ba7b653L;
    private static final long B = 0x1c69b3f74ac4ae35L;
    private static final long A_INVERSE = 0xc09c5fe5bd6dfddbL;
    private static final long B_INVERSE = 0xc47c8f6b6bafb41dL;

    private static final int XTEA_CYCLES = 32;
    private static final int XTEA_DELTA = 0x9e3779b9;

    private final int[] key; // null: without a secret

    private ExternalCodec(int[] key) {
        this.key = key;
    }

    /**
     * Returns the codec without a secret. It hides the sequence from a casual look; it is not encryption.
     *
     * @return the codec
     */
    public static ExternalCodec plain() {
        return new ExternalCodec(null);
    }

    /**
     * Returns the codec with a secret of the service {@code default}.
     *
     * @param secret the bytes of the daemon's secret file, without one trailing newline
     * @return the codec
     */
    public static ExternalCodec withSecret(byte[] secret) {
        return withSecret(secret, "default");
    }

    /**
     * Returns the codec with a service's secret. The service is part of the key, so that services that share a secret cannot be linked.
     *
     * @param secret the bytes of the daemon's secret file, without one trailing newline
     * @param service the service's name
     * @return the codec
     */
    public static ExternalCodec withSecret(byte[] secret, String service) {
        if (secret.length == 0) {
            throw KazahanaException.invalid("the secret for external IDs is empty");
        }
        String info = service.equals("default") ? KEY_INFO : KEY_INFO + "/" + service;
        // HKDF: extracted without a salt, expanded to one block.
        byte[] block = hmac(hmac(new byte[32], secret), (info + "\1").getBytes(StandardCharsets.UTF_8));
        ByteBuffer bytes = ByteBuffer.wrap(block);
        return new ExternalCodec(new int[] {bytes.getInt(), bytes.getInt(), bytes.getInt(), bytes.getInt()});
    }

    private static byte[] hmac(byte[] key, byte[] data) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            return mac.doFinal(data);
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("this Java has no HmacSHA256", e);
        }
    }

    /**
     * Returns the external ID.
     *
     * @param id 0 to 2^63-1
     * @return 11 characters
     */
    public String encode(long id) {
        if (id < 0) {
            throw KazahanaException.invalid(id + " is no ID: those are 0 to 2^63-1");
        }
        long block = key == null ? moremur(id) : encrypt(id);
        return Base64.getUrlEncoder().withoutPadding().encodeToString(ByteBuffer.allocate(8).putLong(block).array());
    }

    /**
     * Returns the ID. About half of all forged strings pass: compare the ID's time with the present.
     *
     * @param external 11 characters
     * @return the ID
     * @throws KazahanaException.InvalidExternalIdException for a string that {@link #encode} cannot have made
     */
    public long decode(String external) {
        if (external.length() != LENGTH) {
            throw wrong(external, LENGTH + " characters are right");
        }
        byte[] bytes;
        try {
            bytes = Base64.getUrlDecoder().decode(external);
        } catch (IllegalArgumentException e) {
            throw wrong(external, "it is not base64url");
        }
        // The last character has bits to spare, which must be 0.
        if (bytes.length != 8 || !Base64.getUrlEncoder().withoutPadding().encodeToString(bytes).equals(external)) {
            throw wrong(external, "it is not base64url in its one spelling");
        }
        long block = ByteBuffer.wrap(bytes).getLong();
        long id = key == null ? unmoremur(block) : decrypt(block);
        if (id < 0) {
            throw wrong(external, "it does not decode to an ID");
        }
        return id;
    }

    private static KazahanaException wrong(String external, String why) {
        String shown = external.substring(0, Math.min(external.length(), 64));
        return KazahanaException.of("INVALID_EXTERNAL_ID", "\"" + shown + "\" is not an external ID: " + why, null);
    }

    private static long moremur(long x) {
        x = (x ^ x >>> 27) * A;
        x = (x ^ x >>> 33) * B;
        return x ^ x >>> 27;
    }

    private static long unmoremur(long x) {
        x = unshift(x) * B_INVERSE;
        x = (x ^ x >>> 33) * A_INVERSE;
        return unshift(x);
    }

    /** Inverts x ^= x >>> 27. */
    private static long unshift(long x) {
        return x ^ x >>> 27 ^ x >>> 54;
    }

    private static int half(int v) {
        return (v << 4 ^ v >>> 5) + v;
    }

    private long encrypt(long block) {
        int high = (int) (block >>> 32);
        int low = (int) block;
        int sum = 0;
        for (int i = 0; i < XTEA_CYCLES; i++) {
            high += half(low) ^ sum + key[sum & 3];
            sum += XTEA_DELTA;
            low += half(high) ^ sum + key[sum >>> 11 & 3];
        }
        return (long) high << 32 | low & 0xffffffffL;
    }

    private long decrypt(long block) {
        int high = (int) (block >>> 32);
        int low = (int) block;
        int sum = XTEA_DELTA * XTEA_CYCLES;
        for (int i = 0; i < XTEA_CYCLES; i++) {
            low -= half(high) ^ sum + key[sum >>> 11 & 3];
            sum -= XTEA_DELTA;
            high -= half(low) ^ sum + key[sum & 3];
        }
        return (long) high << 32 | low & 0xffffffffL;
    }
}
