package io.github.kazahana.hibernate;

import io.github.kazahana.Kazahana;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;
import org.hibernate.annotations.IdGeneratorType;

/**
 * Marks an {@code @Id} of type Long or long, which gets an ID of kazahana before the row is inserted, so that inserts are batched.
 *
 * <pre>{@code
 * @Id @KazahanaId Long id;
 * }</pre>
 */
@IdGeneratorType(KazahanaIdGenerator.class)
@Retention(RetentionPolicy.RUNTIME)
@Target({ElementType.FIELD, ElementType.METHOD})
public @interface KazahanaId {
    /**
     * The setting of the persistence unit that holds the source of IDs, a {@link io.github.kazahana.NextIdSupplier}. Without it all
     * persistence units of the process share a {@link Kazahana} with the default options.
     */
    String SUPPLIER = "kazahana.supplier";
}
