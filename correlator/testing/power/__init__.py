"""Power cuts: a run of a real engine is recorded call by call, and every disk that a cut could have left is checked.

`workload` is the run, `record` records it, `disk` knows which images of the disk are legal, `facts` what the world saw
before the cut, `judge` whether an image keeps it, `restart` whether an engine goes on from it, `campaign` runs many.
`outages` does it to the store of a level's run: `correlator.testing.crashtest.powered`.
"""
