package shop;

import io.github.kazahana.Kazahana;
import io.github.kazahana.hibernate.KazahanaId;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.hibernate.autoconfigure.HibernatePropertiesCustomizer;
import org.springframework.context.annotation.Bean;

@SpringBootApplication
public class Application {
    public static void main(String[] args) {
        SpringApplication.run(Application.class, args);
    }

    /** One client for the process. Spring closes it at the end. */
    @Bean
    Kazahana kazahana(@Value("${kazahana.socket:}") String socket) {
        Kazahana.Builder options = Kazahana.client();
        if (!socket.isEmpty()) {
            options.socket(socket);
        }
        return options.build();
    }

    @Bean
    HibernatePropertiesCustomizer kazahanaIds(Kazahana kazahana) {
        return settings -> settings.put(KazahanaId.SUPPLIER, kazahana);
    }
}
