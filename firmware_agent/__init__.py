"""Program in the drive: agent, training, faults; `common` is shared with the host."""

__version__ = "0.1.0"
