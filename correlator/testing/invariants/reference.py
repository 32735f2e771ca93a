"""The names and times of the project's own application that invariants look for in its state.

Invariants of this application check nothing in other histories: `Setup.told` is false for these.
"""

TICK_S = 0.4
"""The period of each repeating timer."""
NAP_S = 25.0
"""The delay of the timer and of the expression of the monitor `Sleeper`."""
DYNAMIC_SOURCE = "queue:extras"
DYNAMIC_RECEIVER = "extras"
DYNAMIC_SENDER = "aside"
"""The receiver and the sender that come and go while an engine runs, and what the receiver reads."""
