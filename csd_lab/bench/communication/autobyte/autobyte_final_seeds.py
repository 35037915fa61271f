"""Seeds of the drawn cases that the published figures come from; nothing was chosen by them."""

SEEDS = tuple(range(9000, 9024))
