"""AutoByte on drives and links that change, in a world that shares no code with the product's timeline."""
