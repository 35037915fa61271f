"""Performance and power model: how long a step takes and what it draws. Numbers in, numbers out."""
