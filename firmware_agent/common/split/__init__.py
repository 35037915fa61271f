"""Models cut in two: the drive's part, the host's part, and what crosses between them."""
