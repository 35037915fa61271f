"""ByteScheduler's two numbers, slice size and credit, in a world that shares no code with the product's timeline."""
