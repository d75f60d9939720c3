package io.github.kazahana.mybatisplus;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.baomidou.mybatisplus.annotation.IdType;
import com.baomidou.mybatisplus.annotation.TableId;
import com.baomidou.mybatisplus.annotation.TableName;
import com.baomidou.mybatisplus.core.MybatisConfiguration;
import com.baomidou.mybatisplus.core.MybatisSqlSessionFactoryBuilder;
import com.baomidou.mybatisplus.core.config.GlobalConfig;
import com.baomidou.mybatisplus.core.mapper.BaseMapper;
import com.baomidou.mybatisplus.core.toolkit.GlobalConfigUtils;
import io.github.kazahana.Daemon;
import io.github.kazahana.Kazahana;
import org.apache.ibatis.mapping.Environment;
import org.apache.ibatis.session.SqlSession;
import org.apache.ibatis.session.SqlSessionFactory;
import org.apache.ibatis.transaction.jdbc.JdbcTransactionFactory;
import org.h2.jdbcx.JdbcDataSource;
import org.junit.jupiter.api.Test;

/** MyBatis-Plus on H2, with IDs of a real daemon. */
class KazahanaIdentifierGeneratorTest {
    @TableName("orders")
    public static class Order {
        @TableId(type = IdType.ASSIGN_ID)
        private Long id;
        private String customer;

        public Long getId() {
            return id;
        }

        public void setId(Long id) {
            this.id = id;
        }

        public String getCustomer() {
            return customer;
        }

        public void setCustomer(String customer) {
            this.customer = customer;
        }
    }

    public interface Orders extends BaseMapper<Order> {}

    private static SqlSessionFactory open(Kazahana ids) throws Exception {
        JdbcDataSource source = new JdbcDataSource();
        source.setURL("jdbc:h2:mem:orders;DB_CLOSE_DELAY=-1");
        try (var connection = source.getConnection(); var statement = connection.createStatement()) {
            statement.execute("create table orders (id bigint primary key, customer varchar(100))");
        }
        MybatisConfiguration configuration = new MybatisConfiguration(new Environment("test", new JdbcTransactionFactory(), source));
        GlobalConfig global = GlobalConfigUtils.defaults().setIdentifierGenerator(new KazahanaIdentifierGenerator(ids));
        GlobalConfigUtils.setGlobalConfig(configuration, global);
        configuration.addMapper(Orders.class);
        return new MybatisSqlSessionFactoryBuilder().build(configuration);
    }

    @Test
    void rowsGetIdsOfTheDaemon() throws Exception {
        try (Daemon daemon = new Daemon(); Kazahana ids = daemon.client(); SqlSession session = open(ids).openSession()) {
            Orders orders = session.getMapper(Orders.class);
            long last = 0;
            for (int i = 0; i < 20; i++) {
                long before = ids.nextId();
                Order order = new Order();
                order.setCustomer("ada");
                assertEquals(1, orders.insert(order));
                assertTrue(order.getId() > last && order.getId() > before && order.getId() < ids.nextId());
                assertNotNull(orders.selectById(order.getId()));
                last = order.getId();
            }
        }
    }
}
