"""Kills the process of an engine that writes objects and reads them, under load.

    python -m tests.connectors.objects_campaign --kills 200 --place folder --report FILE.json

A publisher puts numbered orders into a queue. The engine numbers the orders in its state and sends a line or a row for each
to a folder of objects; some orders have a body that does not fit. Another receiver of the engine reads these objects, and the
state counts how often each order was read. At the end of a round the objects must hold exactly the orders that the state of
the engine demands, each once; each must have been read once; and the refused orders must be dead letters, each once.

A campaign could prove nothing for these reasons, so it takes these measures:

- A kill meets no write. Half of the kills happen at a drawn call that writes a file, or before or behind a request to
  the S3 server. The server outlives the kills.
- The check cannot fail. In one control each life of the sender writes under another source, so objects hold repeats. In the
  other one the receiver of the objects is AT_LEAST_ONCE, so it reads orders twice.
"""
