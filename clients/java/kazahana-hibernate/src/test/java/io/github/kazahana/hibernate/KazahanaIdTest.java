package io.github.kazahana.hibernate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.kazahana.Daemon;
import io.github.kazahana.FakeKazahana;
import io.github.kazahana.Kazahana;
import io.github.kazahana.KazahanaException;
import jakarta.persistence.Entity;
import jakarta.persistence.Id;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.hibernate.HibernateException;
import org.hibernate.SessionFactory;
import org.hibernate.Version;
import org.hibernate.cfg.Configuration;
import org.junit.jupiter.api.Test;

/** Hibernate on H2, with IDs of a real daemon. HIBERNATE is the major version that the build chose. */
class KazahanaIdTest {
    @Entity(name = "orders")
    static class Order {
        @Id @KazahanaId Long id;
        String customer;

        Order() {}

        Order(String customer) {
            this.customer = customer;
        }
    }

    private static SessionFactory open(Object supplier) {
        Configuration configuration = new Configuration().addAnnotatedClass(Order.class)
                .setProperty("hibernate.connection.url", "jdbc:h2:mem:" + System.nanoTime())
                .setProperty("hibernate.hbm2ddl.auto", "create")
                .setProperty("hibernate.jdbc.batch_size", "50");
        if (supplier != null) {
            configuration.getProperties().put(KazahanaId.SUPPLIER, supplier);
        }
        return configuration.buildSessionFactory();
    }

    @Test
    void rowsGetIdsOfTheDaemon() {
        assertEquals(System.getProperty("hibernate.major"), Version.getVersionString().split("\\.")[0]);
        try (Daemon daemon = new Daemon(); Kazahana ids = Kazahana.client().socket(daemon.socket()).prefetch(16).build();
                SessionFactory factory = open(ids)) {
            List<Order> orders = Stream.generate(() -> new Order("ada")).limit(100).toList();
            factory.inTransaction(session -> orders.forEach(session::persist));
            List<Long> stored = factory.fromTransaction(session -> session.createQuery("select id from orders order by id", Long.class).list());
            assertEquals(orders.stream().map(order -> order.id).toList(), stored); // they ascend
            assertEquals(100, stored.stream().distinct().count());
            assertTrue(!ids.inspect(stored.get(99)).fallback());
        }
    }

    @Test
    void anErrorReachesTheCaller() {
        try (FakeKazahana fake = new FakeKazahana(); SessionFactory factory = open(fake)) {
            fake.fail(KazahanaException.parse("NO_PROVIDER: as the test wants it"));
            Throwable error = assertThrows(RuntimeException.class, () -> factory.inTransaction(session -> session.persist(new Order("ada"))));
            List<Throwable> causes = new ArrayList<>();
            for (; error != null; error = error.getCause()) {
                causes.add(error);
            }
            assertInstanceOf(KazahanaException.NoProviderException.class, causes.get(causes.size() - 1));
        }
    }

    @Test
    void aSettingOfTheWrongTypeIsNamed() {
        try (SessionFactory factory = open("kazahana")) {
            HibernateException error = assertThrows(HibernateException.class, () -> factory.inTransaction(session -> session.persist(new Order("ada"))));
            assertTrue(error.getMessage().contains("kazahana.supplier is a java.lang.String"), error.getMessage());
        }
    }
}
