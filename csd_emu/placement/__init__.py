"""Which layers drives compute and which the host: what each cut costs, which is chosen. Numbers in, numbers out."""
