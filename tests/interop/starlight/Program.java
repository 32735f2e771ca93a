import com.datastax.oss.pulsar.jms.PulsarConnectionFactory;
import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Destination;
import jakarta.jms.JMSException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageEOFException;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Enumeration;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;

/**
 * A program that knows Starlight for JMS and nothing of the connector. It prints each message as a line of JSON, values
 * with their class: {@code ["Short", 5]}.
 *
 * <p>Its arguments are steps, each of some words. {@code subscribe TOPIC NAME}: make a durable subscription.
 * {@code send DESTINATION}: the fixed messages. {@code receive DESTINATION NUMBER [NAME]}: so many messages of a queue,
 * or of a topic's durable subscription. {@code return QUEUE}: take one message, give it back, take it again and let go
 * of it. {@code rank DESTINATION NUMBER}: send so many messages of each priority. {@code DESTINATION} is
 * {@code queue:NAME} or {@code topic:NAME}. The broker is in the environment variables BROKER_URL and WEB_URL, the
 * namespace of the destinations in NAMESPACE, the identifier of the client in CLIENT_ID, and how priorities are mapped to
 * partitions in PRIORITY_MAPPING, where they are.
 */
final class Program {
    private static final String TEXT = "Gr\u00fc\u00dfe, 5 \u20ac \ud83d\ude00";
    private static final byte[] BINARY = {0, 1, -1};
    private static final long ONE_HOUR_MS = 3_600_000;
    private static final long PATIENCE_MS = 60_000;

    private final Session session;

    private Program(Session session) {
        this.session = session;
    }

