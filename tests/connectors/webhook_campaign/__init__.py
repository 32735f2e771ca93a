"""Kills the engine of the example of webhooks that go into a table and a topic, and its servers, PostgreSQL and Kafka.

    python -m tests.connectors.webhook_campaign --kills 100 --postgres-kills 100 --kafka-kills 100 --report FILE.json

Clients send orders to the engine of config/webhook-to-table-and-topic.yaml, each again with the same key until the answer
is 202. A killed server starts again on the same data and port; the engine goes on, or is killed as well meanwhile. At the
end of a round each order must have been written once into the table and be once in the topic, with the same content, and
the orders of a customer must have come into both in the same order. A trigger of the table notes each write, since an
`upsert` that is repeated leaves no other trace.

A campaign could prove nothing for these reasons, so it takes these measures:

- A kill meets nothing. The servers are killed when orders have come into the table and into the topic since the last
  kill, while the clients go on. The figures tell how often a client waited for an answer. Half of the kills of the engine happen at a drawn place: around an answer to a client,
  or around a transaction of the table or of the topic. The figures tell how many there were at each place.
- The check cannot fail. In one control each request has a key of its own, in the other one the senders do not know what
  they have sent. Both must find orders twice in the table and in the topic.
"""
