"""The commands of `csd-emu`, one file per group; host/cli.py puts them together."""
