"""Kills a real Pulsar broker, and the process of a bridge, while messages flow.

    python -m tests.connectors.pulsar_campaign --kills 100 --process-kills 300 --report FILE.json

A publisher sends numbered orders, and repeats orders that the broker has not confirmed. The bridge, a process of its
own, counts each order in its state and sends it on. It receives and sends EXACTLY_ONCE, and the broker drops repeats of
producers. At the end of a round the state must hold, once, every order that the publisher has begun. Both topics, read
from beginning to end without the connector, must store each order once, and each number of the bridge's sender.

A campaign could prove nothing for these reasons, so it takes these measures:

- A kill meets no traffic. The kill waits until a drawn number of orders has come through since the last start. It
  counts as within traffic only if an order has come through and others are under way. Some kills of the bridge do not
  wait: they happen while the bridge recovers.
- The publisher loses an order without an error. The comparison uses the orders that were begun, not those confirmed.
- The broker deletes acknowledged messages before the comparison. The namespace keeps all messages.
- A repeat arrives after the comparison. The last order is sent when all others are stored. Afterwards the bridge has
  ended and the broker waits for no acknowledgement; otherwise the bridge runs again.
- The check cannot fail. For each kind of kill there are two controls: without deduplication something must be stored
  twice; with a bridge that receives AT_LEAST_ONCE something must be counted twice.

If one of these reasons applies nevertheless, the campaign fails: see `blind`.
"""
