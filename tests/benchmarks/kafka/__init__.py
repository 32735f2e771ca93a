"""The connector of Kafka against its client library."""
