"""Benchmarks of the Pulsar connector against the bare client, on one broker."""
