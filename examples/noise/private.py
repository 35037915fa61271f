"""Clipping and noise in the drive: its update is cut to a norm, and Gaussian noise is added before it leaves."""

import torch


def train(model, csd, clip=1.0, noise=0.01):
    """Return the weights moved by a clipped and noisy update.

    The noise has the standard deviation `noise` times `clip`, as in Dwork and Roth (2014), theorem A.1. How private a
    run is by that is for an accountant such as Opacus' to say.
    """
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    csd.fit()
    with torch.no_grad():
        updates = {name: weight - start[name] for name, weight in model.named_parameters()}
        norm = torch.sqrt(sum(update.square().sum() for update in updates.values()))
        factor = min(1.0, clip / float(norm))
        for name, weight in model.named_parameters():
            weight.copy_(start[name] + factor * updates[name] + noise * clip * torch.randn_like(weight))
    return {"update_norm": float(norm)}
