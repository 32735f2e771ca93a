"""The embedded message service against real brokers, as ratios within one run (see `__main__`)."""
