"""Records, clocks, data sets and files that everything else of the host stands on."""
