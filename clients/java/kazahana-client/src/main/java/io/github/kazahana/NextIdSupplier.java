package io.github.kazahana;

import java.util.function.LongSupplier;

/**
 * A source of IDs. {@link Kazahana} is one; the adapters for ORMs take any, so that their tests need no daemon:
 * {@code new AtomicLong()::incrementAndGet}.
 */
@FunctionalInterface
public interface NextIdSupplier extends LongSupplier {
    /**
     * Returns an ID that this supplier has not returned before, 1 to 2^63-1.
     *
     * @return the ID
     * @throws KazahanaException if there is no ID within the time limit
     */
    long nextId();

    @Override
    default long getAsLong() {
        return nextId();
    }
}
