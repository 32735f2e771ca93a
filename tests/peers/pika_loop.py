"""pika: a loop with manual acknowledgement, publisher confirms and a state in SQLite.

Settings, as the documentation advises:

- prefetch of one message and manual acknowledgement after the work is done
  (https://www.rabbitmq.com/tutorials/tutorial-two-python, "Message acknowledgment", "Fair dispatch");
- persistent messages in durable queues, `confirm_delivery` and `mandatory`
  (https://pika.readthedocs.io/en/stable/examples/blocking_delivery_confirmations.html);
- it connects again when the connection is lost
  (https://pika.readthedocs.io/en/stable/examples/blocking_consume_recover_multiple_hosts.html).

RabbitMQ promises that a message without acknowledgement is delivered again. It asks consumers to be idempotent
(https://www.rabbitmq.com/docs/reliability, "Idempotency"); with `remembers` this one is.
"""

import json
import time

import pika

from tests.peers.job import Job

RETRY_S = 0.5


def main() -> None:
    """Count orders until the process ends."""
    job = Job.here()
    counts = job.counts()
    while True:
        try:
            with pika.BlockingConnection(pika.URLParameters(job.broker)) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.basic_qos(prefetch_count=1)
                for method, _, body in channel.consume(job.source):
                    order = json.loads(body)
                    order["count"] = counts.add(order["order"], order["customer"])
                    persistent = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
                    channel.basic_publish("", job.target, json.dumps(order), persistent, mandatory=True)
                    channel.basic_ack(method.delivery_tag)
        except pika.exceptions.AMQPConnectionError:
            time.sleep(RETRY_S)


if __name__ == "__main__":
    main()
