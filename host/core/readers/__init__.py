"""Readers of records that the host alone has: tables, data sets of the user's own, Hugging Face's, images with masks.

Whatever a drive reads too is in `firmware_agent.common.datafiles`.
"""
