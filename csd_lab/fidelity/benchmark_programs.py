"""What is compared with boards: loops over memory, ncnn's networks and CoreMark, each run under the core model."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path

from csd_emu.cycles.mark_file import CycleMark
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.image import Image
from csd_emu.profiles.calibration.cycle_counts import PhaseCycles
from csd_lab.fidelity.bare_machine import run_bare
from csd_lab.fidelity.benchmark_machine import SHOWN_CHARACTERS, run_program
from csd_lab.fidelity.published_boards import STRIDE_BYTES
from firmware_agent.common.atomic_files import read_file
from firmware_agent.common.errors import CalibrationError, ConfigurationError
from firmware_agent.common.frames.measure_frames import PhaseMark
from host.app.cycle_counter import phases_between

# Of the loops over memory: bytes that are read, written and copied, the least memory of random reads, and how many.
LOOP_BYTES, LEAST_KIBIBYTES, RANDOM_READS = 8 << 20, 16, 100_000
LOOPS_SOURCE, STRIDED_SOURCE = "memory_loops.c", "strided_reads.c"
LOOPS, RANDOM_READ, STRIDED_READ = {1: "read", 2: "write", 3: "copy"}, 4, 1
# Of the image: its packages are for this one.
IMAGE_PYTHON = "cp311"
# CoreMark's arguments: seeds of the performance run, iterations, algorithms, contexts, bytes.
COREMARK_ARGUMENTS = "0x0 0x0 0x66 {iterations} 7 1 2000"
_ITERATIONS = (20, 220)
# Wall time of a boot and of a network; a busy machine takes several times as long as a quiet one.
_BOOT_SECONDS, _NETWORK_SECONDS = 300.0, 600.0
_MOST_FILE_BYTES = 256 << 20


@dataclass(frozen=True)
class MemoryTimes:
    """What the loops over memory took, in the terms of `published_boards.MemoryBoard`."""

    megabytes_per_second: dict[str, float]
    random_read_nanoseconds: dict[int, float]


def measure_memory(plugin: CyclePlugin, most_kibibytes: int) -> MemoryTimes:
    """Run the loops over memory on a bare core.

    Raises:
        EnvironmentUnfit: there is no compiler for ARM, or no QEMU.
        CalibrationError: the program failed.
    """
    marks = run_bare(plugin, LOOPS_SOURCE, loop_constants(most_kibibytes))
    scale = 1000 / plugin.parameters.clock_megahertz
    loops = [(after.mark, (after.cycles - before.cycles) * scale) for before, after in pairwise(marks)]
    if not loops:
        raise CalibrationError("the loops over memory executed no marks; see whether csd-emu calibrate counts cycles")
    return memory_times(loops)


def measure_strided_reads(plugin: CyclePlugin, most_kibibytes: int) -> dict[int, float]:
    """Run dependent reads, `STRIDE_BYTES` apart, on a bare core; return KiB of memory -> nanoseconds of one.

    Raises:
        EnvironmentUnfit: there is no compiler for ARM, or no QEMU.
        CalibrationError: the program failed.
    """
    marks = run_bare(plugin, STRIDED_SOURCE, loop_constants(most_kibibytes) | {"STRIDE_BYTES": STRIDE_BYTES})
    scale = 1000 / plugin.parameters.clock_megahertz / RANDOM_READS
    walks = [(after.cycles - before.cycles) * scale for before, after in pairwise(marks) if after.mark == STRIDED_READ]
    return {LEAST_KIBIBYTES << number: nanoseconds for number, nanoseconds in enumerate(walks)}


def loop_constants(most_kibibytes: int) -> dict[str, int]:
    """Return the constants of the loops over memory; random reads go up to so many KiB."""
    sizes = {"BYTES": LOOP_BYTES, "LEAST_KIBIBYTES": LEAST_KIBIBYTES, "MOST_KIBIBYTES": most_kibibytes}
    return sizes | {"TIMES": RANDOM_READS}


def memory_times(loops: Sequence[tuple[int, float]]) -> MemoryTimes:
    """Return what the loops over memory took; `loops` are their marks and nanoseconds, at least one of random reads."""
    reads = [nanoseconds / RANDOM_READS for mark, nanoseconds in loops if mark == RANDOM_READ]
    return MemoryTimes(
        {LOOPS[mark]: LOOP_BYTES / nanoseconds * 1000 for mark, nanoseconds in loops if mark in LOOPS},
        {LEAST_KIBIBYTES << number: read - reads[0] for number, read in enumerate(reads)},
    )


def measure_networks(
    image: Image, plugin: CyclePlugin, networks: Mapping[str, tuple[int, int, int]], files: Mapping[str, bytes]
) -> dict[str, PhaseCycles]:
    """Run networks of ncnn with one thread, and return what each counted.

    Args:
        image: of the drives.
        plugin: the core model.
        networks: name -> width, height and channels of the input.
        files: descriptions and ncnn's package (see `ncnn_files`).

    Raises:
        CalibrationError: a network failed.
    """
    sizes = "".join(f"{name} {' '.join(map(str, shape))}\n" for name, shape in networks.items())
    program = {"networks.txt": sizes.encode(), "ncnn_networks.py": guest_file("ncnn_networks.py")}
    seconds = _BOOT_SECONDS + _NETWORK_SECONDS * len(networks)
    marks, _ = run_program(image, plugin, "/usr/bin/python3 ncnn_networks.py", {**files, **program}, seconds)
    return dict(zip(networks, _runs(marks, len(networks)), strict=True))


def measure_coremark(image: Image, plugin: CyclePlugin, programs: Sequence[Path]) -> float:
    """Run a CoreMark for 64-bit ARM Linux, behind its loader if it has one; return its iterations per million cycles.

    Two runs are compared, so that what begins and ends a process is not counted.

    Raises:
        ConfigurationError: a program cannot be read.
        CalibrationError: it failed.
    """
    files = {f"program-{number}": read_program(path) for number, path in enumerate(programs)}
    command = " ".join(f"./{name}" for name in files)
    files["counted_command.py"] = guest_file("counted_command.py")
    runs = [
        f"/usr/bin/python3 counted_command.py {command} {COREMARK_ARGUMENTS.format(iterations=n)}" for n in _ITERATIONS
    ]
    marks, shown = run_program(image, plugin, " && ".join(runs), files, _BOOT_SECONDS + _NETWORK_SECONDS)
    few, many = _runs(marks, len(runs))
    # It also says that it ran too shortly to be valid by its own rules, which is meant.
    if "CoreMark" not in shown or "should be" in shown or many.cycles <= few.cycles:
        raise CalibrationError(
            f"{programs[-1]} is no CoreMark, or computed wrongly: {shown[-SHOWN_CHARACTERS:].strip()}"
        )
    return (_ITERATIONS[1] - _ITERATIONS[0]) / (many.cycles - few.cycles) * 1e6


def _runs(marks: list[CycleMark], count: int) -> list[PhaseCycles]:
    """Return what was counted before each of `count` marks `FORWARD`, since the mark before it."""
    runs = [counts for name, counts in phases_between(marks) if name == PhaseMark.FORWARD.name.lower()]
    if len(runs) != count:
        raise CalibrationError(f"{len(runs)} of {count} runs were marked; another program executed marks, or none did")
    return runs


def ncnn_files(networks: Iterable[str], folder: Path, release: str, python: str = IMAGE_PYTHON) -> dict[str, bytes]:
    """Return the descriptions of networks and ncnn's package, by the paths that they have in the machine.

    Args:
        networks: their names.
        folder: has a description of each, ``NAME.param``, and ncnn's package for that Python.
        release: of ncnn.
        python: tag of the Python that runs them, as packages have it.

    Raises:
        ConfigurationError: the folder lacks one of them, or it is damaged.
    """
    return {f"{name}.param": read_program(folder / f"{name}.param") for name in networks} | _package(
        folder, release, python
    )


def _package(folder: Path, release: str, python: str) -> dict[str, bytes]:
    """Return the files of ncnn's package, below ``site``."""
    found = sorted(folder.glob(f"ncnn-{release}-{python}-*aarch64*.whl"))
    if not found:
        raise ConfigurationError(
            f"{folder} has no package of ncnn {release} for the Python that runs it ({python}); get it with pip "
            f"download ncnn=={release} --no-deps --only-binary :all: --python-version {python[2:]} "
            f"--platform manylinux_2_17_aarch64 --platform manylinux_2_28_aarch64 --dest {folder}"
        )
    try:
        with zipfile.ZipFile(found[0]) as package:
            members = [each for each in package.infolist() if not each.is_dir()]
            if sum(each.file_size for each in members) > _MOST_FILE_BYTES:
                raise ConfigurationError(f"{found[0]} holds over {_MOST_FILE_BYTES} bytes; take ncnn's own package")
            return {f"site/{each.filename}": package.read(each) for each in members}
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigurationError(f"{found[0]} cannot be read ({error}); download it again") from error


def guest_file(name: str) -> bytes:
    """Return a file of `csd_lab/fidelity/guest`."""
    return (resources.files("csd_lab.fidelity") / "guest" / name).read_bytes()


def read_program(path: Path) -> bytes:
    """Return the content of a file that the user named.

    Raises:
        ConfigurationError: it cannot be read, is empty, or is too large.
    """
    try:
        content = read_file(path, _MOST_FILE_BYTES)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}); name another file or folder") from error
    if not content:
        raise ConfigurationError(f"{path} is empty; name another file or folder")
    return content
