"""Seeds of the drawn cases that the default and the search were developed on."""

SEEDS = tuple(range(1000, 1012))
