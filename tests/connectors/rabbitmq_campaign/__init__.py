"""A real RabbitMQ server is killed, and its connections are cut, while messages flow through two engines.

    python -m tests.connectors.rabbitmq_campaign --kills 200 --cuts 1000 --report FILE.json

A publisher sends numbered orders and repeats what was not confirmed. One engine forwards them to a second queue, the
other one counts each of them in its state; both receive and send EXACTLY_ONCE. At the end of a round the state must
hold every order that the publisher ever began, once, and nothing else.

How this could prove nothing, and what is done about it:

- A kill finds no traffic. The next one waits until a drawn number of orders was confirmed, forwarded or counted since
  the last start, and is counted as within traffic only when orders are under way and an engine is connected.
- A cut hits nothing. It happens at a byte as this passes. Connections of which too little passes are cut now, and
  counted apart, as are cuts within the handshake, whose size is measured. Some cuts the server does not hear of, so
  that it keeps what it has delivered, and gives it again much later.
- The publisher loses silently. What must be there is what it began, not what was confirmed.
- A repeat arrives behind the comparison. The last order is sent when all others are counted; afterwards both queues must
  be empty, or the engines run again.
- The check cannot fail. The same faults under a counting receiver that is only AT_LEAST_ONCE must double something.

Where one of them comes true, the campaign fails: see `blind`.
"""
