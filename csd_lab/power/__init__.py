"""Power models fitted to what meters recorded."""
