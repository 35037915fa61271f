"""Split of a model: the layers that run on the host."""
