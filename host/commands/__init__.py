"""The commands of `csd-emu`, one file each or a few that belong together."""
