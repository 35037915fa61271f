"""Seeds that the planner's rules were developed with; no figure in the documentation is of them."""

SEEDS = tuple(range(1, 5))
