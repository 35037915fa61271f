"""Seeds of the drawn cases that AutoByte was developed on."""

SEEDS = tuple(range(3000, 3012))
