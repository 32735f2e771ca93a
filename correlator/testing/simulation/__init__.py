"""The seeded crash simulation: the real engine, stepped in one thread under a virtual clock and killed at fault points.

python -m correlator.testing.simulation --crashes 100000 --seed 1
python -m correlator.testing.simulation --mutants
"""
