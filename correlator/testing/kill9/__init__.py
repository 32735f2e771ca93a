"""Level `kill9`: engines run in processes that are killed, over a real store; the test's process records what they do.

The process that `zygote` starts forks a child for each life; `child` runs an engine there; `wire` defines the protocol
between the child and the test's process, over one socket. The test's process is the *oracle*: `lives` runs there, with
the brokers and the history.
"""
