"""The campaign of power cuts: it records a run call by call, and checks every image of the disk that a cut can leave.

`workload` is the run, `record` records it, `facts` holds what was visible outside the engine before the cut, `judge`
compares an image with these facts, `restart` runs an engine on an image, `campaign` does all this many times.

python -m tests.harness.power --images 10000
"""
