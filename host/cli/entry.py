"""Entry point of `csd-emu`: with the standard library alone, so that a missing package is one line and no traceback."""

from __future__ import annotations

import gc
import sys

from firmware_agent import __version__

_OURS = ("csd_emu", "firmware_agent", "host", "csd_lab")
UNFIT = 2


def main() -> None:
    """Run the command line, or say which extra is not installed."""
    if sys.argv[1:] == ["--version"]:
        print(f"csd-emu {__version__}")
        return
    if sys.argv[1:2] == ["run"] and "--json" not in sys.argv and sys.stderr.isatty():
        print("csd-emu: read job and array ...", file=sys.stderr, flush=True)  # imports take seconds
    try:
        from host.cli.main import main as run

        run()
    except ModuleNotFoundError as error:
        if not (package := (error.name or "").partition(".")[0]) or package in _OURS:
            raise
        print(missing_package(package), file=sys.stderr)
        sys.exit(UNFIT)
    finally:
        gc.freeze()  # else Python's end goes through all of torch once more, for a second


def missing_package(package: str) -> str:
    """Return what to say when a Python package of an extra is not there."""
    if package.startswith("libvirt"):
        return (
            "csd-emu: libvirt-python is not installed; pip install 'csd-emu[qemu]' (in a clone: scripts/setup-python)"
        )
    return (
        f"csd-emu: the Python package {package} is not installed; install what the command line needs: "
        "pip install 'csd-emu[host]' (before that, for a machine without an NVIDIA GPU, a CPU build of torch: "
        "pip install torch --index-url https://download.pytorch.org/whl/cpu)"
    )
