"""Kafka: topics of a cluster, with transactions for senders and consumer groups for receivers."""

from connectors.kafka.connection import KafkaConnection

__all__ = ["KafkaConnection"]
