"""Decision on a model's cut: the best of the cuts that fit, "nothing moved" among them, and why.

**`auto`** takes the cut with which the timeline predicts the shortest step, whatever moves. With few drives, each a
fraction of the host, that often leaves them the first layers alone, whose activations are close to the records:
`max_host_share` of the situation bounds the host's part, and a cut before the first layer is refused.

**`relieve_wire`** is the rule of Park et al. (RALP, algorithms section 4 of the design notes) with a number of ours:
only late layers move that are heavy on the wire and light in arithmetic. The host's share of the exchanged bytes is at
least `HEAVY` times its share of the arithmetic, and the cut saves bytes. Of these only such cuts are made as would win
with a host that computes the moved layers of all drives' records no sooner than the slowest drive would its own. So
where computing dominates the wire nothing moves, however fast the host is. If nothing else fits into the memory that
there is, any cut may be made.

**What is not worth a cut.** A cut shows activations and labels to the host. One that wins less than `MARGIN` is not
made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from csd_emu.perfmodel.split.split_problem import SplitProblem
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.layer_names import find_layer
from host.config.plugins.kinds import SPLIT_POLICY
from host.policies.split.cut_decision import CutDecision
from host.policies.split.cut_table import MARGIN, CutTable

# Chosen with models in view: docs/placement.md has what it parts, and what does not hang on it.
HEAVY = 9.0


@SPLIT_POLICY.register("none", "Every layer stays on the drives.")
class NothingMoved:
    """A `SplitPolicy` that moves nothing."""

    def decide(self, situation: SplitProblem) -> CutDecision:
        """Return the decision that moves nothing (see `decide_for`)."""
        return decide_for(situation, None)


@SPLIT_POLICY.register("auto", "The layers with which a step is predicted to be shortest.")
class ShortestStep:
    """A `SplitPolicy` that goes by the timeline alone."""

    def decide(self, situation: SplitProblem) -> CutDecision:
        """Return the best cut that fits (see `decide`)."""
        return decide(situation)


@SPLIT_POLICY.register("relieve_wire", "Late layers with many bytes and little computing, for the wire's sake alone.")
class RelievedWire:
    """A `SplitPolicy` that moves what burdens the wire, and nothing for the host's speed."""

    def decide(self, situation: SplitProblem) -> CutDecision:
        """Return the best cut that the rule allows (see `decide`)."""
        return decide(situation, heavy=HEAVY)


def decide(situation: SplitProblem, *, heavy: float = 0.0) -> CutDecision:
    """Return the best cut that fits; of cuts that are as good the one that moves least.

    Args:
        situation: model, devices, link and schedule.
        heavy: how many times the host's share of the bytes must be its share of the arithmetic, and the cut relieve the
            wire; 0 lets any layer move, for the host's speed alone too.

    Raises:
        ConfigurationError: no cut fits into the memory that there is.
    """
    table = CutTable(situation, heavy)
    if not (fitting := [cut for cut in range(1, table.unmoved + 1) if not table.refused[cut]]):
        raise ConfigurationError(_nothing_fits(table))
    allowed = table.allow(fitting)
    seconds = table.search(allowed)
    best = min((cut for cut in seconds if cut in allowed), key=lambda cut: (seconds[cut], -cut))
    unmoved = seconds.get(table.unmoved)
    chosen = table.unmoved if unmoved is not None and unmoved <= (1 + MARGIN) * seconds[best] else best
    of = "" if len(allowed) == len(fitting) else " that relieves the wire by late, heavy layers"
    return table.decision(chosen, seconds, _why(table, chosen, best, seconds, of))


def decide_for(situation: SplitProblem, layer: str | None, reason: str = "it was asked for") -> CutDecision:
    """Return the decision for a cut that somebody asks for, None for nothing moved; only this and none are worked out.

    Args:
        situation: model, devices, link and schedule.
        layer: that the host begins with.
        reason: why it is this cut.

    Raises:
        ConfigurationError: the model has no such layer, cannot be cut there, or the cut does not fit into memory.
    """
    table = CutTable(situation, 0.0)
    cut = table.unmoved if layer is None else find_layer([each.name for each in situation.layers], layer)
    if table.refused[cut]:
        raise ConfigurationError(
            f"placement: {layer or 'none'}: {table.refused[cut]}; csd-emu plan --placement shows what fits"
        )
    known = [each for each in (cut, table.unmoved) if not table.refused[each]]
    return table.decision(cut, table.work_out(known), reason)


def _why(table: CutTable, chosen: int, best: int, seconds: Mapping[int, float], of: str) -> str:
    """Return why; `of` says of which cuts the best one was taken, if not of all."""
    if chosen == table.unmoved:
        if best == table.unmoved:
            return f"no cut{of} makes a step shorter"
        gain = seconds[chosen] / seconds[best] - 1
        return f"the best cut{of} would win {gain:.2%} of a step, less than the {MARGIN:.0%} that it must"
    if table.unmoved not in seconds:
        return f"nothing moved does not fit: {table.refused[table.unmoved]}"
    return f"{seconds[chosen]:.4g} s a step, {seconds[table.unmoved]:.4g} s with nothing moved"


def _nothing_fits(table: CutTable) -> str:
    cut = next((cut for cut in range(1, table.unmoved) if not math.isnan(table.amounts.crossing_bytes[cut])), 0)
    least = f", and before {table.layer(cut)!r}: {table.refused[cut]}" if cut else ""
    return (
        f"placement: no cut fits. With nothing moved: {table.refused[table.unmoved]}{least}; take smaller batches, or "
        "give the drives more memory (memory in the array file)"
    )
