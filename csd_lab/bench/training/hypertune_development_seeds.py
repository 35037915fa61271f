"""Seeds that HyperTune's rules were developed with; no figure in the documentation is of them."""

SEEDS = tuple(range(1, 13))
