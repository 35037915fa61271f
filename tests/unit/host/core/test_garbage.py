import gc
import signal
import weakref
from collections.abc import Iterator

import pytest

from host.core.interrupts import Interrupts
from host.core.rare_collections import rare_collections


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Node:
    """Garbage that only the search for cycles finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_what_is_there_is_left_alone_inside_and_looked_through_again_afterwards() -> None:
    old = Node()
    ended = weakref.ref(old)
    with rare_collections():
        del old
        gc.collect()
        assert ended() is not None
        new = weakref.ref(Node())
        gc.collect()
        assert new() is None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert ended() is None


@pytest.mark.slow
@pytest.mark.parametrize("before", [(700, 10, 10), (0, 0, 0), (10**6, 5, 5)])
def test_collections_are_rarer_inside_and_as_before_afterwards(before: tuple[int, int, int]) -> None:
    gc.set_threshold(*before)
    with rare_collections():
        inside = gc.get_threshold()
    assert gc.get_threshold() == before
    # Zero: somebody has switched it off.
    assert inside[0] >= max(before[0], 10_000) if before[0] else inside[0] == 0


def fail_inside(error: Exception) -> None:
    with rare_collections():
        raise error


@pytest.mark.slow
def test_an_error_inside_ends_it_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError):
        fail_inside(KeyError())
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
def test_a_signal_that_comes_while_garbage_is_collected_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts = Interrupts()
    monkeypatch.setattr("host.core.rare_collections.INTERRUPTS", interrupts)
    garbage = Node()
    seen = weakref.ref(garbage, lambda _: signal.raise_signal(signal.SIGTERM))
    del garbage
    with interrupts.installed(), pytest.raises(KeyboardInterrupt), rare_collections():
        pass
    assert seen() is None
