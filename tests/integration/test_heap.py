"""What lives as long as the process is left alone by the collector, once."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from firmware_agent.common.heap import set_aside

class Ring:
    def __init__(self):
        self.own = self

import weakref
garbage = weakref.ref(Ring())
kept = [Ring() for _ in range(100)]
before = gc.get_freeze_count()
set_aside()
first = gc.get_freeze_count()
set_aside()
later = weakref.ref(Ring())
gc.collect()
print(garbage() is None, before == 0, first > 100, gc.get_freeze_count() == first, later() is None)
"""


def test_what_lives_is_set_aside_once_and_garbage_is_not() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True"] * 5
