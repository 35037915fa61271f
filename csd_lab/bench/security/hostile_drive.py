"""A hostile drive's process: the real agent with a hostile layer on its session; told how by messages.

It is the bench's, and no part of what drives are given.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from pathlib import Path

import torch

from csd_lab.bench.security.hostile_behaviour import Behaviour, HostileFrames
from firmware_agent.agent import Agent
from firmware_agent.common.errors import CsdError
from firmware_agent.common.frames.session_frames import Tensors
from firmware_agent.common.handover import IDENTITY_FILE
from firmware_agent.common.identity import Identity, read_identity
from firmware_agent.common.wire import AnyFrame, encode, unpack
from firmware_agent.drive import open_records, seed_generators
from firmware_agent.faults.competing_task import Disturbance
from firmware_agent.host_session import HostSession

_DRIP_SECONDS = 0.05
_HANGS = (Behaviour.SILENCE, Behaviour.SLOW_DRIP)


class Orders:
    """Which behaviour the bench wants now; read on a thread of its own. The process ends when the bench does."""

    def __init__(self, address: str) -> None:
        """Begin honest, and listen to the bench at this address."""
        self.behaviour = Behaviour.HONEST
        self.changed = threading.Condition()
        threading.Thread(target=self._read, args=[Client(address)], daemon=True).start()

    def _read(self, bench: Connection) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                order = bench.recv_bytes()
                with self.changed:
                    self.behaviour = Behaviour(order.decode())
                    self.changed.notify_all()
                bench.send_bytes(order)
        os._exit(0)


class HostileSession(HostSession):
    """A session that sends what its behaviour makes of the agent's frames."""

    def __init__(self, identity: Identity, orders: Orders) -> None:
        """Dial, as the agent's own session does."""
        self._frames_of, self._orders = HostileFrames(orders.behaviour), orders
        self._pause = threading.Event()
        super().__init__(identity)

    def receive(self) -> AnyFrame:
        """Return the next frame, and note it."""
        frame = super().receive()
        if isinstance(frame, Tensors):  # of a new task
            self._frames_of.behaviour = self._orders.behaviour
        self._frames_of.take(frame)
        return frame

    def send_encoded(self, data: bytes) -> None:
        """Send what becomes of a message; without an end, until the host ends the session."""
        for frame in unpack(data):
            for changed in self._frames_of.give(frame):
                super().send_encoded(encode(changed))
                if self._frames_of.behaviour is Behaviour.SLOW_DRIP:
                    self._pause.wait(_DRIP_SECONDS)


def dialler(orders: Orders) -> Callable[[Identity], HostSession]:
    """Return how the agent dials: a drive that hangs does not dial again before it is told to behave otherwise."""

    def dial(identity: Identity) -> HostSession:
        with orders.changed:
            orders.changed.wait_for(lambda: orders.behaviour not in _HANGS)
        return HostileSession(identity, orders)

    return dial


def main() -> None:
    """Serve the folder that the command line names, as `firmware_agent native` would; orders come from its address."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    identity = read_identity(folder / IDENTITY_FILE)
    seed_generators(identity.entropy)
    orders = Orders(sys.argv[2])
    agent = Agent(identity, open_records(identity, folder, folder), Disturbance(None))
    try:
        agent.serve_forever(threading.Event(), dialler(orders))
    except CsdError as error:
        sys.exit(f"hostile drive: {error}")


if __name__ == "__main__":
    main()
