"""Level `kill9`: real processes over a real store, really killed, and an oracle outside of them that saw everything.

`zygote` forks a child for each life; `child` runs an engine there; `wire` is what the two sides say to each other over
one socket; `lives` is the oracle's run.
"""
