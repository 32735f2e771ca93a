"""Losses of power: which contents a disk may have afterwards, computed from the recorded calls of a process.

`disk` computes the possible contents, called images. `outages` puts an image in the place of the store of a killed
engine, for level `power` of crash tests.
"""
