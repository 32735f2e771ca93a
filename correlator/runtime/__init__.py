"""Threads that execute what the core decides: one owner thread for each object, queues of immutable values between."""
