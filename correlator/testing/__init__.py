"""What users test with: a broker in memory, the contract of connectors, simulation and crashes; never in production."""
