"""Plain ARM machines for tests, with the network and disk faults that real drives meet."""

from tests.targets.deployer import Deployer
from tests.targets.light import BROKEN, DUMB, Light
from tests.targets.proxy import TcpProxy
from tests.targets.target import Target, target, write_inventory

__all__ = ["BROKEN", "DUMB", "Deployer", "Light", "Target", "TcpProxy", "target", "write_inventory"]
