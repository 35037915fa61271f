"""The files that describe the hardware: array, hypervisors, servers, racks."""
