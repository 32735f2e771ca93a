"""Kills streaming queries that write into a queue of an embedded broker, and starts them again.

    python -m tests.spark_programs.campaign --kills 200 --report FILE.json

A query reads numbered rows from files, a file in each batch, and writes them with the format `correlator`. Each batch is
killed once, at a drawn point: before the transaction that stores it, or between this transaction and the commit log of
Spark. Most kills end the Python process that commits; the others end the driver with its JVM. Then the query starts
again. After some kills it first starts without its checkpoint directory, which must be refused with the id of the query.
At the end of a round the queue must hold each row once.

A campaign could prove nothing for these reasons, so it takes these measures:

- A kill meets no batch. The process that is to die leaves a mark, and the campaign counts the marks.
- The check cannot fail. In the control each attempt at a batch has another producer, so the broker knows no repeat.
"""
