"""Level `kill9`: engines in processes that are killed, over a real store; the test's process records what they do.

`zygote` forks a child for each life; `child` runs an engine there; `wire` is their protocol over one socket. The
*oracle* is the test's process: `lives` is its run, with the brokers and the history.
"""
