"""The seeded crash simulation: the real engine, stepped in one thread under a virtual clock, killed at fault points."""
