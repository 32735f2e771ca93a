import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;

/**
 * A program that knows Pulsar's own client and nothing of the connector. It sends messages with schemas and prints
 * nothing.
 *
 * <p>Its arguments are steps, {@code KIND TOPIC}; the broker is in the environment variable BROKER_URL.
 */
final class Program {
    /** What is ordered. */
    public static final class Item {
        public String name;
        public int number;
        public BigDecimal price;

        public Item() {}

        Item(String name, int number, String price) {
            this.name = name;
            this.number = number;
            this.price = new BigDecimal(price);
        }
    }

    /** A record with others in it. */
    public static final class Order {
        public long id;
        public Customer customer;
        public List<Item> items;
        public Map<String, String> notes;
        public byte[] seal;
        public Colour colour;
        public Double discount;

        public Order() {}
    }

    /** Who orders; the key of pairs. */
    public static final class Customer {
        public String name;

        public Customer() {}

        Customer(String name) {
            this.name = name;
        }
    }

    /** One of a few. */
    public enum Colour {
        RED,
        GREEN
    }

    /** Says that bytes are orders. */
    private static final class Unfit implements Schema<byte[]> {
        @Override
        public byte[] encode(byte[] bytes) {
            return bytes;
        }

        @Override
        public SchemaInfo getSchemaInfo() {
            return Schema.AVRO(Order.class).getSchemaInfo();
        }

        @Override
        public Schema<byte[]> clone() {
            return this;
        }
    }

    private Program() {}

    public static void main(String[] steps) throws PulsarClientException {
        try (PulsarClient client =
                PulsarClient.builder().serviceUrl(System.getenv("BROKER_URL")).build()) {
            for (String step : steps) {
                String[] words = step.split(" ");
                send(client, words[0], words[1]);
            }
        }
    }

    private static void send(PulsarClient client, String kind, String topic) throws PulsarClientException {
        switch (kind) {
            case "avro" -> send(client, topic, Schema.AVRO(Order.class), List.of(order()));
            case "json" -> send(client, topic, Schema.JSON(Customer.class), List.of(new Customer("J\u00f6rg")));
            case "string" -> send(client, topic, Schema.STRING, List.of("J\u00f6rg"));
            case "number" -> send(client, topic, Schema.INT32, List.of(7));
            case "bytes" -> send(client, topic, Schema.BYTES, List.of("bytes".getBytes(StandardCharsets.UTF_8)));
            case "inline" -> send(client, topic, pairs(KeyValueEncodingType.INLINE), pairs());
            case "separated" -> send(client, topic, pairs(KeyValueEncodingType.SEPARATED), pairs());
            case "named" -> send(
                    client,
                    topic,
                    Schema.KeyValue(Schema.STRING, Schema.JSON(Customer.class), KeyValueEncodingType.INLINE),
                    List.of(new KeyValue<>("a", new Customer("b"))));
            case "broken" -> send(
                    client,
                    topic,
                    Schema.KeyValue(Schema.AVRO(Customer.class), new Unfit(), KeyValueEncodingType.INLINE),
                    List.of(new KeyValue<>(new Customer("a"), new byte[] {1})));
            case "yes" -> send(client, topic, Schema.BOOL, List.of(true));
            default -> throw new IllegalArgumentException(kind);
        }
    }

    private static <T> void send(PulsarClient client, String topic, Schema<T> schema, List<T> values)
            throws PulsarClientException {
        try (Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
            for (T value : values) {
                producer.send(value);
            }
        }
    }

    private static Schema<KeyValue<Customer, Order>> pairs(KeyValueEncodingType encoding) {
        return Schema.KeyValue(Schema.AVRO(Customer.class), Schema.AVRO(Order.class), encoding);
    }

    private static List<KeyValue<Customer, Order>> pairs() {
        Customer customer = new Customer("J\u00f6rg");
        return List.of(
                new KeyValue<>(customer, order()), new KeyValue<>(customer, null), new KeyValue<>(null, order()));
    }

    private static Order order() {
        Order order = new Order();
        order.id = Long.MAX_VALUE;
        order.customer = new Customer("J\u00f6rg");
        order.items = List.of(new Item("pen", 2, "1.50"), new Item("ink", 1, "7"));
        order.notes = new LinkedHashMap<>(Map.of("to", "the door"));
        order.seal = new byte[] {0, 1, -1};
        order.colour = Colour.GREEN;
        return order;
    }
}
