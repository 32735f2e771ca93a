"""Kills the process of a bridge from an outbox table to a table of the same database, and the database's server.

    python -m tests.connectors.sql_campaign --database postgres --kills 200 --server-kills 40 --report FILE.json
    python -m tests.connectors.sql_campaign --database postgres --capture --kills 200 --server-kills 40
    python -m tests.connectors.sql_campaign --database postgres --snapshot --kills 20
    python -m tests.connectors.sql_campaign --database sqlite --polled --kills 40

A program of a user places numbered orders: it writes each into a table of its own and into the outbox table, in one
transaction. With a server two of its transactions run at a time, and the one that began first commits last. The bridge
is an engine: it numbers the orders in its state and sends a row for each; some have a body that does not fit. With
`--polled`, `--capture` and `--snapshot` there is no outbox table: the bridge polls the program's table, or captures its
rows. At the end of a round the outbox table must be empty, or the position must be behind the last order. The state must
have each order that the program has committed, and no other. The table must hold exactly the rows that the state
demands, each once, and the refused messages must be dead letters, each once. Whenever the program looks at the table
meanwhile, it must see whole batches: as many rows as the number of the last one says.

With `--snapshot` the rounds are short, and begin with so many rows that many kills interrupt the snapshot. A snapshot
that begins again is told by the operation `truncate`, and the bridge then forgets all orders. From there on each order
must come once, and what is said above must hold for the last snapshot and the changes behind it. Rows of an earlier
snapshot may be dead letters, too.

A campaign could prove nothing for these reasons, so it takes these measures:

- A kill meets no transaction. Half of the kills happen at a drawn transaction of the sink or of the source: before or
  behind its COMMIT. A source that polls or captures writes a file with its position instead. The figures say how many, and how many kills happened while orders were under way.
- The check cannot fail. In the control each life writes under another source, so the database cannot know repeats, and
  the receiver does not look at unique ids. Its kills happen where repeats must follow: both must store something twice.
"""
