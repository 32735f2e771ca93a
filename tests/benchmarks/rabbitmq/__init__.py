"""Benchmarks of the RabbitMQ connector; each starts a server of its own."""
