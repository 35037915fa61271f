"""A model of a synchronous job that is cut, as its host sees it: what is moved, and what that spares and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from csd_emu.perfmodel.split.split_problem import SPARED_PARAMETER_COPIES
from csd_emu.profiles import Profile
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.layer_costs import LayerWork
from firmware_agent.common.split.cutting import CutPoint
from firmware_agent.common.units import format_bytes
from host.config.job_file import JobConfig
from host.core.device_time import StepModel
from host.core.evaluation import Evaluator
from host.core.layer_time_shares import BY_ARITHMETIC, Shares
from host.policies.batching.client_layers import Front
from host.training.host_room import host_bytes, most_host_records, planned_room_bytes

NONE, AUTO = "none", "auto"


@dataclass(frozen=True)
class SplitModelInfo:
    """Where a job's model is cut.

    Attributes:
        point: the cut.
        moved: the host's layers.
        front: the drives' part, against the whole.
        moved_bytes: of the host's layers' tensors, in the job's precision.
        kept_bytes: of the drives' layers' tensors.
    """

    point: CutPoint
    moved: tuple[str, ...]
    front: Front
    moved_bytes: int
    kept_bytes: int

    @property
    def layer(self) -> str:
        """The layer that the host's part begins with."""
        return self.point.layer

    def notes(self, job: JobConfig) -> list[str]:
        """Return what must be known of the run, in sentences."""
        notes = [
            f"the host has the {len(self.moved)} layers from {self.layer!r} on, {format_bytes(self.moved_bytes)}; "
            f"{format_bytes(self.point.record_bytes)} of activations cross for each record, and as much of gradients"
        ]
        if job.data.resolved(job.mode).private:
            notes.append("what crosses a cut is computed from private records, and their labels cross with it")
        return notes

    def host_bytes(self, records: int) -> int:
        """Return a generous guess of the host's memory for its part, with so many records of all drives together."""
        return host_bytes(self.moved_bytes, self.point.tail_bytes, records)

    def check_host(self, records: int, host: Profile) -> None:
        """Return if the host, and this machine, on which its part really runs, have room for it.

        Args:
            records: of a step, of all drives together.
            host: its profile.

        Raises:
            ConfigurationError: it has not.
        """
        available = psutil.virtual_memory().available
        needed = self.host_bytes(records)
        for room, whose in ((int(host.dram_bytes.value), f"a {host.name} has"), (available, "this machine has free")):
            if needed > room:
                raise ConfigurationError(
                    f"placement: the host's part from {self.layer!r} on needs some {format_bytes(needed)} of memory "
                    f"for {records} records a step, and {whose} {format_bytes(room)}; cut later, give drives smaller "
                    "batches, or choose placement: none"
                )

    def most_records(self, host: Profile) -> int:
        """Return for how many records of a step the host, and this machine, have room that is planned for."""
        return most_host_records(self.moved_bytes, self.point.tail_bytes, planned_room_bytes(host))

    def tail_seconds(
        self, records: int, fronts: Sequence[PhaseSeconds], host: StepModel | None, ratio: float | None
    ) -> float:
        """Return how long the host computes its part of a step; modelled.

        Args:
            records: of all devices together.
            fronts: the seconds of each device's own part.
            host: what the whole model's steps cost on the host; None if there is no table.
            ratio: how many drives the host is worth. Without a table it computes its layers' share so many times
                as fast as the devices do theirs.
        """
        forward, backward = self.front.forward_share, self.front.backward_share
        if host is not None:
            whole = host.step_seconds(records)
            return whole.forward * (1 - forward) + whole.backward * (1 - backward)
        each = [
            (part.forward * (1 - forward) / forward if forward else 0.0)
            + (part.backward * (1 - backward) / backward if backward else 0.0)
            for part in fronts
        ]
        return sum(each) / (ratio or 1.0)


def place_model(evaluator: Evaluator, layer: str, precision: str, shares: Shares = BY_ARITHMETIC) -> SplitModelInfo:
    """Return what a cut before `layer` does.

    Args:
        evaluator: has the model.
        layer: that the host's part begins with.
        precision: of the job.
        shares: what each layer has of a step.

    Raises:
        ConfigurationError: the model has no such layer, or cannot be cut there.
    """
    cut, works = evaluator.cut(layer, precision), shares.weigh(evaluator.layers())
    names = [work.name for work in works]
    place = names.index(layer)
    sizes = {name: each.nbytes for part in (cut.front, cut.tail) for name, each in part.state_dict().items()}
    moved_bytes, kept_bytes = _bytes(works[place:], sizes), _bytes(works[:place], sizes)
    front = Front(
        forward_share=_share(works, place, "forward_operations"),
        backward_share=_share(works, place, "backward_operations"),
        encode_share=kept_bytes / (kept_bytes + moved_bytes),
        spared_bytes=SPARED_PARAMETER_COPIES * _bytes(works[place:], {}),  # as the tables' steps, in float32
        spared_record_bytes=cut.point.tail_bytes,
        crossing_bytes=cut.point.record_bytes,
    )
    return SplitModelInfo(cut.point, tuple(names[place:]), front, moved_bytes, kept_bytes)


def _bytes(works: Sequence[LayerWork], sizes: Mapping[str, int]) -> int:
    """Return the bytes of the layers' tensors: those of `sizes`, or as they were traced."""
    return sum(sizes.get(name, size) for work in works for name, size in work.tensors.items())


def _share(works: Sequence[LayerWork], place: int, name: str) -> float:
    each = [getattr(work, name) for work in works]
    return sum(each[:place]) / sum(each) if sum(each) else 0.0
