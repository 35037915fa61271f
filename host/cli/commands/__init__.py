"""The commands of `csd-emu`, one file per group; host/cli/main.py puts them together."""
