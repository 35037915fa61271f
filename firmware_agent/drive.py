"""From power-on to a serving agent: prepare what clones may share, then find out who this device is."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import random
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from firmware_agent import uplink
from firmware_agent.agent import Agent, device_facts
from firmware_agent.clock import Stopwatch
from firmware_agent.common.datafiles.record_set import IMAGE, LABEL
from firmware_agent.common.errors import BootTimeout
from firmware_agent.common.frames.session_frames import Job, Train
from firmware_agent.common.handover import (
    IDENTITY_FILE,
    IDENTITY_SERIAL,
    READY_MARKER,
    SHARD_FILE,
    SHARD_SERIAL,
    UPLINK_PORT,
)
from firmware_agent.common.identity import Identity, read_identity
from firmware_agent.common.shard import Shard, ShardManifest, open_shard
from firmware_agent.faults.competing_task import Disturbance, delegated_group
from firmware_agent.faults.fault_injection import Saboteur
from firmware_agent.faults.io_limits import Throttle
from firmware_agent.local_dataset import describe, open_holding
from firmware_agent.training.trainer import Trainer

log = logging.getLogger(__name__)

CONSOLE = Path("/dev/console")
BLOCK_DEVICES = Path("/sys/block")
# On the root file system, the only one that a drive can write to.
FILLED_FOLDER = Path("/opt/csd")
# The hash of records that lie in place.
HOLDING_FILE = "holding.json"
_POLL_SECONDS = 0.02
_RNDADDENTROPY = 0x40085203
_RNDRESEEDCRNG = 0x5207


def serve_folder(folder: Path, stop: threading.Event) -> None:
    """Serve as a process on the host machine, from the two archives in `folder`."""
    torch.set_num_threads(1)
    identity = read_identity(folder / IDENTITY_FILE)
    seed_generators(identity.entropy)
    Agent(identity, open_records(identity, folder, folder), Disturbance(None)).serve_forever(stop)


def open_records(identity: Identity, folder: Path, cache: Path) -> Shard:
    """Return what a device trains on: records in place if its identity names some, else the shard in `folder`.

    Args:
        identity: of the device.
        folder: where its shard would be.
        cache: folder in which the hash of records in place is kept.

    Raises:
        ShardError: the shard is damaged.
        DataError: the records in place cannot be read.
    """
    if identity.data:
        return open_holding(Path(identity.data), cache / HOLDING_FILE)
    return open_shard(folder / SHARD_FILE)


def serve_drive(stop: threading.Event) -> None:
    """Serve in a drive: warm up, say so on the console, wait for the namespaces, take the identity, dial.

    Everything before the namespaces appear belongs to the template, which all clones share; so nothing here may draw a
    random number or make a key before `reseed`.
    """
    torch.set_num_threads(1)
    group = delegated_group()
    way_out = Uplink()
    warm_up()
    _wait_until_booted()
    os.sync()  # or every clone would write back what the boot left in memory
    say(f"{READY_MARKER} {json.dumps(device_facts())}")
    identity = read_identity(_wait_for_namespace(IDENTITY_SERIAL, stop))
    reseed(identity)
    way_out.listen(identity.port)
    # For the log: no two clones may draw the same bytes.
    facts = {"first_random_sha256": hashlib.sha256(os.urandom(32)).hexdigest()}
    shard = open_shard(_wait_for_namespace(SHARD_SERIAL, stop))
    if identity.data:  # they were on the flash before anything was dealt out
        shard = replace(shard, holding=describe(shard.manifest))
    say(f"CSD-AGENT DEVICE {identity.device} INCARNATION {identity.incarnation}")
    Agent(identity, shard, Disturbance(group), facts, Throttle(group), Saboteur(FILLED_FOLDER)).serve_forever(stop)


class Uplink:
    """The process that carries what the drive sends and gets (see `firmware_agent.uplink`)."""

    def __init__(self) -> None:
        """Start the process; it ends with this one, and listens nowhere yet."""
        program = [sys.executable, "-I", "-S", uplink.__file__, UPLINK_PORT]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def listen(self, port: int) -> None:
        """Have the process listen on `port` of the loopback interface."""
        if self._process.stdin is not None:
            self._process.stdin.write(b"%d\n" % port)
            self._process.stdin.flush()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def warm_up() -> None:
    """Take one training step of the smallest model, so that lazily loaded code is in the template's shared memory."""
    shard = Shard(
        Path(os.devnull),
        ShardManifest("", "", 8, 8, (8,), {}),
        "",
        {IMAGE: np.zeros((8, 1, 8, 8), np.uint8), LABEL: np.zeros(8, np.int64)},
    )
    Trainer(Job("digits_cnn", {}, None, 1.0, 0, 0.01, 0.9, 8), shard, 0, Stopwatch()).train(Train(1, 1))


def reseed(identity: Identity) -> None:
    """Give the kernel and every generator of this process fresh entropy, and set the date.

    The kernel credits the entropy and reseeds at once, so that a TLS library's first draw differs between clones.
    """
    with open("/dev/urandom", "wb", buffering=0) as device:
        entropy = identity.entropy
        fcntl.ioctl(device, _RNDADDENTROPY, struct.pack("ii", 8 * len(entropy), len(entropy)) + entropy)
        fcntl.ioctl(device, _RNDRESEEDCRNG)
    time.clock_settime(time.CLOCK_REALTIME, identity.unix_seconds)
    seed_generators(identity.entropy)


def seed_generators(entropy: bytes) -> None:
    """Seed Python's, NumPy's and torch's global generators from `entropy` and nothing else."""
    words = np.random.SeedSequence(int.from_bytes(entropy, "big")).generate_state(6)
    random.seed(int(words[0]) << 32 | int(words[1]))
    np.random.seed(words[2:4])
    torch.manual_seed(int(words[4]) << 31 | int(words[5]) >> 1)


def say(line: str) -> None:
    """Write one line to the machine's console, where the host looks for it."""
    with open(CONSOLE, "w", encoding="utf-8") as console:
        console.write(f"\n{line}\n")


def _wait_until_booted() -> None:
    """Wait until systemd has finished, so that the template is taken when the machine is quiet."""
    done = subprocess.run(["systemctl", "is-system-running", "--wait"], capture_output=True, text=True, check=False)
    if done.stdout.strip() != "running":
        failed = subprocess.run(["systemctl", "--failed", "--plain", "--no-legend"], capture_output=True, check=False)
        say(f"CSD-AGENT DEGRADED {done.stdout.strip()}: {failed.stdout.decode(errors='replace').strip()}")


def _wait_for_namespace(serial_prefix: str, stop: threading.Event) -> Path:
    """Return the block device whose NVMe serial number starts with `serial_prefix`, once it is there."""
    while not stop.wait(_POLL_SECONDS):
        for device in BLOCK_DEVICES.glob("nvme*"):
            if _serial(device).startswith(serial_prefix) and (node := Path("/dev") / device.name).exists():
                return node
    raise BootTimeout(f"told to stop before the {serial_prefix} namespace appeared")


def _serial(device: Path) -> str:
    try:
        return (device / "device" / "serial").read_text(encoding="ascii").strip()
    except OSError:
        return ""
