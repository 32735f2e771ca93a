"""The calls by which a process changes files: counted, recorded, failed or answered by SIGKILL, one by one.

`library` interposes them in a process that was started with it; `trace` reads what was recorded.
"""
