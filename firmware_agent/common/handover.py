"""Conventions of host and drive outside of the wire: names of files, serial numbers and lines on the console."""

from __future__ import annotations

# The two archives of a device, as files in its folder.
IDENTITY_FILE, SHARD_FILE = "identity.tar", "shard.tar"
# The same as NVMe namespaces; a serial number holds 20 characters: prefix + device name.
IDENTITY_SERIAL, SHARD_SERIAL = "ident-", "shard-"
# The virtio port that leads to the host.
UPLINK_PORT = "csd.host"
# As the address of a sink for probes: one in the device itself, for an emulated drive reaches no other.
OWN_SINK = "127.0.0.1:0"
# On the console: the template has come to rest, an agent has ended for good.
READY_MARKER, FAILED_MARKER = "CSD-AGENT READY", "CSD-AGENT FAILED"
