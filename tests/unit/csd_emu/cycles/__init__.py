"""Tests of csd_emu.cycles."""
