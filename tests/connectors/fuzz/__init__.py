"""Hundreds of thousands of messages of hostile programs, through a real engine.

    python -m tests.connectors.fuzz --connector rabbitmq --messages 1000000 --seed 1

Each round makes messages of odd parts, damages many of them, adds one valid message at the end, and lets an engine
receive them: `EXACTLY_ONCE`, into a store, and on to a sender. The connector's own source reads them. The embedded
broker and the files are real. For the other brokers, the link of the source gets the bytes that a server would deliver,
since a server refuses some of these messages from a client.

A round fails when the engine stops, when the valid message is not handled, when a message is neither handled nor a dead
letter nor dropped as a repeat, expired or not selected, when a message is not acknowledged, or when the content of the
store cannot be read again. The failure names the seed of its round.
"""
