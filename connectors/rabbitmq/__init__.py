"""RabbitMQ: queues and exchanges of a server, over AMQP 0-9-1."""

from connectors.rabbitmq.connection import RabbitConnection

__all__ = ["RabbitConnection"]
