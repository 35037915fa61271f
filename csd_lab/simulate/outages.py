"""Servers and drives that fail and come back, at times drawn beforehand from exponential distributions. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from csd_emu.config.servers_file import FailuresSection
from csd_lab.simulate.tree import Flags, Tree
from host.core.tuning.batch_tuner import Batches, Floats


@dataclass(frozen=True)
class OutageChanges:
    """What has happened since one was asked before: numbers of those that failed, and of those that are back."""

    lost: Batches
    back: Batches

    def __bool__(self) -> bool:
        """Whether anything has happened."""
        return bool(len(self.lost) or len(self.back))


class Fates:
    """Equal things that live for an exponential time, and are back some time after they failed."""

    def __init__(
        self, count: int, mtbf_seconds: float | None, repair_seconds: float | None, generator: np.random.Generator
    ) -> None:
        """Draw how long each lives at first; nobody fails without a mean time between failures."""
        self.gone: Flags = np.zeros(count, bool)
        self._mtbf, self._generator = np.inf if mtbf_seconds is None else mtbf_seconds, generator
        self._repair = np.inf if repair_seconds is None else repair_seconds
        self._fails = self._lives(count)
        self._returns: Floats = np.full(count, np.inf)

    def pass_time(self, now: float) -> OutageChanges:
        """Return who failed, and who is back of those that were gone, up to `now`."""
        due = np.flatnonzero(np.where(self.gone, self._returns, self._fails) <= now)
        back, lost = due[self.gone[due]], due[~self.gone[due]]
        self.gone[back], self.gone[lost] = False, True
        self._returns[lost] = self._fails[lost] + self._repair
        self._fails[back] = self._returns[back] + self._lives(len(back))
        return OutageChanges(lost, back)

    def next_return(self) -> float:
        """Return when the next one is back; infinite if none will be."""
        return float(self._returns[self.gone].min(initial=np.inf))

    def _lives(self, count: int) -> Floats:
        """Draw how long so many live."""
        return self._mtbf * self._generator.standard_exponential(count)


class Outages:
    """The fates of a tree's servers and drives. Hosts share their server's.

    Attributes:
        rendezvous_seconds: until servers go on after one was lost or came back.
        servers: their fates.
        drives_gone: (nodes,) which drives have failed.
        present: (nodes,) who could train now.
    """

    def __init__(self, tree: Tree, failures: FailuresSection | None, generator: np.random.Generator) -> None:
        """Draw them; nothing fails without `failures`."""
        own = failures if failures is not None else FailuresSection()
        self.rendezvous_seconds = own.rendezvous
        self.servers = Fates(tree.count, own.server_mtbf, own.server_repair, generator)
        self._drives = Fates(int(tree.is_drive.sum()), own.drive_mtbf, own.drive_repair, generator)
        self._places, self._server_of = np.flatnonzero(tree.is_drive), tree.server_of
        self.drives_gone: Flags = np.zeros(len(tree.names), bool)
        self.present: Flags = np.ones(len(tree.names), bool)

    def pass_drives(self, now: float) -> OutageChanges:
        """Return which drives failed or are back, as numbers among the tree's nodes."""
        changes = self._drives.pass_time(now)
        lost, back = self._places[changes.lost], self._places[changes.back]
        self.drives_gone[lost], self.drives_gone[back] = True, False
        self._note(changes)
        return OutageChanges(lost, back)

    def pass_servers(self, now: float) -> OutageChanges:
        """Return which servers failed or are back."""
        changes = self.servers.pass_time(now)
        self._note(changes)
        return changes

    def _note(self, changes: OutageChanges) -> None:
        if changes:
            self.present = ~self.drives_gone & ~self.servers.gone[self._server_of]
