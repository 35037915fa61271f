"""FedAdam, FedYogi and FedAdagrad: the host runs an adaptive optimiser on the drives' mean update."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le, Lt

from firmware_agent.common.slices import Array
from host.config.plugins.kinds import STRATEGY
from host.core.tensor_sums import weighted_mean
from host.policies.aggregation.strategy import Contribution, PlainStrategy, check_names, mean_of_buffers

_FIRST, _SECOND = "m/", "v/"
Moment = npt.NDArray[np.float64]


@STRATEGY.register("fedadam", "Adam on the host; `tau` is its degree of adaptivity.")
class FedAdam(PlainStrategy):
    """Reddi et al., "Adaptive federated optimization" (ICLR 2021), Algorithm 2, FedAdam.

    ``Delta = mean_k(w_k) - w`` is the round's pseudo-gradient, its sign turned; then

        ``m <- beta1 m + (1 - beta1) Delta``,  ``v <- beta2 v + (1 - beta2) Delta^2``,
        ``w <- w + learning_rate m / (sqrt(v) + tau)``,

    with ``m`` from 0 and ``v`` from ``tau^2``. As in the paper there is no correction of the bias towards these first
    values. The mean is weighted by samples. Moments are float64.
    """

    def __init__(
        self,
        learning_rate: Annotated[float, Gt(0), Le(100)] = 0.01,
        beta1: Annotated[float, Ge(0), Lt(1)] = 0.9,
        beta2: Annotated[float, Ge(0), Lt(1)] = 0.99,
        tau: Annotated[float, Gt(0), Le(1)] = 1e-3,
        *,
        parameters: Collection[str],
    ) -> None:
        """Step `parameters`; `tau` is the paper's degree of adaptivity, in units of the weights."""
        self._learning_rate, self._beta1, self._beta2, self._tau = learning_rate, beta1, beta2, tau
        self._parameters = frozenset(parameters)
        self._first: dict[str, Moment] = {}
        self._second: dict[str, Moment] = {}

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the new weights, and move the moments on (see `Strategy.aggregate`)."""
        buffers = mean_of_buffers(contributions, self._parameters)
        means = weighted_mean(
            [
                (part.samples, {n: a.astype(np.float64) for n, a in part.weights.items() if n in self._parameters})
                for part in contributions
            ]
        )
        return {
            name: buffers[name] if name in buffers else self._stepped(name, before, means[name])
            for name, before in global_weights.items()
        }

    def state(self) -> dict[str, Array]:
        """Return both moments of every parameter; nothing before the first round."""
        first: dict[str, Array] = {_FIRST + name: moment for name, moment in self._first.items()}
        return first | {_SECOND + name: moment for name, moment in self._second.items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on with these moments (see `Strategy.load_state`)."""
        if state:
            check_names(state, {prefix + name for name in self._parameters for prefix in (_FIRST, _SECOND)})
        self._first = {n.removeprefix(_FIRST): a.astype(np.float64) for n, a in state.items() if n.startswith(_FIRST)}
        self._second = {
            n.removeprefix(_SECOND): a.astype(np.float64) for n, a in state.items() if n.startswith(_SECOND)
        }

    def _moved(self, second: Moment, squares: Moment) -> Moment:
        return np.asarray(self._beta2 * second + (1.0 - self._beta2) * squares)

    def _stepped(self, name: str, before: Array, mean: Array) -> Array:
        start = before.astype(np.float64)
        delta = mean.astype(np.float64) - start
        first = self._first.get(name, np.zeros_like(delta))
        second = self._second.get(name, np.full_like(delta, self._tau**2))
        self._first[name] = first = np.asarray(self._beta1 * first + (1.0 - self._beta1) * delta)
        self._second[name] = second = self._moved(second, delta**2)
        return np.asarray(start + self._learning_rate * first / (np.sqrt(second) + self._tau), before.dtype)


@STRATEGY.register("fedyogi", "FedAdam whose second moment moves by as much as it is off at the most.")
class FedYogi(FedAdam):
    """Reddi et al. (ICLR 2021), Algorithm 2, FedYogi: ``v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)``."""

    def _moved(self, second: Moment, squares: Moment) -> Moment:
        return np.asarray(second - (1.0 - self._beta2) * squares * np.sign(second - squares))


@STRATEGY.register("fedadagrad", "Adagrad on the host: steps become smaller as updates add up.")
class FedAdagrad(FedAdam):
    """Reddi et al. (ICLR 2021), Algorithm 2, FedAdagrad: ``v <- v + Delta^2``, and by default ``beta1`` of 0."""

    def __init__(
        self,
        learning_rate: Annotated[float, Gt(0), Le(100)] = 0.1,
        beta1: Annotated[float, Ge(0), Lt(1)] = 0.0,
        tau: Annotated[float, Gt(0), Le(1)] = 1e-3,
        *,
        parameters: Collection[str],
    ) -> None:
        """Step `parameters`; options are those of `FedAdam`."""
        super().__init__(learning_rate, beta1, 0.0, tau, parameters=parameters)

    def _moved(self, second: Moment, squares: Moment) -> Moment:
        return np.asarray(second + squares)
