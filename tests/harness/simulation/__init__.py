"""The campaign of the simulation: runs of the project's own application, chosen at random from seeds.

python -m tests.harness.simulation --crashes 100000 --seed 1
"""
