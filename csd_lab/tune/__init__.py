"""Batch sizes and shards of a job, worked out from calibration tables: no drive is started."""
