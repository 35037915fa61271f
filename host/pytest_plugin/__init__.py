"""The old import path of `csd_emu.extend`; the next release is without it."""
