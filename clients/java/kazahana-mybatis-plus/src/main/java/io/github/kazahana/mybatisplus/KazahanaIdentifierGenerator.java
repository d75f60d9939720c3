package io.github.kazahana.mybatisplus;

import com.baomidou.mybatisplus.core.incrementer.IdentifierGenerator;
import io.github.kazahana.NextIdSupplier;
import java.util.Objects;

/**
 * Gives IDs of kazahana to properties with {@code @TableId(type = IdType.ASSIGN_ID)}, of type Long or String. With Spring Boot a bean
 * of this type is enough; else {@code globalConfig.setIdentifierGenerator(...)}.
 */
public final class KazahanaIdentifierGenerator implements IdentifierGenerator {
    private final NextIdSupplier ids;

    /**
     * Makes a generator.
     *
     * @param ids the source of IDs, usually a {@link io.github.kazahana.Kazahana}
     */
    public KazahanaIdentifierGenerator(NextIdSupplier ids) {
        this.ids = Objects.requireNonNull(ids);
    }

    @Override
    public Number nextId(Object entity) {
        return ids.nextId();
    }
}
