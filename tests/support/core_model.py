"""The core model as a shared library, for tests."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.cycles.plugin_build import SOURCES

_START = 0x400000


class _Parameters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in CoreParameters.__struct_fields__]


class Operation(ctypes.Structure):
    """A decoded word, as in ``struct operation``."""

    _fields_ = [
        *((name, ctypes.c_uint8) for name in ("unit", "occupies", "slots", "sources", "results")),
        *((name, ctypes.c_uint8 * 6) for name in ("source", "use")),
        *((name, ctypes.c_uint8 * 5) for name in ("result", "latency", "producer")),
        ("flags", ctypes.c_uint16),
    ]

    @property
    def unit_name(self) -> str:
        """The unit that it takes."""
        return ("none", "alu", "multiply", "divide", "memory", "branch", "vector")[self.unit]

    @property
    def reads(self) -> list[str]:
        """Names of the registers that it reads."""
        return [_register(number) for number in self.source[: self.sources]]

    @property
    def writes(self) -> list[str]:
        """Names of the registers that it writes, each with its latency: ``x1:3``."""
        results = zip(self.result[: self.results], self.latency, strict=False)
        return [f"{_register(number)}:{latency}" for number, latency in results]


def _register(number: int) -> str:
    return {31: "sp", 64: "nzcv"}.get(number, f"x{number}" if number < 31 else f"v{number - 32}")


def decoded(model: ctypes.CDLL, word: int) -> Operation:
    """Return what the model makes of one word."""
    operation = Operation()
    model.decode(ctypes.c_uint32(word), ctypes.byref(operation))
    return operation


class Counters(ctypes.Structure):
    """What a core counted, as in ``struct counters``."""

    instructions: int
    cycles: int
    dram_bytes: int
    l1_misses: int
    l2_misses: int
    tlb_misses: int
    instruction_misses: int
    prefetches: int
    mispredicted: int
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("instructions", "cycles", "dram_bytes", "loads", "stores", "l1_misses", "l2_misses", "tlb_misses"),
            *("instruction_misses", "prefetches", "branches", "mispredicted"),
        )
    ]


def build_model(folder: Path) -> ctypes.CDLL:
    """Compile the model with a harness, sanitizers on, and load it."""
    model, library = SOURCES[-1].parent, folder / "model.so"
    harness = Path(__file__).with_name("core_model_harness.c")
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fsanitize=undefined"]
    flags += ["-fno-sanitize-recover", "-Wl,-Bsymbolic", f"-I{model}", "-o", str(library)]
    subprocess.run(["cc", *flags, str(harness), *map(str, SOURCES[1:])], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.core_new.argtypes, loaded.core_new.restype = [ctypes.POINTER(_Parameters)], ctypes.c_void_p
    loaded.core_free.argtypes = [ctypes.c_void_p]
    loaded.parameters_problem.argtypes, loaded.parameters_problem.restype = (
        [ctypes.POINTER(_Parameters)],
        ctypes.c_char_p,
    )
    loaded.harness_counters.argtypes = [ctypes.c_void_p]
    loaded.harness_counters.restype = ctypes.POINTER(Counters)
    loaded.harness_run.restype = ctypes.c_uint64
    loaded.harness_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64]
    loaded.harness_run.argtypes += [ctypes.c_void_p, ctypes.c_uint64]
    return loaded


def c_parameters(parameters: CoreParameters) -> _Parameters:
    """Return the parameters as the model takes them."""
    return _Parameters(**msgspec.structs.asdict(parameters))


class ModelCore:
    """One core; a context manager."""

    def __init__(self, model: ctypes.CDLL, parameters: CoreParameters | None = None) -> None:
        """Make a core with empty caches."""
        self._model = model
        self._core = model.core_new(ctypes.byref(c_parameters(parameters or CoreParameters())))
        assert self._core

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._model.core_free(self._core)

    def run(
        self, words: Sequence[int], addresses: Sequence[int] = (), next_address: int = 0, start: int = _START
    ) -> int:
        """Run a block, and return all cycles so far; without `next_address` it goes on behind the block."""
        count = len(words)
        code = (ctypes.c_uint32 * count)(*words)
        places = (ctypes.c_uint64 * count)(*(addresses or [0] * count))
        return int(self._model.harness_run(self._core, code, count, start, places, next_address or start + 4 * count))

    @property
    def counters(self) -> Counters:
        """All that was counted so far."""
        counters: Counters = self._model.harness_counters(self._core).contents
        return counters
