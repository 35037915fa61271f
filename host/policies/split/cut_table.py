"""The cuts of a situation: which fit, which a rule allows, how long a step takes with each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from csd_emu.perfmodel.split.cut_costs import CutCosts
from csd_emu.perfmodel.split.cut_seconds import barrier_seconds, bounds, find_best, patience_of, simulate_cut
from csd_emu.perfmodel.split.split_problem import HostPlace, SplitProblem
from firmware_agent.common.units import format_bytes
from host.policies.split.cut_decision import CutDecision, CutRow

# Share of a step that a cut must win at least. So little is within what a measured layer is uncertain by.
MARGIN = 0.01


class CutTable:
    """What is known of a situation's cuts; the cut 0 is there to be skipped."""

    def __init__(self, situation: SplitProblem, heavy: float) -> None:
        """Look at all cuts; `heavy` as for `host.policies.split.choose_cut.decide`."""
        self.situation, self.amounts = situation, CutCosts(situation)
        self.unmoved = self.amounts.unmoved
        traffic = self.amounts.traffic_bytes
        self.heavy = (self.amounts.heaviness >= heavy) & ((traffic < traffic[-1]) | (heavy <= 0))
        self.heavy[self.unmoved] = True
        self._any = heavy <= 0
        self.relieving = set(range(self.unmoved + 1)) if self._any else {self.unmoved}
        self.refused = tuple(self._refused(cut) for cut in range(self.unmoved + 1))
        self._lowest = bounds(self.amounts)
        self._barrier = barrier_seconds(self.amounts)
        self._known: dict[int, float] = {}

    def allow(self, fitting: Sequence[int]) -> Sequence[int]:
        """Return which of the cuts that fit the rule allows: all of them if there is none, or nothing else fits."""
        heavy = [cut for cut in fitting if self.heavy[cut]] or fitting
        if self._any or self.unmoved not in heavy:
            return heavy
        even = CutTable(replace(self.situation, host=self._even_host()), 0.0)
        whole = self._seconds(self.unmoved)
        self.relieving.update(cut for cut in heavy if cut != self.unmoved and even.beats(cut, whole))
        return [cut for cut in heavy if cut in self.relieving]

    def beats(self, cut: int, seconds: float) -> bool:
        """Return whether a step with this cut is shorter by what a cut must win."""
        if (1 + MARGIN) * self._lowest[cut] >= seconds:
            return False
        return (1 + MARGIN) * self._seconds(cut) < seconds

    def _even_host(self) -> HostPlace:
        """Return a host that takes as long for all drives' records as the slowest drive does for its own."""
        forward, backward = self.amounts.forward_seconds[:, -1], self.amounts.backward_seconds[:, -1]
        slowest = int(np.argmax(forward + backward))
        shares = self.situation.drives[slowest].layer_shares
        return HostPlace(float(forward[slowest]), float(backward[slowest]), layer_shares=shares)

    def search(self, allowed: Sequence[int]) -> dict[int, float]:
        """Return seconds: of nothing moved, of the best of the cuts that are allowed, of the best that fits."""
        fitting = [cut for cut in range(1, self.unmoved + 1) if not self.refused[cut]]
        if not self.situation.cuts_overlap:  # all of them are known
            return self.work_out(fitting)
        patience = patience_of(self.situation)
        known = self.work_out([cut for cut in allowed if cut == self.unmoved])
        known = find_best(self._seconds, self._lowest, allowed, known, patience)
        if len(allowed) == len(fitting):  # patience is not begun anew
            return known
        return find_best(self._seconds, self._lowest, fitting, known, patience)

    def work_out(self, cuts: Collection[int]) -> dict[int, float]:
        """Return the seconds of these cuts."""
        return {cut: self._seconds(cut) for cut in cuts}

    def decision(self, chosen: int, seconds: Mapping[int, float], reason: str) -> CutDecision:
        """Return the decision for a cut."""
        return CutDecision(
            layer=self.layer(chosen),
            drive_layers=chosen,
            step_seconds=seconds[chosen],
            unmoved_seconds=seconds.get(self.unmoved),
            reason=reason,
            notes=tuple(self._notes(chosen, seconds)),
            overlapped=self.situation.sending is not None,
            rows=self.rows(seconds),
        )

    def layer(self, cut: int) -> str | None:
        """Return the name of a cut."""
        return None if cut == self.unmoved else self.situation.layers[cut].name

    def _notes(self, chosen: int, seconds: Mapping[int, float]) -> list[str]:
        fastest = min(seconds, key=lambda cut: (seconds[cut], -cut))
        reasons = [*(drive.layer_reason for drive in self.situation.drives), self.situation.host.layer_reason]
        notes = {
            f"a cut before {self.layer(fastest)} would take {seconds[fastest]:.4g} s a step, with "
            f"{self.amounts.moved_compute[fastest]:.0%} of the computing on the host; placement: auto makes it": (
                fastest not in (chosen, self.unmoved) and seconds[chosen] > (1 + MARGIN) * seconds[fastest]
            ),
            f"{self.amounts.moved_compute[chosen]:.0%} of the computing moves to the host, with "
            f"{self.amounts.moved_parameters[chosen]:.0%} of the bytes; sync.max_host_share bounds the first": (
                chosen != self.unmoved
            ),
            "activations and labels of every record leave the drives (csd-emu docs placement)": chosen != self.unmoved,
            **{
                f"seconds are shared out over the layers by arithmetic (FLOPs), which can be far off: {reason}": reason
                for reason in reasons
            },
        }
        return [note for note, holds in notes.items() if holds]

    def _seconds(self, cut: int) -> float:
        situation = self.situation
        if not situation.cuts_overlap and not (situation.sending and cut == self.unmoved):
            return float(self._barrier[cut])
        if cut not in self._known:
            self._known[cut] = simulate_cut(self.amounts, cut)
        return self._known[cut]

    def _refused(self, cut: int) -> str:
        """Return why there can be no such cut, the graph's reason first."""
        if cut == 0:
            return "raw records would leave the drives"
        if math.isnan(self.amounts.crossing_bytes[cut]):
            return f"the model cannot be cut there: {self.situation.layers[cut].reason or 'nobody says why'}"
        if (share := float(self.amounts.moved_compute[cut])) > self.situation.max_host_share:
            return f"the host would have {share:.1%} of the computing, above max_host_share"
        place = self.amounts.short_of_memory[cut]
        if place is not None and (bounded := self.situation.drives[place].memory) is not None:
            needed = self.amounts.drive_memory_bytes[place, cut]
            return (
                f"{self.situation.drives[place].device} needs {format_bytes(needed)} of memory, with "
                f"{bounded.least_records} of its records at a time, and has "
                f"{format_bytes(max(0.0, bounded.available_bytes))}"
            )
        room_bytes, needed_bytes = self.situation.host.memory_bytes, self.amounts.host_memory_bytes[cut]
        if room_bytes is not None and needed_bytes > room_bytes:
            return (
                f"the host needs {format_bytes(needed_bytes)} of memory for {self.situation.records} records and has "
                f"{format_bytes(room_bytes)}"
            )
        return ""

    def rows(self, seconds: Mapping[int, float]) -> tuple[CutRow, ...]:
        """Return all cuts, from the latest to the earliest, with these seconds of steps."""
        amounts = self.amounts
        columns = {
            "drive_seconds": np.nan_to_num(amounts.compute_seconds.max(axis=0)),
            "host_seconds": amounts.host_seconds,
            "traffic_bytes": np.nan_to_num(amounts.traffic_bytes),
            "moved_parameters": amounts.moved_parameters,
            "moved_compute": amounts.moved_compute,
            "drive_memory_bytes": amounts.drive_memory_bytes.max(axis=0),
            "host_memory_bytes": amounts.host_memory_bytes,
        }
        numbers: list[dict[str, Any]] = [
            dict(zip(columns, row, strict=True)) for row in np.array([*columns.values()]).T.tolist()
        ]
        return tuple(
            CutRow(
                layer=self.layer(cut),
                drive_layers=cut,
                step_seconds=seconds.get(cut),
                at_least_seconds=None if self.refused[cut] else float(self._lowest[cut]),
                heavy=bool(self.heavy[cut]),
                relieves=cut in self.relieving,
                refused=self.refused[cut],
                **numbers[cut],
            )
            for cut in range(self.unmoved, 0, -1)
        )
