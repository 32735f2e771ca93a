"""Kills the process of a bridge from one topic of Kafka to another, and a real Kafka broker, while messages flow.

    python -m tests.connectors.kafka_campaign --kills 300 --broker-kills 100 --report FILE.json

A publisher puts numbered orders into a topic. The bridge is an engine: it numbers the orders in its state and sends each
on with its number. It receives and sends EXACTLY_ONCE. At the end of a round the other topic must hold each order once,
in the order of the numbers that the state of the engine has.

A campaign could prove nothing for these reasons, so it takes these measures:

- A kill meets no transaction. Half of the kills of the bridge happen at a drawn place of a drawn transaction. The figures
  say how many there were at each place, and how many transactions were aborted.
- The broker dies while nothing is under way. It is killed when an order has come through and others are under way.
- The check cannot fail. In the control the sender does not read its number, so the topic must hold orders twice.
"""
