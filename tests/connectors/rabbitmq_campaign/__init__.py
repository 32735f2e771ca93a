"""Kills a real RabbitMQ server, and cuts its connections, while messages flow through two engines.

    python -m tests.connectors.rabbitmq_campaign --kills 200 --cuts 1000 --report FILE.json

A publisher sends numbered orders, and repeats orders that the server has not confirmed. One engine forwards the orders
to a second queue, the other counts each order in its state; both receive and send EXACTLY_ONCE. At the end of a round
the state must hold, once, every order that the publisher has begun, and nothing else.

A campaign could prove nothing for these reasons, so it takes these measures:

- A kill meets no traffic. Each kill waits until a drawn number of orders was confirmed, forwarded or counted since the
  last start. It counts as within traffic only if orders are under way and an engine is connected.
- A cut hits no message. A connection is cut while a drawn byte passes. If too few bytes pass, it is cut at once and
  counted apart, as are cuts within the handshake, whose size is measured. The server does not notice some cuts, so it
  keeps the messages that it has delivered, and redelivers them much later.
- The publisher loses an order without an error. The comparison uses the orders that were begun, not those confirmed.
- A repeat arrives after the comparison. The last order is sent when all others are counted. Afterwards both queues must
  be empty; otherwise the engines run again.
- The check cannot fail. With a counting receiver that is AT_LEAST_ONCE, the same faults must double something.

If one of these reasons applies nevertheless, the campaign fails: see `blind`.
"""
