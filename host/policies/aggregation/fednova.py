"""FedNova: local updates are normalised by how far the local optimiser went."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from firmware_agent.common.clients.built_in_clients import effective_steps
from firmware_agent.common.slices import Array
from host.config.plugins.kinds import STRATEGY
from host.policies.aggregation.strategy import Contribution, Stateless, mean_of_buffers


@STRATEGY.register("fednova", "Updates normalised by local steps.")
class FedNova(Stateless):
    """Normalised averaging.

    Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization" (NeurIPS 2020).

    Drive k, of share ``p_k = n_k / n``, took ``tau_k`` steps. Its gradients have the weights ``a_k`` in what it
    returned, so ``d_k = (w - w_k) / ||a_k||_1`` is its mean step, and

        ``w <- w - tau_eff sum_k p_k d_k``,  ``tau_eff = sum_k p_k ||a_k||_1``.

    With plain averaging a drive counts in proportion to its steps, so rounds converge to the minimum of another
    objective than ``sum_k p_k F_k``. With equal steps both are the same.
    """

    counts_steps = True

    def __init__(self, momentum: float, parameters: Collection[str]) -> None:
        """Normalise `parameters`, trained with this `momentum` (0 to less than 1), which begins each round at zero."""
        self._momentum, self._parameters = momentum, frozenset(parameters)

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the new weights (see `Strategy.aggregate`); a drive that took no step contributes no update."""
        buffers = mean_of_buffers(contributions, self._parameters)
        factors = self._factors(contributions)
        return {
            name: buffers[name] if name in buffers else _moved(name, before, factors, contributions)
            for name, before in global_weights.items()
        }

    def _factors(self, contributions: Sequence[Contribution]) -> list[float]:
        """Return ``p_k tau_eff / ||a_k||_1`` of each drive."""
        samples = sum(part.samples for part in contributions)
        shares = [part.samples / samples for part in contributions]
        steps = [effective_steps(part.steps, self._momentum) for part in contributions]
        tau_eff = sum(share * step for share, step in zip(shares, steps, strict=True))
        return [share * tau_eff / step if step else 0.0 for share, step in zip(shares, steps, strict=True)]


def _moved(name: str, before: Array, factors: Sequence[float], contributions: Sequence[Contribution]) -> Array:
    start = before.astype(np.float64)
    total = start.copy()
    for factor, part in zip(factors, contributions, strict=True):
        total += factor * (part.weights[name].astype(np.float64) - start)
    return np.asarray(total, before.dtype)
