"""The Python interface: what `csd_emu` loads when an attribute of it is asked for (docs/reference/python.md).

Drives and runs are kept by a process beside the program (`array_server`): no torch, no event loop and no signal
handler come into the program's own, so that it works in notebooks, and when that ends, however it ends, the process
sees its pipe close and ends every drive.
"""
