"""Published measurements of boards with Cortex-A53 cores: `published_boards.yaml`, read."""

from __future__ import annotations

from importlib import resources

import msgspec

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.util.yaml_files import parse_yaml

# Where a board's latency of DRAM is from: random reads in so much memory.
FITTED_KIBIBYTES = 8192
# Between strided reads: LMBench's lat_mem_rd with that stride.
STRIDE_BYTES = 128
# A read at random also waits for the TLB: a miss of the micro TLB, and a walk (`core_model/memory.c`).
_TLB_CYCLES = 2 + 20


class NetworkBoard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of ncnn's networks on one board.

    Attributes:
        board: its name.
        source: of the times.
        ncnn: the release that was nearest to their date.
        clock_megahertz: as the source has it.
        memory_source: where `memory` is from.
        memory: parameters of the core that are not the model's defaults.
        all_cores_megabytes_per_second: of its DRAM, for all cores together.
        all_cores_source: where that is from.
        milliseconds: threads -> network -> the least time of one run.
    """

    board: str
    source: str
    ncnn: str
    clock_megahertz: int
    memory_source: str
    memory: dict[str, int]
    all_cores_megabytes_per_second: int
    all_cores_source: str
    milliseconds: dict[int, dict[str, float]]

    @property
    def networks(self) -> list[str]:
        """Those that one thread ran."""
        return list(self.milliseconds[1])

    @property
    def core(self) -> CoreParameters:
        """The core of the model that stands for it."""
        return CoreParameters(clock_megahertz=self.clock_megahertz, **self.memory)


class MemoryBoard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Memory of one board, seen by one core.

    Attributes:
        board: its name.
        source: of the figures.
        clock_megahertz: as it was measured beside them.
        l2_kibibytes: size of the second level, from the latencies.
        megabytes_per_second: of reading, writing and copying 8 MiB and more.
        random_read_nanoseconds: KiB of memory -> of a dependent read there, beyond one that the first level has; empty
            if none was published.
        strided_read_nanoseconds: KiB of memory -> of a dependent read there, `STRIDE_BYTES` behind the one before.
    """

    board: str
    source: str
    clock_megahertz: int
    l2_kibibytes: int
    megabytes_per_second: dict[str, int]
    random_read_nanoseconds: dict[int, float] = {}
    strided_read_nanoseconds: dict[int, float] = {}

    @property
    def core(self) -> CoreParameters:
        """The core that stands for it: DRAM's bandwidth is that of writing, its latency from the read in 8 MiB.

        Without that read the latency is the model's default.
        """
        usual, fitted = CoreParameters(), self.random_read_nanoseconds.get(FITTED_KIBIBYTES)
        beyond = (usual.l2_cycles + _TLB_CYCLES) * 1000 / self.clock_megahertz
        in_dram = 1 - self.l2_kibibytes / FITTED_KIBIBYTES
        return CoreParameters(
            clock_megahertz=self.clock_megahertz,
            l2_kibibytes=self.l2_kibibytes,
            dram_nanoseconds=usual.dram_nanoseconds if fitted is None else round(fitted / in_dram - beyond),
            dram_megabytes_per_second=self.megabytes_per_second["write"],
        )


class CoreMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CoreMark's score per megahertz."""

    board: str
    source: str
    per_megahertz: float


class PublishedBoards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`published_boards.yaml`, or a part of it that was measured elsewhere, as ``csd-emu fidelity --save`` writes it.

    Attributes:
        networks: name -> width, height and channels of the input.
        boards, memory, coremark: what was measured, board by board.
    """

    networks: dict[str, tuple[int, int, int]]
    boards: list[NetworkBoard]
    memory: list[MemoryBoard]
    coremark: list[CoreMark]


def load_published() -> PublishedBoards:
    """Return the published measurements."""
    text = (resources.files("csd_lab.fidelity") / "published_boards.yaml").read_text(encoding="utf-8")
    return msgspec.convert(parse_yaml(text, "published_boards.yaml"), PublishedBoards)
