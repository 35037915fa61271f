"""Linear algebra on one thread: the planner's matrices are small, and threads on a busy machine wait for each other."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


def on_one_thread() -> AbstractContextManager[object]:
    """Have numpy's and scipy's linear algebra, of this whole process, compute on one thread inside the block."""
    limited: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limited


@cache
def _controller() -> ThreadpoolController:
    # It looks for the libraries once: whoever plans has imported both.
    return ThreadpoolController()
