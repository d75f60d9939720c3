package shop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.kazahana.Daemon;
import io.github.kazahana.Kazahana;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;

/** The program on H2, with IDs of a real daemon. */
@SpringBootTest
class OrdersTest {
    private static final Daemon DAEMON = new Daemon();

    @Autowired Orders orders;
    @Autowired Kazahana kazahana;

    @DynamicPropertySource
    static void socket(DynamicPropertyRegistry registry) {
        registry.add("kazahana.socket", DAEMON::socket);
    }

    @AfterAll
    static void end() {
        DAEMON.close();
    }

    @Test
    void ordersGetIds() {
        long before = kazahana.nextId();
        List<Order> saved = orders.saveAll(Stream.generate(() -> new Order("ada")).limit(100).toList());
        assertEquals(100, saved.stream().map(Order::getId).distinct().count());
        assertTrue(saved.stream().allMatch(order -> order.getId() > before));
        Order last = saved.get(99);
        assertEquals("ada", orders.findById(last.getId()).orElseThrow().getCustomer());
        assertFalse(kazahana.inspect(last.getId()).fallback());
    }
}