    public static void main(String[] steps) throws JMSException {
        Map<String, Object> configuration = new LinkedHashMap<>(Map.of(
                "brokerServiceUrl", System.getenv("BROKER_URL"),
                "webServiceUrl", System.getenv("WEB_URL"),
                "jms.clientId", System.getenv("CLIENT_ID"),
                "jms.systemNamespace", System.getenv("NAMESPACE"),
                "consumerConfig", Map.of("negativeAckRedeliveryDelayMicros", 100_000)));
        String mapping = System.getenv("PRIORITY_MAPPING");
        if (mapping != null) {
            configuration.put("jms.enableJMSPriority", "true");
            configuration.put("jms.priorityMapping", mapping);
        }
        try (PulsarConnectionFactory factory = new PulsarConnectionFactory(configuration);
                Connection connection = factory.createConnection();
                Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE)) {
            connection.start();
            Program program = new Program(session);
            for (String step : steps) {
                program.take(step.split(" "));
            }
        }
    }

    private void take(String[] step) throws JMSException {
        Destination destination = destination(step[1]);
        switch (step[0]) {
            case "subscribe" -> session.createDurableConsumer((Topic) destination, step[2]).close();
            case "send" -> send(destination, step[1]);
            case "receive" -> {
                boolean durable = step.length == 4;
                try (MessageConsumer consumer = durable
                        ? session.createDurableConsumer((Topic) destination, step[3])
                        : session.createConsumer(destination)) {
                    for (int left = Integer.parseInt(step[2]); left > 0; left--) {
                        receive(consumer, step[1]).acknowledge();
                    }
                }
            }
            case "return" -> {
                try (MessageConsumer consumer = session.createConsumer(destination)) {
                    receive(consumer, step[1]);
                    session.recover();
                    while (!receive(consumer, step[1]).getJMSRedelivered()) {
                        // others come before it
                    }
                }
            }
            case "rank" -> rank(destination, Integer.parseInt(step[2]));
            default -> throw new IllegalArgumentException(step[0]);
        }
    }

    private Destination destination(String name) throws JMSException {
        String[] parts = name.split(":", 2);
        return parts[0].equals("queue") ? session.createQueue(parts[1]) : session.createTopic(parts[1]);
    }

    // --- sending ---

    private void send(Destination destination, String label) throws JMSException {
        try (MessageProducer producer = session.createProducer(destination)) {
            Message late = named(session.createTextMessage(TEXT), "late");
            producer.send(late, DeliveryMode.PERSISTENT, Message.DEFAULT_PRIORITY, 1);
            print(label, late);
            Message full = withHeaders(withProperties(named(session.createTextMessage(TEXT), "full")));
            producer.send(full, DeliveryMode.PERSISTENT, 7, ONE_HOUR_MS);
            print(label, full);
            Message other = named(session.createBytesMessage(), "other");
            other.setJMSCorrelationIDAsBytes(BINARY);
            other.setJMSReplyTo(session.createTopic("answers"));
            producer.send(other, DeliveryMode.NON_PERSISTENT, 0, 0);
            print(label, other);
            for (Map.Entry<String, Message> one : plain().entrySet()) {
                producer.send(named(one.getValue(), one.getKey()));
                print(label, one.getValue());
            }
        }
    }

    private void rank(Destination destination, int times) throws JMSException {
        try (MessageProducer producer = session.createProducer(destination)) {
            for (int priority = 0; priority <= 9; priority++) {
                for (int left = times; left > 0; left--) {
                    Message message = session.createTextMessage(String.valueOf(priority));
                    producer.send(message, DeliveryMode.PERSISTENT, priority, 0);
                }
            }
        }
    }

    /** The property {@code name} says which message it is. */
    private static Message named(Message message, String name) throws JMSException {
        message.setStringProperty("name", name);
        return message;
    }

    private Message withHeaders(Message message) throws JMSException {
        message.setJMSCorrelationID("correlation \u20ac");
        message.setJMSType("order");
        message.setJMSReplyTo(session.createQueue("answers"));
        message.setStringProperty("JMSXGroupID", "customer \u20ac");
        message.setIntProperty("JMSXGroupSeq", 3);
        return message;
    }

    private static Message withProperties(Message message) throws JMSException {
        message.setBooleanProperty("yes", true);
        message.setBooleanProperty("no", false);
        message.setByteProperty("byte", Byte.MIN_VALUE);
        message.setShortProperty("short", Short.MAX_VALUE);
        message.setIntProperty("int", Integer.MIN_VALUE);
        message.setLongProperty("long", Long.MAX_VALUE);
        message.setLongProperty("small long", 7);
        message.setFloatProperty("float", 0.1f);
        message.setFloatProperty("largest float", Float.MAX_VALUE);
        message.setFloatProperty("no float", Float.NaN);
        message.setDoubleProperty("double", 32.5e9 + 0.125);
        message.setDoubleProperty("smallest double", Double.MIN_VALUE);
        message.setDoubleProperty("minus zero", -0.0);
        message.setDoubleProperty("infinite", Double.NEGATIVE_INFINITY);
        message.setObjectProperty("object", (short) 5);
        message.setStringProperty("text", TEXT);
        message.setStringProperty("empty text", "");
        return message;
    }

    /** By the names that they get. */
    private Map<String, Message> plain() throws JMSException {
        Map<String, Message> messages = new LinkedHashMap<>();
        messages.put("text", session.createTextMessage(TEXT));
        messages.put("large text", session.createTextMessage(TEXT.repeat(10_000)));
        messages.put("empty text", session.createTextMessage(""));
        messages.put("no text", session.createTextMessage());
        messages.put("bytes", bytes());
        messages.put("no bytes", session.createBytesMessage());
        messages.put("map", map());
        messages.put("no map", session.createMapMessage());
        messages.put("stream", stream());
        messages.put("no stream", session.createStreamMessage());
        messages.put("object", session.createObjectMessage(new ArrayList<>(List.of(1, "two", 3.5))));
        messages.put("no object", session.createObjectMessage());
        messages.put("header", session.createMessage());
        return messages;
    }

    private BytesMessage bytes() throws JMSException {
        BytesMessage message = session.createBytesMessage();
        message.writeBoolean(true);
        message.writeByte((byte) -7);
        message.writeShort((short) -300);
        message.writeChar('\u20ac');
        message.writeInt(123_456);
        message.writeLong(Long.MIN_VALUE);
        message.writeFloat(1.5f);
        message.writeDouble(-0.125);
        message.writeUTF("\u20ac");
        message.writeBytes(BINARY);
        return message;
    }

    private MapMessage map() throws JMSException {
        MapMessage message = session.createMapMessage();
        message.setBoolean("boolean", true);
        message.setByte("byte", (byte) -7);
        message.setShort("short", (short) -300);
        message.setChar("char", '\u20ac');
        message.setInt("int", 123_456);
        message.setLong("long", Long.MIN_VALUE);
        message.setFloat("float", 0.1f);
        message.setDouble("double", -0.125);
        message.setString("text", TEXT);
        message.setString("long text", TEXT.repeat(10_000));
        message.setString("no text", null);
        message.setBytes("bytes", BINARY);
        message.setInt(TEXT, 7);
        return message;
    }

    private StreamMessage stream() throws JMSException {
        StreamMessage message = session.createStreamMessage();
        message.writeBoolean(true);
        message.writeByte((byte) -7);
        message.writeShort((short) -300);
        message.writeChar('\u20ac');
        message.writeInt(123_456);
        message.writeLong(Long.MIN_VALUE);
        message.writeFloat(0.1f);
        message.writeDouble(-0.125);
        message.writeString(TEXT + '\0');
        message.writeString(null);
        message.writeBytes(BINARY);
        return message;
    }

    // --- receiving ---

    private static Message receive(MessageConsumer consumer, String label) throws JMSException {
        Message message = consumer.receive(PATIENCE_MS);
        if (message == null) {
            throw new IllegalStateException("no message of '" + label + "' comes");
        }
        print(label, message);
        return message;
    }

    // --- printing ---

    private static void print(String destination, Message message) throws JMSException {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("destination", destination);
        line.put("kind", kind(message));
        line.put("body", body(message));
        line.put("message_id", message.getJMSMessageID());
        line.put("correlation_id", message.getJMSCorrelationID());
        line.put("correlation_bytes", value(message.getJMSCorrelationIDAsBytes()));
        line.put("reply_to", message.getJMSReplyTo() == null ? null : name(message.getJMSReplyTo()));
        line.put("type", message.getJMSType());
        line.put("priority", message.getJMSPriority());
        line.put("persistent", message.getJMSDeliveryMode() == DeliveryMode.PERSISTENT);
        line.put("expiration", message.getJMSExpiration());
        line.put("timestamp", message.getJMSTimestamp());
        line.put("delivery_time", message.getJMSDeliveryTime());
        line.put("redelivered", message.getJMSRedelivered());
        Map<String, Object> properties = new TreeMap<>();
        for (Object name : Collections.list((Enumeration<?>) message.getPropertyNames())) {
            properties.put((String) name, value(message.getObjectProperty((String) name)));
        }
        line.put("properties", properties);
        System.out.println(Json.of(line));
    }

    private static String name(Destination destination) throws JMSException {
        return destination instanceof Topic topic
                ? "topic:" + topic.getTopicName()
                : "queue:" + ((Queue) destination).getQueueName();
    }

    private static String kind(Message message) {
        return Stream.of(
                        TextMessage.class,
                        BytesMessage.class,
                        MapMessage.class,
                        StreamMessage.class,
                        ObjectMessage.class)
                .filter(kind -> kind.isInstance(message))
                .map(Class::getSimpleName)
                .findFirst()
                .orElse("Message");
    }

    private static Object body(Message message) throws JMSException {
        if (message instanceof TextMessage text) {
            return text.getText();
        }
        if (message instanceof BytesMessage bytes) {
            return content(bytes);
        }
        if (message instanceof MapMessage map) {
            return entries(map);
        }
        if (message instanceof StreamMessage stream) {
            return items(stream);
        }
        return message instanceof ObjectMessage object ? value(object.getObject()) : null;
    }

    private static String content(BytesMessage message) throws JMSException {
        message.reset();
        byte[] content = new byte[(int) message.getBodyLength()];
        message.readBytes(content);
        return HexFormat.of().formatHex(content);
    }

    private static Map<String, Object> entries(MapMessage message) throws JMSException {
        Map<String, Object> entries = new TreeMap<>();
        for (Object name : Collections.list((Enumeration<?>) message.getMapNames())) {
            entries.put((String) name, value(message.getObject((String) name)));
        }
        return entries;
    }

    private static List<Object> items(StreamMessage message) throws JMSException {
        message.reset();
        List<Object> items = new ArrayList<>();
        try {
            while (true) {
                items.add(value(message.readObject()));
            }
        } catch (MessageEOFException end) {
            return items;
        }
    }

    /** The class and the value: arrays in hexadecimal figures, fractions as Java writes them. */
    private static Object value(Object value) {
        if (value == null) {
            return null;
        }
        Object shown = value;
        if (value instanceof byte[] bytes) {
            shown = HexFormat.of().formatHex(bytes);
        } else if (value instanceof Float || value instanceof Double) {
            shown = value.toString();
        }
        return List.of(value.getClass().getSimpleName(), shown);
    }
}
