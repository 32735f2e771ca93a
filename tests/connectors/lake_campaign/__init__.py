"""Kills the process of a bridge from the embedded broker to a table of a lake, under load.

    python -m tests.connectors.lake_campaign --kills 200 --format delta --report FILE.json

A publisher puts numbered orders into a queue. The bridge is an engine: it numbers the orders in its state and sends a
row for each; some orders have a body that does not fit the table. At the end of a round the table must hold exactly the
rows that the state of the engine demands, each once, and the refused messages must be dead letters, each once.

A campaign could prove nothing for these reasons, so it takes these measures:

- A kill meets no write. Half of the kills happen at a drawn call that writes a file of the lake: before or after it.
  The figures say how many kills found a data file that the log does not name, and how many repeats the table was spared.
- The check cannot fail. In the control each life writes under another source, so the table cannot know repeats.
"""
