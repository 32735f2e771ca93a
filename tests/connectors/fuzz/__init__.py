"""Messages of hostile programs, through a real engine, by the hundred thousand.

    python -m tests.connectors.fuzz --connector rabbitmq --messages 1000000 --seed 1

Each round writes messages that are made of odd parts, and often damaged then, puts one that is valid behind them, and lets
an engine receive them: `EXACTLY_ONCE`, into a store, and on to a sender. The connector's own source reads them. The
embedded broker and the files are real; of the other brokers there is the wire: what their servers would have delivered
is given to the source at its link, since a server refuses some of it when a client of its own writes it.

A round fails when the engine stops, when the valid message is not handled, when a message is neither handled nor a dead
letter nor dropped as a repeat, expired or not selected, when one is not acknowledged, or when what the store holds cannot be
read again. The failure names the seed of its round.
"""
