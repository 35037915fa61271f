"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II) by hand: the drives' half and the host's."""

import numpy as np
import torch


def train(model, config, received, state, csd):
    """Take local steps of g - c_i + c; return the weights, and how c_i has changed."""
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    server = {name: received.get(name, torch.zeros_like(weight)) for name, weight in start.items()}
    own = {name: state.get(name, torch.zeros_like(weight)) for name, weight in start.items()}
    for batch in csd.loader:
        loss = csd.loss(batch)
        with csd.phase("backward"):
            loss.backward()
        with csd.phase("update"), torch.no_grad():
            for name, weight in model.named_parameters():
                weight -= config["learning_rate"] * (weight.grad + server[name] - own[name])
                weight.grad = None
    for name, weight in model.named_parameters():
        moved = (start[name] - weight.detach()) / (csd.steps * config["learning_rate"])
        state[name] = own[name] - server[name] + moved
    return {**model.state_dict(), **{f"change/{name}": state[name] - own[name] for name in start}}


class Scaffold:
    """Send c to the drives; average their weights, and move c by how their c_i have changed."""

    client, proximal, least_contributions = "scaffold.py:train", 0.0, 1

    def __init__(self):
        self.control, self.drives = {}, 0

    def configure(self, round, drives):  # noqa: D102
        self.drives = max(self.drives, len(drives))
        return {name: self.control for name, drive in drives.items() if drive.chosen}

    def aggregate(self, weights, parts):  # noqa: D102
        for name in (each for each in weights if f"change/{each}" in parts[0].tensors):
            change = sum(part.tensors[f"change/{name}"] for part in parts) / self.drives
            self.control[name] = self.control.get(name, 0.0) + change
        return {name: np.mean([part.weights[name] for part in parts], axis=0) for name in weights}

    def state(self):  # noqa: D102
        return {**self.control, "drives": np.array(self.drives)}

    def load_state(self, state):  # noqa: D102
        self.drives = int(state["drives"])
        self.control = {name: value for name, value in state.items() if name != "drives"}
