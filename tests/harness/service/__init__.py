"""The campaigns of the embedded message service: processes that are killed, losses of power, deliberate bugs.

A run has one store and several processes at a time. They send, receive, settle, prepare, move and purge, and die at a
statement, at a call that changes a file, or at a time that the seed determines. Each process writes to the `journal`
what it is about to ask of the broker, and the answer. `topology` defines the destinations, `roles` the work of the
processes, `life` how a process lives and dies. `drain` empties the broker at the end, `judge` compares the journal with
the broker's promises, `tables` checks the rows, and `campaign` does all this many times.

python -m tests.harness.service --kills 1000
python -m tests.harness.service --power 10000
python -m tests.harness.service --mutants
"""
