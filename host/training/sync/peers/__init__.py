"""Steps of one server among several: each sums its own drives, then all servers add up and step alike."""
