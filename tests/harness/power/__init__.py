"""The campaign of power cuts: a run is recorded call by call, and every disk that a cut could have left is checked.

`workload` is the run, `record` records it, `facts` holds what was seen outside of the engine before the cut, `judge`
compares an image with that, `restart` runs an engine over an image, `campaign` does all this many times.

python -m tests.harness.power --images 10000
"""
