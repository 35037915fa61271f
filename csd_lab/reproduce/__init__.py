"""Published results beside ours, each marked published, emulated or simulated."""
