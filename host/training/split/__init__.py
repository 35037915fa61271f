"""Layers where they are cheapest: from a model, an array and a job to what `csd_emu.perfmodel.split` decides from."""
