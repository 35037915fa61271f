"""The host's end of a synchronous step's exchange with its drives."""
