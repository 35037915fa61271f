"""FedProx: the mean of weights that were held near the global ones while they were trained."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le

from host.config.plugins.kinds import STRATEGY
from host.policies.aggregation.fedavg import FedAvg


@STRATEGY.register("fedprox", "FedAvg whose drives are held near the global weights by `mu`.")
class FedProx(FedAvg):
    """The drives minimise ``h_k(w) = F_k(w) + mu/2 ||w - w_global||^2``.

    Li et al., "Federated optimization in heterogeneous networks" (MLSys 2020), Algorithm 2. The host's part is
    FedAvg's: drives are drawn uniformly and the mean is weighted by samples, where the paper draws in proportion to
    samples and takes the plain mean. Mu of 0 is FedAvg to the bit.
    """

    def __init__(self, mu: Annotated[float, Ge(0), Le(1e6)] = 0.01) -> None:
        """Hold the drives by `mu`, 0 or more."""
        self.proximal = mu
