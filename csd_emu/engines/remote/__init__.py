"""Real drives that are reached over SSH: which there are, how to speak with them, and what lies where on them."""
