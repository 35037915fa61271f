"""FedAvg and FedProx: the mean of the drives' weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firmware_agent.common.slices import Array
from host.config.plugins.kinds import STRATEGY
from host.core.tensor_sums import weighted_mean
from host.policies.aggregation.strategy import Contribution, Stateless


@STRATEGY.register("fedavg", "The mean weighted by samples.")
class FedAvg(Stateless):
    """``w <- sum_k (n_k / n) w_k``, with the n_k samples of drive k.

    McMahan et al., "Communication-efficient learning of deep networks from decentralized data" (AISTATS 2017),
    Algorithm 1.
    """

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the mean weighted by samples (see `Strategy.aggregate`)."""
        return weighted_mean([(part.samples, part.weights) for part in contributions])
