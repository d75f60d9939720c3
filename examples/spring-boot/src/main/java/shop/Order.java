package shop;

import io.github.kazahana.hibernate.KazahanaId;
import jakarta.persistence.Entity;
import jakarta.persistence.Id;
import jakarta.persistence.Table;

@Entity
@Table(name = "orders")
public class Order {
    @Id @KazahanaId private Long id;
    private String customer;

    protected Order() {}

    public Order(String customer) {
        this.customer = customer;
    }

    public Long getId() {
        return id;
    }

    public String getCustomer() {
        return customer;
    }
}
