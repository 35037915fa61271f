"""Lion (Chen et al., NeurIPS 2023, Algorithm 2): steps of one size, by the sign of the averaged gradient."""

import torch


class Lion(torch.optim.Optimizer):
    """The sign of a moving average of gradients, times the learning rate."""

    def __init__(self, params, lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):  # noqa: D102
        for group in self.param_groups:
            for weight in (each for each in group["params"] if each.grad is not None):
                average = self.state[weight].setdefault("average", torch.zeros_like(weight))
                update = torch.lerp(weight.grad, average, group["beta1"]).sign_()
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                average.lerp_(weight.grad, 1 - group["beta2"])
