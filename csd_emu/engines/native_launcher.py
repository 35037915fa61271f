"""Launcher of native drives: imports the agent once, and is forked for each drive.

It is run as a file. A line of its input is the folder of a drive, in JSON; the answer is the number of the process that
serves the folder from then on, with the folder as its working directory and `console.log` in it as its output; or why
there is none. It ends with its input; the drives go on.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

# The launcher's own working directory, so that it is in no drive's.
CONSOLE, LAUNCHER_FOLDER = "console.log", "/"


def main() -> None:
    """Fork a drive for each line of input; a drive leaves with the agent's exit code."""
    os.chdir(LAUNCHER_FOLDER)
    agent = importlib.import_module("firmware_agent.__main__")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps drives that have ended
    for line in sys.stdin.buffer:
        folder = json.loads(line)
        try:
            console = os.open(os.path.join(folder, CONSOLE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            pid = os.fork()
        except OSError as error:
            sys.stdout.write(f"{error}\n")
            sys.stdout.flush()
            continue
        if pid == 0:
            os.chdir(folder)
            _leave_launcher(console)
            sys.argv = ["firmware_agent", "native", folder]
            code = agent.main()
            sys.stdout.flush()
            os._exit(code)  # taking torch down takes longer than all else
        os.close(console)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    os._exit(0)


def _leave_launcher(console: int) -> None:
    os.setsid()  # Ctrl-C reaches the host alone
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, source in ((0, null), (1, console), (2, console)):
        os.dup2(source, descriptor)
    os.close(null)
    os.close(console)


if __name__ == "__main__":
    main()
