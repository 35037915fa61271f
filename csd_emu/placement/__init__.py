"""Which layers a drive computes and which the host: what each cut costs, and which is chosen. Numbers in, numbers out."""
