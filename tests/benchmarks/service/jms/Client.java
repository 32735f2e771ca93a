import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.ConnectionFactory;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.activemq.ActiveMQConnectionFactory;

/**
 * A client of a broker with the interface of JMS: arguments are the kind of the broker and its address. Each line that it
 * reads is a command, each line that it prints the numbers that answer it; clients.py has the commands.
 */
public final class Client {
    private static final String QUEUE = "bench";
    private static final int SIZE = 256;
    private static final long TIMEOUT_MS = 60_000;

    private final Connection connection;

    private Client(Connection connection) {
        this.connection = connection;
    }

    public static void main(String[] arguments) throws Exception {
        try (Connection connection = factory(arguments[0], arguments[1]).createConnection()) {
            Client client = new Client(connection);
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split(" ");
                System.out.println(client.answer(words[0], Integer.parseInt(words[1]), Integer.parseInt(words[2])));
            }
        }
    }

    private static ConnectionFactory factory(String kind, String address) throws JMSException {
        if (kind.equals("activemq")) {
            return new ActiveMQConnectionFactory(address);
        }
        com.sun.messaging.ConnectionFactory factory = new com.sun.messaging.ConnectionFactory();
        factory.setProperty("imqAddressList", address);
        return factory;
    }

    private String answer(String command, int count, int other) throws JMSException, InterruptedException {
        switch (command) {
            case "produce":
                return produce(count, other);
            case "consume":
                return consume(count, other);
            case "pace":
                return pace(count, other);
            case "delays":
                return delays(count);
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private Session session(int batch) throws JMSException {
        return batch > 1
                ? connection.createSession(true, Session.SESSION_TRANSACTED)
                : connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    private String produce(int count, int batch) throws JMSException {
        try (Session session = session(batch);
                MessageProducer producer = session.createProducer(session.createQueue(QUEUE))) {
            producer.setDeliveryMode(DeliveryMode.PERSISTENT);
            byte[] body = new byte[SIZE];
            long begin = System.nanoTime();
            for (int number = 1; number <= count; number++) {
                producer.send(message(session, body));
                if (batch > 1 && (number % batch == 0 || number == count)) {
                    session.commit();
                }
            }
            return begin + " " + System.nanoTime();
        }
    }

    private String consume(int count, int batch) throws JMSException {
        connection.stop();
        try (Session session = session(batch)) {
            MessageConsumer consumer = session.createConsumer(session.createQueue(QUEUE));
            long begin = System.nanoTime();
            connection.start();
            for (int number = 1; number <= count; number++) {
                received(consumer);
                if (batch > 1 && (number % batch == 0 || number == count)) {
                    session.commit();
                }
            }
            consumer.close(); // the answer to it comes after the broker has read all acknowledgements
            return begin + " " + System.nanoTime();
        }
    }

    private String pace(int count, int gapMs) throws JMSException, InterruptedException {
        try (Session session = session(1);
                MessageProducer producer = session.createProducer(session.createQueue(QUEUE))) {
            for (int number = 0; number < count; number++) {
                Thread.sleep(ThreadLocalRandom.current().nextLong(gapMs / 2, gapMs * 3L / 2));
                byte[] body = ByteBuffer.allocate(SIZE).putLong(System.nanoTime()).array();
                producer.send(message(session, body));
            }
            return "0";
        }
    }

    private String delays(int count) throws JMSException {
        connection.start();
        try (Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
                MessageConsumer consumer = session.createConsumer(session.createQueue(QUEUE))) {
            StringBuilder delays = new StringBuilder();
            for (int number = 0; number < count; number++) {
                BytesMessage message = (BytesMessage) received(consumer);
                long now = System.nanoTime();
                delays.append((now - message.readLong()) / 1e6).append(' ');
                message.acknowledge();
            }
            return delays.toString();
        }
    }

    private static BytesMessage message(Session session, byte[] body) throws JMSException {
        BytesMessage message = session.createBytesMessage();
        message.writeBytes(body);
        return message;
    }

    private static Message received(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(TIMEOUT_MS);
        if (message == null) {
            throw new IllegalStateException("no message came");
        }
        return message;
    }
}
