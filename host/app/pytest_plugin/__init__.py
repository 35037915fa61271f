"""The pytest plugin: arrays of emulated drives for other projects' tests (docs/ci.md).

pytest loads `plugin` in every project of an environment that has csd-emu, so that module imports nothing but pytest.
The arrays themselves are kept by a process beside the tests (`keeper`): no torch and no event loop come into the tests'
own process, and when that ends, however it ends, the keeper sees its pipe close and ends every drive.
"""
