"""Seeds of the drawn cases that figures are published of; nothing was chosen by them."""

SEEDS = tuple(range(9100, 9124))
