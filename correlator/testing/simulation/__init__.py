"""The crash simulation with seeds: one thread steps real engines by a virtual clock and kills them at fault points."""
