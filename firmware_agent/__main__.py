"""The ways in: ``python -m firmware_agent MODE``.

``drive`` in an emulated drive, ``native FOLDER`` as a process on the host machine, ``deployed FOLDER`` on a real drive,
and ``self-check`` there before a new version is used.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
from pathlib import Path

from firmware_agent import deployed, drive
from firmware_agent.common.errors import CsdError
from firmware_agent.common.handover import FAILED_MARKER
from firmware_agent.common.heap import set_aside


def main() -> int:
    """Run the agent until it is told to stop or is refused; return the exit code."""
    parser = argparse.ArgumentParser(prog="firmware_agent", description="The agent of one storage drive.")
    modes = parser.add_subparsers(dest="mode", required=True)
    modes.add_parser("drive", help="wait for the identity and shard namespaces, then serve")
    native = modes.add_parser("native", help="serve a folder that holds identity.tar and shard.tar")
    native.add_argument("folder", type=Path)
    real = modes.add_parser("deployed", help="on a real drive: serve whoever gives it an identity")
    real.add_argument("folder", type=Path)
    modes.add_parser("self-check", help="train one step, and print what this machine runs on")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop(stop))
    try:
        _serve(arguments, stop)
    except CsdError as error:
        print(f"csd-agent: {error}", file=sys.stderr)
        _mourn(arguments.mode, str(error))
        return error.exit_code
    except Exception as error:  # whatever it is, the host must not wait for an agent that has ended
        _mourn(arguments.mode, repr(error))
        raise
    except _Stopped:
        pass
    return 0


class _Stopped(BaseException):
    """Raised in the main thread when the agent is told to stop, wherever it is."""


def _stop(stop: threading.Event) -> None:
    if not stop.is_set():  # told again: what the first time set going must not be cut short
        stop.set()
        raise _Stopped


def _mourn(mode: str, why: str) -> None:
    if mode == "drive":
        drive.say(f"{FAILED_MARKER} {why}")


def _serve(arguments: argparse.Namespace, stop: threading.Event) -> None:
    set_aside()
    match arguments.mode:
        case "drive":
            drive.serve_drive(stop)
        case "deployed":
            deployed.serve_deployed(arguments.folder, stop)
        case "self-check":
            print(json.dumps(deployed.self_check()))
        case _:
            drive.serve_folder(arguments.folder, stop)


if __name__ == "__main__":
    sys.exit(main())
