"""Kills of an engine between clients and a service, both of which speak HTTP with it.

Clients repeat each order until it is answered 202, and the service knows each `Idempotency-Key` once. In the control
neither has keys.
"""
