import com.rabbitmq.jms.admin.RMQConnectionFactory;
import com.rabbitmq.jms.admin.RMQDestination;
import java.util.Collections;
import java.util.Enumeration;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;
import javax.jms.TextMessage;

/**
 * A program that knows RabbitMQ's JMS client and nothing of the connector. It prints each message as a line of JSON.
 *
 * <p>{@code send QUEUE...}: the same fixed messages to each queue. {@code receive QUEUE NUMBER...}: so many messages of
 * each queue. The server is in the environment variables PORT, USER_NAME and PASSWORD.
 */
public class Program {
    private static final String TEXT = "Gr\u00fc\u00dfe, 5 \u20ac \ud83d\ude00";
    private static final long ONE_HOUR_MS = 3_600_000;
    private static final long PATIENCE_MS = 60_000;

    private final Session session;

    private Program(Session session) {
        this.session = session;
    }

    public static void main(String[] arguments) throws JMSException {
        RMQConnectionFactory factory = new RMQConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(Integer.parseInt(System.getenv("PORT")));
        factory.setUsername(System.getenv("USER_NAME"));
        factory.setPassword(System.getenv("PASSWORD"));
        try (Connection connection = factory.createConnection()) {
            connection.start();
            Program program = new Program(connection.createSession(false, Session.AUTO_ACKNOWLEDGE));
            if (arguments[0].equals("send")) {
                for (int at = 1; at < arguments.length; at++) {
                    program.send(arguments[at]);
                }
            } else {
                for (int at = 1; at < arguments.length; at += 2) {
                    program.receive(arguments[at], Integer.parseInt(arguments[at + 1]));
                }
            }
        }
    }

    /** A queue that others than JMS clients use, too. */
    private static Destination queue(String name) {
        return new RMQDestination(name, "", name, name);
    }

    private void send(String queue) throws JMSException {
        try (MessageProducer producer = session.createProducer(queue(queue))) {
            for (Message message : List.of(full(session.createTextMessage(TEXT), "text"), full(bytes(), "bytes"))) {
                producer.send(message, DeliveryMode.PERSISTENT, 7, ONE_HOUR_MS);
                print(queue, message);
            }
            producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
            String large = String.join("", Collections.nCopies(10_000, TEXT));
            for (Message message : List.of(
                    named(session.createTextMessage(TEXT), "plain text"),
                    named(session.createTextMessage(large), "large text"),
                    named(session.createTextMessage(""), "empty text"),
                    named(session.createTextMessage(), "no text"),
                    named(bytes(), "plain bytes"),
                    named(session.createBytesMessage(), "no bytes"),
                    named(session.createMessage(), "no body"))) {
                producer.send(message);
                print(queue, message);
            }
        }
    }

    private BytesMessage bytes() throws JMSException {
        BytesMessage message = session.createBytesMessage();
        for (int value = 0; value < 256; value++) {
            message.writeByte((byte) value);
        }
        return message;
    }

    /** The property {@code name} says which message it is. */
    private static Message named(Message message, String name) throws JMSException {
        message.setStringProperty("name", name);
        return message;
    }

    private static Message full(Message message, String name) throws JMSException {
        named(message, name);
        message.setJMSCorrelationID("correlation \u20ac");
        message.setJMSType("order");
        message.setJMSReplyTo(queue("answers"));
        message.setStringProperty("JMSXGroupID", "customer \u20ac");
        message.setIntProperty("JMSXGroupSeq", 3);
        message.setBooleanProperty("aBoolean", true);
        message.setByteProperty("aByte", (byte) -7);
        message.setShortProperty("aShort", (short) -300);
        message.setIntProperty("anInt", 123_456);
        message.setLongProperty("aLong", (1L << 53) + 1);
        message.setFloatProperty("aFloat", 0.1f);
        message.setDoubleProperty("aDouble", 32.5e9 + 0.125);
        message.setStringProperty("aString", TEXT);
        message.setStringProperty("anEmptyString", "");
        message.setStringProperty("noString", null);
        return message;
    }

    private void receive(String queue, int number) throws JMSException {
        try (MessageConsumer consumer = session.createConsumer(queue(queue))) {
            for (int at = 0; at < number; at++) {
                Message message = consumer.receive(PATIENCE_MS);
                if (message == null) {
                    throw new IllegalStateException("of " + number + " messages of '" + queue + "' came " + at);
                }
                print(queue, message);
            }
        }
    }

    private static void print(String queue, Message message) throws JMSException {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("queue", queue);
        line.put("kind", kind(message));
        line.put("body", body(message));
        line.put("message_id", message.getJMSMessageID());
        line.put("correlation_id", message.getJMSCorrelationID());
        line.put("reply_to", message.getJMSReplyTo() == null ? null : message.getJMSReplyTo().toString());
        line.put("type", message.getJMSType());
        line.put("priority", message.getJMSPriority());
        line.put("persistent", message.getJMSDeliveryMode() == DeliveryMode.PERSISTENT);
        line.put("expiration", message.getJMSExpiration());
        line.put("timestamp", message.getJMSTimestamp());
        line.put("redelivered", message.getJMSRedelivered());
        Map<String, Object> properties = new TreeMap<>();
        for (Object name : Collections.list((Enumeration<?>) message.getPropertyNames())) {
            properties.put((String) name, message.getObjectProperty((String) name));
        }
        line.put("properties", properties);
        System.out.println(Json.of(line));
    }

    private static String kind(Message message) {
        if (message instanceof TextMessage) {
            return "TextMessage";
        }
        return message instanceof BytesMessage ? "BytesMessage" : "Message";
    }

    /** The text, or the bytes in hexadecimal figures. */
    private static String body(Message message) throws JMSException {
        if (message instanceof TextMessage text) {
            return text.getText();
        }
        if (!(message instanceof BytesMessage bytes)) {
            return null;
        }
        bytes.reset();
        byte[] content = new byte[(int) bytes.getBodyLength()];
        bytes.readBytes(content);
        return HexFormat.of().formatHex(content);
    }
}
