"""Power cuts: what a disk may hold after one, computed from the recorded calls of a process.

`disk` knows which images of a disk are legal; `outages` puts one in the place of a killed engine's store, for level
`power` of crash tests.
"""
