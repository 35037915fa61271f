"""Runs the tools an image build needs, so that a cancelled or failed build leaves no process behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from firmware_agent.errors import EnvironmentUnfit, ImageError

_POLL_SECONDS = 0.1
_SHOWN_LINES = 4
# Debian keeps mke2fs and depmod where an ordinary user's PATH does not look.
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def find_tool(name: str, package: str) -> str:
    """Return the path of a program.

    Raises:
        EnvironmentUnfit: it is not installed; names the Debian package that has it.
    """
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS])
    found = shutil.which(name, path=folders)
    if found is None:
        raise EnvironmentUnfit(f"{name}: not found, but building the ARM image needs it; install the package {package}")
    return found


class Runner:
    """Runs programs to their end; after `cancel` every one of them is killed and no other starts."""

    def __init__(self, cancelled: threading.Event | None = None) -> None:
        self._cancelled = cancelled or threading.Event()

    def check(self) -> None:
        """Raise `ImageError` if the build has been cancelled."""
        if self._cancelled.is_set():
            raise ImageError("the image build was cancelled; run it again, what was downloaded is kept")

    def run(
        self,
        command: Sequence[str | Path],
        purpose: str,
        *,
        environment: Mapping[str, str] | None = None,
        accept: Sequence[int] = (0,),
    ) -> str:
        """Run a program and return its standard output.

        Args:
            command: program and arguments.
            purpose: what an error message says was attempted, for example ``unpack bash.deb``.
            environment: variables to set besides those of this process.
            accept: exit codes that are no failure.

        Raises:
            ImageError: the program failed, cannot be started, or the build was cancelled.
        """
        process = self._start(command, environment)
        output, errors = self._finish(process)
        if process.returncode not in accept:
            raise failure(purpose, process.returncode, errors or output)
        return output

    def pipe(self, source: Sequence[str | Path], sink: Sequence[str | Path], purpose: str) -> None:
        """Run `source` with its output going into `sink`; raises like `run`."""
        self.check()
        with subprocess.Popen(source, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as first:
            try:
                second = self._start(sink, None, first.stdout)
                if first.stdout is not None:
                    first.stdout.close()
                _, errors = self._finish(second)
            finally:
                if first.poll() is None and self._cancelled.is_set():
                    first.kill()
            first.wait()
        if first.returncode or second.returncode:
            raise failure(purpose, second.returncode or first.returncode, errors)

    def _start(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None, source: object = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        self.check()
        try:
            return subprocess.Popen(
                command,
                stdin=source,  # type: ignore[arg-type]
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
            )
        except OSError as error:
            raise ImageError(f"{command[0]}: cannot be started ({error})") from error

    def _finish(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        try:
            while True:
                try:
                    output, errors = process.communicate(timeout=_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    self.check()
                    continue
                self.check()
                return output, errors
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


def failure(purpose: str, code: int, errors: str) -> ImageError:
    """Return the error for a program that ended with `code`, with the last lines it wrote."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = "; ".join(lines[-_SHOWN_LINES:]) or "it said nothing"
    remedy = "free some disk space and run it again" if "No space left" in errors else "run it again"
    return ImageError(f"cannot {purpose} (exit code {code}): {said}; {remedy}")
