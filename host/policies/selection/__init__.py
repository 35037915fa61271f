"""Selection of the devices that train: configurations of a cluster, by time, power, energy or energy-delay product."""
