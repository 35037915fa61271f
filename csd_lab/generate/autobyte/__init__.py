"""Training of AutoByte's network on synthetic cases."""
