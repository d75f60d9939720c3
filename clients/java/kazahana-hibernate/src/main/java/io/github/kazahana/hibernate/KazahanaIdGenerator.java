package io.github.kazahana.hibernate;

import io.github.kazahana.Kazahana;
import io.github.kazahana.NextIdSupplier;
import java.util.EnumSet;
import org.hibernate.HibernateException;
import org.hibernate.engine.spi.SharedSessionContractImplementor;
import org.hibernate.generator.BeforeExecutionGenerator;
import org.hibernate.generator.EventType;
import org.hibernate.generator.EventTypeSets;

/** Generates the IDs that {@link KazahanaId} asks for. Hibernate makes one for each marked property. */
public final class KazahanaIdGenerator implements BeforeExecutionGenerator {
    private static final long serialVersionUID = 1;

    /** Made by the first generator that needs it. */
    private static final class Shared {
        static final Kazahana CLIENT = Kazahana.client().build();
    }

    private transient volatile NextIdSupplier supplier; // a generator belongs to one session factory

    /** Hibernate calls it. */
    public KazahanaIdGenerator() {}

    @Override
    public Object generate(SharedSessionContractImplementor session, Object owner, Object currentValue, EventType eventType) {
        NextIdSupplier from = supplier;
        if (from == null) {
            supplier = from = supplier(session.getFactory().getProperties().get(KazahanaId.SUPPLIER));
        }
        return from.nextId();
    }

    private static NextIdSupplier supplier(Object configured) {
        if (configured == null) {
            return Shared.CLIENT;
        }
        if (configured instanceof NextIdSupplier given) {
            return given;
        }
        throw new HibernateException("the setting " + KazahanaId.SUPPLIER + " is a " + configured.getClass().getName()
                + ": an io.github.kazahana.NextIdSupplier is right, such as a Kazahana");
    }

    @Override
    public EnumSet<EventType> getEventTypes() {
        return EventTypeSets.INSERT_ONLY;
    }
}
