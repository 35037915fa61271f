"""A shaped link: on the wall clock, the drives of an array of native devices share a bandwidth each way."""

from __future__ import annotations

from pathlib import Path

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines.shaping.namespace_shaper import LONGEST_LATENCY_SECONDS, NamespacedLink, can_make_namespaces
from csd_emu.engines.shaping.relay_shaper import LINK_FOLDER, RelayedLink, end_relay
from csd_emu.engines.shaping.shaper import Shape, Shaper, link_shape

__all__ = ["Shape", "Shaper", "link_shape", "make_shaper", "release"]


def make_shaper(config: ArrayConfig, arrays_folder: Path) -> Shaper | None:
    """Return what shapes the link of this array, not yet opened; None if its file does not ask for that.

    ``auto`` is a network namespace where this process may make one and the link's latency is that of the machine, a
    relay elsewhere.
    """
    if (kind := config.link.shaped) is None:
        return None
    shape = link_shape(config)
    if kind == "auto":
        kind = "namespace" if shape.latency_seconds <= LONGEST_LATENCY_SECONDS and can_make_namespaces() else "relay"
    return NamespacedLink(config.name, shape) if kind == "namespace" else RelayedLink(arrays_folder, config.name, shape)


def release(arrays_folder: Path, array: str) -> None:
    """Take down whatever link was shaped for the array of this name; nothing is a success too."""
    NamespacedLink(array).close()
    end_relay(arrays_folder / array / LINK_FOLDER)
