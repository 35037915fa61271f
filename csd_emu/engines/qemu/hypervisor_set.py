"""All hypervisors of an array, queried in parallel, each with a deadline, so that a failing one delays no other."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import libvirt

from csd_emu.config.array_file import ArrayConfig
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.engines.qemu.connection import watch_connections, within
from csd_emu.engines.qemu.hypervisor import Hypervisor
from csd_emu.engines.qemu.local_hypervisor import LocalSite
from csd_emu.engines.qemu.remote_hypervisor import RemoteSite
from csd_emu.engines.remote.server_id import server_id
from csd_emu.util.daemon_threads import in_thread
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import CsdError, EnvironmentUnfit

log = logging.getLogger(__name__)
T = TypeVar("T")
# What one question to a hypervisor elsewhere may take.
CALL_SECONDS = 60.0
_END_SECONDS = 20.0
TROUBLE = (CsdError, libvirt.libvirtError)


class Sites(dict[str, Hypervisor]):
    """Name -> hypervisor, in the order of the array file."""

    def __init__(self, sites: Mapping[str, Hypervisor]) -> None:
        """Take the hypervisors; nothing is connected yet."""
        super().__init__(sites)
        self._said: set[str] = set()

    @classmethod
    def make(cls, config: ArrayConfig, paths: Paths, plugin: CyclePlugin | None = None) -> Sites:
        """Return those of an array; machines of this machine's own daemon load `plugin`.

        Raises:
            EnvironmentUnfit: this machine lacks something.
        """
        sections, memory = config.named_hypervisors, int(config.memory)
        if any(not section.local for section in sections.values()):
            watch_connections()  # before any connection is opened
        return cls(
            {
                name: LocalSite(name, section, paths, memory, plugin, config.image.packages)
                if section.local
                else RemoteSite(name, section, server_id(paths.state), memory)
                for name, section in sections.items()
            }
        )

    @property
    def only(self) -> Hypervisor | None:
        """The only hypervisor, None of several."""
        return next(iter(self.values())) if len(self) == 1 else None

    def call(self, site: Hypervisor, purpose: str, work: Callable[[], T], seconds: float = CALL_SECONDS) -> T:
        """Return what `work` returns, which calls libvirt; no later than in `seconds` if that may be far away.

        Raises:
            NoAnswer: it took longer.
        """
        return work() if isinstance(site, LocalSite) else within(seconds, f"{purpose} on hypervisor {site.name}", work)

    def on_each(
        self, names: Iterable[str], purpose: str, work: Callable[[Hypervisor], T], seconds: float | None = CALL_SECONDS
    ) -> tuple[dict[str, T], dict[str, Exception]]:
        """Do `work` on these hypervisors at once; return what it returned, and the errors.

        Args:
            names: of the hypervisors.
            purpose: for messages.
            work: is given one of them.
            seconds: what it may take on one that may be far away; None: as long as its connection lives.
        """

        def one(name: str) -> T | Exception:
            site = self[name]
            try:
                return work(site) if seconds is None else self.call(site, purpose, lambda: work(site), seconds)
            except TROUBLE as error:
                return error

        wanted = list(names)
        results = [one(wanted[0])] if len(wanted) == 1 else self._at_once(wanted, purpose, one)
        pairs = list(zip(wanted, results, strict=True))
        problems = {name: result for name, result in pairs if isinstance(result, Exception)}
        return {name: result for name, result in pairs if not isinstance(result, Exception)}, problems

    def on_all(self, purpose: str, work: Callable[[Hypervisor], T]) -> dict[str, T]:
        """Do `work` on all hypervisors; of those that fail there is a line in the log.

        Raises:
            CsdError: all have failed.
        """
        found, problems = self.on_each(self, purpose, work)
        self.tell(problems, list(self))
        return found

    def tell(self, problems: Mapping[str, Exception], asked: Sequence[str]) -> None:
        """Log which hypervisors failed, each with one line.

        Raises:
            CsdError: all that were asked have.
        """
        if problems and len(problems) == len(asked):
            if len(problems) == 1:
                raise next(iter(problems.values()))
            raise EnvironmentUnfit("\n".join(f"hypervisor {name}: {error}" for name, error in problems.items()))
        for name, error in problems.items():
            if (message := f"hypervisor {name}: {error}") not in self._said:
                self._said.add(message)
                log.warning("%s", message)

    def _at_once(self, names: Sequence[str], purpose: str, work: Callable[[str], T | Exception]) -> list[T | Exception]:
        """Do `work` in a thread each; if this one is interrupted the others are told to end, and mostly do."""
        futures = [in_thread(f"{purpose} on hypervisor {name}", functools.partial(work, name)) for name in names]
        try:
            concurrent.futures.wait(futures)
        except BaseException:
            for name in names:
                self[name].interrupt()
            concurrent.futures.wait(futures, _END_SECONDS)
            raise
        return [future.result() for future in futures]

    def close(self) -> None:
        """Close all connections."""
        for site in self.values():
            site.close()
