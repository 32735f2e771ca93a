"""The simulation's campaign: runs of the project's own application, drawn from seeds.

python -m tests.harness.simulation --crashes 100000 --seed 1
"""
