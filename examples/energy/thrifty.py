"""Selection by energy: after a first round of all, the drives that took the fewest joules for a record are asked."""

from csd_emu.extend import FedAvg


class Thrifty(FedAvg):
    """FedAvg of the `count` drives with the least energy per record."""

    def __init__(self, count: int = 2):
        """Ask so many drives in each round but the first."""
        self.count = count

    def configure(self, round, drives):
        """Return whom to ask; there is nothing to say to them."""

        def joules(name):
            return drives[name].joules / drives[name].samples

        known = [name for name, drive in drives.items() if drive.rounds]
        new = [name for name, drive in drives.items() if not drive.rounds]
        return {name: {} for name in new or sorted(known, key=joules)[: self.count]}
