"""Ctrl-C and SIGTERM: the first one ends the work, none ever interrupts the cleaning up."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Collection, Coroutine, Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


class Interrupts:
    """Turns the first signal into `KeyboardInterrupt`; remembers it if it comes while cleaning up.

    Attributes:
        signal: number of the first signal; None until there is one.
    """

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.signal: int | None = None
        self._deferred = 0
        self._pending = False
        self._raised = False
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle signals inside the block; outside of the main thread there is nothing to do."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def forget(self) -> None:
        """Take the next signal as the first one."""
        self.signal, self._pending, self._raised = None, False, False

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Clean up inside the block: a signal that comes meanwhile raises only after it.

        In another than the main thread it raises after the main thread's next such block.
        """
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        if (
            threading.current_thread() is threading.main_thread()
            and self._pending
            and not self._deferred
            and not self._raised
        ):
            self._raised = True
            raise KeyboardInterrupt

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in a new event loop; the first signal cancels it and becomes `KeyboardInterrupt`.

        Threads that `work` started have ended when this returns or raises.
        """
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            try:
                return runner.run(self._hold(work))
            except asyncio.CancelledError:
                if self._raised:
                    raise KeyboardInterrupt from None
                raise
            finally:
                self._loop = self._task = None
                # Anything that is left of the loop is cleaning up.
                self._deferred += 1
                try:
                    runner.close()
                finally:
                    self._deferred -= 1

    async def wait(self, *works: Coroutine[Any, Any, None]) -> None:
        """Wait, in what `run` runs, for the first signal, which then ends the wait and nothing else.

        Args:
            works: go on meanwhile and are cancelled then; the first of them that ends, ends the wait with its error.
        """
        tasks = [*map(asyncio.create_task, works), asyncio.create_task(asyncio.Event().wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except asyncio.CancelledError:
            if not self._raised or self._task is None:
                raise
            self._task.uncancel()
        finally:
            await end_tasks(tasks)

    async def _hold(self, work: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.current_task()
        return await work

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self._pending = True
        if self._deferred or self._raised:
            return
        self._raised = True
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        else:
            raise KeyboardInterrupt


async def all_or_none(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all; with the first error the others are cancelled, and have ended when it is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await end_tasks(tasks)
        raise


async def end_tasks(tasks: Collection[asyncio.Task[T]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


INTERRUPTS = Interrupts()
