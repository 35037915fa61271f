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
    for name in ("harness_dram_bytes", "harness_mispredicted"):
        function = getattr(loaded, name)
        function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_uint64
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
    def dram_bytes(self) -> int:
        """Bytes that crossed the bus."""
        return int(self._model.harness_dram_bytes(self._core))

    @property
    def mispredicted(self) -> int:
        """Branches that were predicted wrongly."""
        return int(self._model.harness_mispredicted(self._core))
