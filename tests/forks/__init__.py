"""Processes that fork while they hold locks and connections, and are killed then."""
