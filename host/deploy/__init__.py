"""`csd-emu deploy`: the agent on real drives, over SSH."""
