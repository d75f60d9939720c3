package io.github.kazahana.shardingsphere;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.kazahana.Daemon;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.shardingsphere.infra.algorithm.core.context.AlgorithmSQLContext;
import org.apache.shardingsphere.infra.algorithm.core.exception.AlgorithmInitializationException;
import org.apache.shardingsphere.infra.algorithm.keygen.core.KeyGenerateAlgorithm;
import org.apache.shardingsphere.infra.spi.type.typed.TypedSPILoader;
import org.junit.jupiter.api.Test;

/** The generator as ShardingSphere finds it by its type, with IDs of a real daemon. */
class KazahanaKeyGenerateAlgorithmTest {
    private static KeyGenerateAlgorithm find(String... properties) {
        Properties all = new Properties();
        for (int i = 0; i < properties.length; i += 2) {
            all.setProperty(properties[i], properties[i + 1]);
        }
        return TypedSPILoader.getService(KeyGenerateAlgorithm.class, "KAZAHANA", all);
    }

    @Test
    void keysAreIdsOfTheDaemon() {
        try (Daemon daemon = new Daemon()) {
            AlgorithmSQLContext context = new AlgorithmSQLContext("shop", "shop", "orders", "id");
            KeyGenerateAlgorithm generator = find("socket", daemon.socket());
            List<Long> keys = new ArrayList<>();
            for (int count : new int[] {1, 3, 70_000}) {
                generator.generateKeys(context, count).forEach(key -> keys.add((Long) key));
            }
            assertEquals(70_004, keys.size());
            for (int i = 1; i < keys.size(); i++) {
                assertTrue(keys.get(i) > keys.get(i - 1));
            }
            find("socket", daemon.socket(), "service", "default", "prefetch", "16").generateKeys(context, 1).forEach(key ->
                    assertTrue((Long) key > keys.get(keys.size() - 1)));
        }
    }

    /** ShardingSphere does not say when it drops a generator, such as after ALTER KEY GENERATOR. */
    @Test
    void aDroppedGeneratorLeavesNoThread() {
        try (Daemon daemon = new Daemon()) {
            AlgorithmSQLContext context = new AlgorithmSQLContext("shop", "shop", "orders", "id");
            Daemon.assertForgotten(() -> find("socket", daemon.socket()).generateKeys(context, 1));
        }
    }

    @Test
    void wrongPropertiesAreNamed() {
        AlgorithmInitializationException error = assertThrows(AlgorithmInitializationException.class, () -> find("sockets", "/x"));
        assertTrue(error.getMessage().contains("[sockets]"), error.getMessage());
        assertThrows(AlgorithmInitializationException.class, () -> find("prefetch", "many"));
    }
}
