"""Split of a model's layers between drives and host: the cost of each cut, and the choice. Numbers in, numbers out."""
