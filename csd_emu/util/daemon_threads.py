"""Work in threads that do not keep the process from ending."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_thread(purpose: str, work: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Do `work` in a thread of its own, which does not keep the process from ending."""
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # it is raised where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, name=purpose, daemon=True).start()
    return done
