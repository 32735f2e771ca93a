"""RabbitMQ streams: queues of the type `stream`, over the stream protocol."""

from connectors.rabbitmq_stream.connection import StreamConnection

__all__ = ["StreamConnection"]
