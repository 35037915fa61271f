"""What is decided of a synchronous job before its first step."""
