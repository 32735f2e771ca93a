"""The campaign of level kill9: runs of the project's own application in processes that are killed.

python -m tests.harness.kill9 --kills 1000
"""
