"""Starts torchrun's elastic agent for one worker, and ends with its host: the agent must not outlive it.

The host writes a byte every second to the standard input. When that ends, or nothing comes for too long, the agent
leaves the rendezvous: a server whose host has gone or hangs is lost for the others, and its worker must not stand in
for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence

BEAT = b"."
BEAT_SECONDS = 1.0
# From the request to end until the process is ended by force.
_GRACE_SECONDS = 10.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run torchrun with what follows the seconds of silence after which the host is taken for gone."""
    silence, *rest = sys.argv[1:] if arguments is None else arguments
    threading.Thread(target=_watch_host, args=(float(silence),), daemon=True).start()
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.run import main as torchrun

    with contextlib.suppress(SignalException):  # the end that the host asked for
        torchrun(rest)


def _watch_host(silence_seconds: float) -> None:
    while select.select([0], [], [], silence_seconds)[0] and os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # torchrun ends its worker and leaves the rendezvous
    threading.Event().wait(_GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
