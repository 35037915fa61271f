"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II) by hand: the drives' half and the host's."""

import numpy as np


def train(model, config, received, state, csd):
    """Take local steps of g - c_i + c; return the weights, and how c_i has changed."""
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    server, own = ({name: each.get(name, 0 * start[name]) for name in start} for each in (received, state))

    def correct():
        for name, weight in model.named_parameters():
            weight.grad += server[name] - own[name]

    csd.fit(before_update=correct)
    for name, weight in model.named_parameters():
        state[name] = own[name] - server[name] + (start[name] - weight.detach()) / (csd.steps * config["learning_rate"])
    return {**model.state_dict(), **{f"change/{name}": state[name] - own[name] for name in start}}


class Scaffold:
    """Send c to the drives; average their weights, and move c by how their c_i have changed."""

    client, proximal, least_contributions, control = "scaffold.py:train", 0.0, 1, {}

    def configure(self, round, drives):  # noqa: D102
        self.drives = len(drives)
        return {name: self.control for name, drive in drives.items() if drive.chosen}

    def aggregate(self, weights, parts):  # noqa: D102
        changes = {name: sum(part.tensors[f"change/{name}"] for part in parts) / self.drives for name in weights}
        self.control = {name: self.control.get(name, 0) + change for name, change in changes.items()}
        return {name: np.mean([part.weights[name] for part in parts], axis=0) for name in weights}

    def state(self):  # noqa: D102
        return self.control

    def load_state(self, state):  # noqa: D102
        self.control = state
