"""Runner of an image build's tools, which leaves no process behind when the build fails or is cancelled."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO, TypeVar

from firmware_agent.common.errors import EnvironmentUnfit, ImageError

T = TypeVar("T")

_POLL_SECONDS = 0.1
_SHOWN_LINES = 2
_ERROR_LINE = re.compile(r"(\S+: )?(E|Err|ERROR|error):|\*\*\* Error|\w+Error:")
# Debian keeps mke2fs and depmod where an ordinary user's PATH does not look.
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def find_tool(name: str, package: str) -> str:
    """Return the path of a program.

    Raises:
        EnvironmentUnfit: it is not installed; names the Debian package that has it.
    """
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS])
    if (found := shutil.which(name, path=folders)) is None:
        raise EnvironmentUnfit(f"{name}: not found, but building the ARM image needs it; install the package {package}")
    return found


class Runner:
    """Runs programs to their end; after `cancel` every one of them is killed and no other starts."""

    def __init__(self, cancelled: threading.Event | None = None) -> None:
        self._cancelled = cancelled or threading.Event()
        self._running: set[subprocess.Popen[str]] = set()

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
        remedy: str = "run it again",
        on_poll: Callable[[], None] = lambda: None,
    ) -> str:
        """Run a program and return its standard output.

        Args:
            command: program and arguments.
            purpose: what an error message says was attempted, for example ``unpack bash.deb``.
            environment: variables to set besides those of this process.
            accept: exit codes that are no failure.
            remedy: what an error message tells the user to do.
            on_poll: called several times a second while the program runs.

        Raises:
            ImageError: the program failed, cannot be started, or the build was cancelled.
        """
        process = self._start(command, environment)
        output, errors = self._finish(process, on_poll)
        if process.returncode not in accept:
            raise failure(purpose, process.returncode, errors or output, remedy)
        return output

    def pipe(self, source: Sequence[str | Path], sink: Sequence[str | Path], purpose: str) -> None:
        """Run `source` with its output going into `sink`; raises like `run`."""
        self.check()
        with (
            tempfile.TemporaryFile() as complaints,
            subprocess.Popen(source, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints) as first,
        ):
            try:
                second = self._start(sink, None, first.stdout)
                if first.stdout is not None:
                    # Only the sink may hold the pipe, or the source would not notice that the sink has ended.
                    first.stdout.close()
                _, errors = self._finish(second)
            except BaseException:
                first.kill()
                raise
            first.wait()
            complaints.seek(0)
            earlier = complaints.read().decode(errors="replace")
            # A source whose sink fails complains too, but about the wrong thing.
            errors = errors if "roken pipe" in earlier else earlier + errors
        if first.returncode or second.returncode:
            remedy = "remove the damaged file from the download cache and run it again"
            raise failure(purpose, first.returncode or second.returncode, errors, remedy)

    def parallel(self, work: Callable[[T], None], items: Sequence[T], advance: Callable[[float], None]) -> None:
        """Call `work`, which runs programs here, for every item, on all cores; the first failure ends all of it.

        `advance` is told how much is done, 0 to 1.
        """
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            try:
                for done, future in enumerate(as_completed([pool.submit(work, item) for item in items]), 1):
                    future.result()
                    advance(done / len(items))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self._running):
                    process.kill()
                raise

    def _start(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None,
        source: IO[bytes] | int | None = subprocess.DEVNULL,
    ) -> subprocess.Popen[str]:
        self.check()
        try:
            return subprocess.Popen(
                command,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
            )
        except OSError as error:
            raise ImageError(f"{command[0]}: cannot be started ({error})") from error

    def _finish(self, process: subprocess.Popen[str], on_poll: Callable[[], None] = lambda: None) -> tuple[str, str]:
        self._running.add(process)
        try:
            while True:
                try:
                    output, errors = process.communicate(timeout=_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    self.check()
                    on_poll()
                    continue
                self.check()
                return output, errors
        finally:
            self._running.discard(process)
            if process.poll() is None:
                process.kill()
                process.wait()
            # Not read to their end: what the program itself started may still hold them open.
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def failure(purpose: str, code: int, errors: str, remedy: str) -> ImageError:
    """Return the error for a program that ended with `code`; quotes what it called errors, else its last lines."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    chosen = [line for line in lines if _ERROR_LINE.match(line)][:_SHOWN_LINES] or lines[-_SHOWN_LINES:]
    said = "; ".join(chosen) or "it said nothing"
    if "No space left" in errors:
        remedy = "free some disk space and run it again"
    return ImageError(f"cannot {purpose} (exit code {code}): {said}; {remedy}")
