package io.github.kazahana.shardingsphere;

import io.github.kazahana.Kazahana;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.shardingsphere.infra.algorithm.core.context.AlgorithmSQLContext;
import org.apache.shardingsphere.infra.algorithm.core.exception.AlgorithmInitializationException;
import org.apache.shardingsphere.infra.algorithm.keygen.core.KeyGenerateAlgorithm;

/**
 * The key generator KAZAHANA of ShardingSphere. Its properties are {@code socket}, {@code service} and {@code prefetch}, all optional,
 * with the meaning and the defaults of {@link Kazahana.Builder}.
 */
public final class KazahanaKeyGenerateAlgorithm implements KeyGenerateAlgorithm {
    private static final List<String> PROPERTIES = List.of("socket", "service", "prefetch");

    private Kazahana ids;

    /** ShardingSphere calls it, and then init. */
    public KazahanaKeyGenerateAlgorithm() {}

    @Override
    public void init(Properties properties) {
        TreeSet<String> unknown = new TreeSet<>(properties.stringPropertyNames());
        unknown.removeAll(PROPERTIES);
        if (!unknown.isEmpty()) {
            throw new AlgorithmInitializationException(this, "there is no property " + unknown + ": there are " + PROPERTIES);
        }
        Kazahana.Builder options = Kazahana.client();
        if (properties.containsKey("socket")) {
            options.socket(properties.getProperty("socket"));
        }
        if (properties.containsKey("service")) {
            options.service(properties.getProperty("service"));
        }
        String prefetch = String.valueOf(properties.getOrDefault("prefetch", 0));
        try {
            options.prefetch(Integer.parseInt(prefetch));
        } catch (NumberFormatException e) {
            throw new AlgorithmInitializationException(this, "prefetch of " + prefetch + ": 0 to " + Kazahana.MAX_BATCH + " is right");
        }
        ids = options.build();
    }

    @Override
    public Collection<Long> generateKeys(AlgorithmSQLContext context, int count) {
        if (count == 1) {
            return List.of(ids.nextId());
        }
        List<Long> keys = new ArrayList<>(count);
        while (keys.size() < count) {
            Arrays.stream(ids.nextIds(Math.min(count - keys.size(), Kazahana.MAX_BATCH))).forEach(keys::add);
        }
        return keys;
    }

    @Override
    public String getType() {
        return "KAZAHANA";
    }
}
