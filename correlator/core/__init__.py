"""What the engine decides: no I/O, no threads, no clock, no randomness, no logging. Time and ids are arguments."""
