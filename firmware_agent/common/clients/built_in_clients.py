"""Built-in client programs: the drives' halves of strategies that need one.

Torch is imported when one runs: whoever only reads a job has no need of it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from firmware_agent.common.shipped_code import BuiltIns

if TYPE_CHECKING:
    from torch import Tensor, nn

    from firmware_agent.common.clients.client_round import ClientRound

CLIENTS = BuiltIns()
GIVEN = {
    "model": "with the weights that the host sent, in training mode",
    "loader": "the round's batches, field -> (records, ...) tensor",
    "config": "name -> number or text, of the job and of the strategy's `configure`",
    "received": "name -> tensor, of the strategy's `configure`",
    "state": "name -> tensor or number, kept in the drive from round to round",
    "csd": "`loss`, `optimizer`, `fit`, `phase`, `inputs` and `exchange`",
}
"""Arguments of a client program, by name; all others are options."""
ADAPTERS = {"flwr": "firmware_agent.common.clients.flower_client"}
"""See `firmware_agent.common.imports.adapt`."""


def effective_steps(steps: int, momentum: float) -> float:
    """Return ``||a||_1`` of `steps` of SGD: the sum of the weights with which its gradients enter the update.

    With momentum rho that starts at zero, gradient s of tau enters ``1 + rho + ... + rho^(tau - 1 - s)`` times:
    ``||a||_1 = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)``; without, tau (Wang et al., FedNova, 2020).
    """
    rest = 1.0 - momentum
    return (steps - momentum * (1.0 - momentum**steps) / rest) / rest


@CLIENTS.register("scaffold", "Local steps corrected by control variates; the half of the strategy `scaffold`.")
class ScaffoldClient:
    """Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning" (ICML 2020), Algorithm 1.

    Each local step uses ``g - c_i + c``, with the drive's control variate c_i and the server's c. After K steps that
    moved the weights from x to y, ``c_i+ = c_i - c + (x - y) / (K eta)`` (option II). The paper's local steps are plain
    SGD; with momentum K is the sum of the weights with which gradients enter the update, as in FedNova.

    Attributes:
        strategy: name of the host's half, without which the drives' control variates have nothing to correct.
    """

    strategy = "scaffold"

    def __call__(
        self,
        model: nn.Module,
        config: Mapping[str, float],
        received: Mapping[str, Tensor],
        state: MutableMapping[str, Tensor],
        csd: ClientRound,
    ) -> dict[str, Tensor]:
        """Return the model's weights, and by each parameter's name the change of c_i."""
        import torch

        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        start = {name: weight.detach().clone() for name, weight in trained.items()}
        server = {name: received.get(name, weight.new_zeros(weight.shape)) for name, weight in start.items()}
        own = {name: state.get(name, weight.new_zeros(weight.shape)) for name, weight in start.items()}

        def correct() -> None:
            for name, weight in trained.items():
                if weight.grad is not None:
                    weight.grad += server[name] - own[name]

        csd.fit(before_update=correct)
        if not config["learning_rate"]:  # nothing has moved, and nothing was learnt of the gradient
            return {**model.state_dict(), **{f"control/{name}": torch.zeros_like(own[name]) for name in trained}}
        steps = max(1.0, effective_steps(csd.steps, config["momentum"])) * config["learning_rate"]
        for name, weight in trained.items():
            state[name] = own[name] - server[name] + (start[name] - weight.detach()) / steps
        return {**model.state_dict(), **{f"control/{name}": state[name] - own[name] for name in trained}}


@CLIENTS.register("fedbn", "Batch normalisation stays in the drive; the half of the strategy `fedbn`.")
class FedBnClient:
    """Li et al., "FedBN: federated learning on non-IID features via local batch normalization" (ICLR 2021).

    What is local is told by the kind of its layer, not by its name.
    """

    def __call__(self, model: nn.Module, state: MutableMapping[str, Tensor], csd: ClientRound) -> dict[str, Tensor]:
        """Return all weights but those of batch normalisation."""
        from torch.nn.modules.batchnorm import _NormBase

        layers = {name: each for name, each in model.named_modules() if isinstance(each, _NormBase)}
        local = {
            f"{name}.{key}".lstrip("."): value
            for name, each in layers.items()
            for key, value in each.state_dict().items()
        }
        for name, value in state.items():
            local[name].copy_(value)
        csd.fit()
        state.update({name: value.detach().clone() for name, value in local.items()})
        return {name: value for name, value in model.state_dict().items() if name not in local}
