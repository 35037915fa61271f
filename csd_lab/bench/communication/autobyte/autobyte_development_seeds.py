"""Seeds of the drawn cases that AutoByte was developed on."""

SEEDS = tuple(range(3000, 3012))
# Final ones until 2026-11-27; since then rules were mended by what came of them.
SPENT_SEEDS = tuple(range(9000, 9024))
