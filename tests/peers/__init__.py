"""The same faults for correlator and for what people use instead: one job, the same kills, the same count at the end.

    python -m tests.peers --kills 25 --broker-kills 5 --json FILE

The job: take an order from a queue, count it for its customer in a durable state, and send the count on to another
queue. Each peer has a program here, with the settings that its own documentation advises. All programs are started,
killed and judged by the same driver, which sees nothing but the two queues and, when the program has ended, its state.

The figures could prove nothing, or be unfair, for these reasons, so the driver takes these measures:

- A kill meets no work. It comes when a drawn number of results has come in this life, and up to half a second later.
  Meanwhile the driver publishes orders as fast as they are taken. It counts the kills while an order had no result.
- An order is doubled by its publisher. The driver publishes nothing while it kills the broker, and waits for confirms.
- A repeat comes behind the comparison, or a slow peer is said to lose. The last life ends when every order has a
  result and no further result comes; otherwise it has long to go on. Nothing may be left in the queue of orders.
- A peer that ends by itself, or stands still, gets no second chance. The driver starts it again, as an operator or a
  supervisor would, and counts this.
- The judge sees no errors. The plain loops have them; `test_rabbitmq_peers.py` shows that each kind is counted.
"""
