"""A real Pulsar broker, and the process of our bridge, are killed while messages flow.

    python -m tests.connectors.pulsar_campaign --kills 100 --process-kills 300 --report FILE.json

A publisher sends numbered orders and repeats what was not confirmed. The bridge, a process of its own, counts each order
in its state and sends it on; it receives and sends EXACTLY_ONCE, and the broker drops what producers repeat. At the end
of a round the state must hold every order that the publisher ever began, once; and both topics, read whole with a bare
reader of Pulsar's client, must store each of them once, and each number that the bridge's sender has given.

How this could prove nothing, and what is done about it:

- A kill finds no traffic. It waits until a drawn number of orders has come through since the last start, and is counted
  as within traffic only when one has, and others are under way. Some kills of the bridge do not wait: they meet it as it
  takes up what an earlier life has left.
- The publisher loses silently. What must be there is what it began, not what was confirmed.
- The broker throws away what was acknowledged before it is counted. It keeps everything.
- A repeat arrives behind the comparison. The last order is sent when all others are stored; afterwards the bridge has
  ended and the broker waits for no acknowledgement, or the bridge runs again.
- The check cannot fail. For each kind of kill there are two controls: without deduplication something must be stored
  twice, under a bridge that receives AT_LEAST_ONCE something must be counted twice.

Where one of them comes true, the campaign fails: see `blind`.
"""
