"""Threads that execute what the core decides: each object has one owner thread, and threads exchange immutable values
through queues.
"""
