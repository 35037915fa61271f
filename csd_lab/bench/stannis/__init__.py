"""Bench `stannis_world`: STANNIS' batches on drawn arrays of which it knows the tables alone."""
