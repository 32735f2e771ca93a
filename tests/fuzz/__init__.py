"""Damaged and hostile input, in large numbers: configuration files, stores, and requests over HTTP.

    python -m tests.fuzz files --number 100000 --seed 1 --report files.json
    python -m tests.fuzz stores --number 20000
    python -m tests.fuzz requests --number 100000

A case is made of a seed and a number alone, so `--only NUMBER` repeats it. The command prints each violation, and exits
with 1 if there is one. A few hundred cases of each kind run with the other tests (`test_fuzz.py`).
"""
