"""The command line: one small module per command, loaded when it is called.

Standard output carries results only; everything else goes to standard error. Nothing that a user can cause shows a
traceback; the exit status is that of the error's class (`correlator.errors`).
"""
