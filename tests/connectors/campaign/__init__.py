"""What campaigns against real brokers share: a publisher, what has become of its orders, and the comparison at the end."""
