"""FastStream: a handler that subscribes to a queue and publishes its result, with a state in SQLite.

Settings, as the documentation advises:

- `NACK_ON_ERROR`: a message is acknowledged when it is handled and its result is published, and comes again after an
  error (https://faststream.ag2.ai/latest/getting-started/acknowledgement/);
- a prefetch of one message, since FastStream handles several at once and the job asks for their order
  (https://faststream.ag2.ai/latest/rabbit/prefetch/);
- durable queues, persistent messages and publisher confirms, which are on by default
  (https://faststream.ag2.ai/latest/rabbit/publishing/).

The documentation promises that a message is acknowledged behind its handler. It says nothing of repeats; with
`remembers` the handler is idempotent.
"""

import asyncio
from typing import Any

from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from tests.peers.job import Job

JOB = Job.here()
COUNTS = JOB.counts()

broker = RabbitBroker(JOB.broker, default_channel=Channel(prefetch_count=1))
app = FastStream(broker)


@broker.subscriber(RabbitQueue(JOB.source, durable=True), ack_policy=AckPolicy.NACK_ON_ERROR)
@broker.publisher(RabbitQueue(JOB.target, durable=True), persist=True)
async def count(order: int, customer: str) -> dict[str, Any]:
    """Count one order, and send its result on."""
    return {"order": order, "customer": customer, "count": COUNTS.add(order, customer)}


if __name__ == "__main__":
    asyncio.run(app.run())
