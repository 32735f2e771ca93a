"""Parts of the campaigns against real brokers: a publisher, the board of its orders, and the comparison at the end."""
