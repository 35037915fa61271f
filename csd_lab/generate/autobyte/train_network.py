"""Training of the network that AutoByte asks with `predictor: network`.

`python -m csd_lab.generate.autobyte.train_network --seed 1 --output FOLDER`.

Cases (a made-up model on a made-up link) are drawn, and some settings of each are simulated. The network learns the log
ratio of a case's steps to each other, which is what it is asked for: differences within a case count, and those near
the case's best setting most. Two runs with the same arguments, versions and machine give the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import nn

from csd_emu.perfmodel.overlap.steady_steps import steady_step_seconds
from csd_lab.generate.autobyte import synthetic_cases as made_up
from csd_lab.generate.autobyte.meta_network import RECIPE_FILE, WEIGHTS_FILE
from csd_lab.generate.autobyte.network_features import NAMES, Features
from host.policies.transfer.setting_grid import candidates

# Slices of the cases that the shipped network has seen; a run's candidates go further.
TRAINED_SLICE_BYTES = 1 << 20
Floats = npt.NDArray[np.float32]
# Seeds of benches are single numbers; those of the sweep are pairs, so that no bench draws a case of it.
_SWEEP = 7001
# Cases from this number on are held out.
HELD_OUT_FROM = 3000


@dataclass(frozen=True)
class TrainingRecipe:
    """How the network is made; all of it is written beside the weights.

    Attributes:
        seed: of the sweep, of the first weights and of the order of the batches.
        cases: models on links to train on, numbers 0 to that; at most `HELD_OUT_FROM`.
        settings: of each case that are simulated.
        hidden: widths of the layers between.
        epochs: passes over the cases.
        batch: cases per step.
        learning_rate: at the beginning; it falls to 0 along a cosine.
        weight_decay: of AdamW.
        held_out: so many others, on which it is judged.
        near: a setting counts 1 / (near + log of its step over the case's best).
    """

    seed: int
    cases: int = 2600
    settings: int = 16
    hidden: tuple[int, ...] = (96, 96)
    epochs: int = 80
    batch: int = 32
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    held_out: int = 600
    near: float = 0.1


@dataclass(frozen=True)
class Sweep:
    """What was simulated.

    Attributes:
        rows: (cases, settings, features).
        logs: (cases, settings) log of step seconds over the unit of time.
    """

    rows: Floats
    logs: Floats


def simulate_case(seed: int, number: int, settings: int) -> tuple[Floats, Floats]:
    """Return rows (settings, features) and logs (settings,) of one case, which the seed and its number alone decide."""
    generator = np.random.default_rng([_SWEEP, seed, number])
    conditions = made_up.draw_conditions(generator)
    grid = candidates(TRAINED_SLICE_BYTES)
    chosen = [grid[index] for index in generator.choice(len(grid), settings, replace=False)]
    rows, unit = Features().rows(conditions, chosen)
    costs = [conditions.costs] * conditions.participants
    block_bytes = conditions.block_bytes
    seconds = [steady_step_seconds(costs, conditions.link, each, block_bytes=block_bytes) for each in chosen]
    return rows.astype(np.float32), np.log(np.array(seconds) / unit).astype(np.float32)


def sweep(recipe: TrainingRecipe, numbers: range, processes: int = 1) -> Sweep:
    """Simulate these cases, in so many processes; says on standard error how far it is."""
    rows, logs = [], []
    for done, (row, log) in enumerate(_simulated(recipe, numbers, processes), 1):
        rows.append(row)
        logs.append(log)
        if done % 50 == 0:
            print(f"{done} of {len(numbers)} cases simulated", file=sys.stderr)
    return Sweep(np.stack(rows), np.stack(logs))


def _simulated(recipe: TrainingRecipe, numbers: range, processes: int) -> Iterator[tuple[Floats, Floats]]:
    tasks = [(recipe.seed,) * len(numbers), numbers, (recipe.settings,) * len(numbers)]
    if processes == 1:
        yield from map(simulate_case, *tasks)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(simulate_case, *tasks, chunksize=4)


def make_net(hidden: Sequence[int]) -> nn.Sequential:
    """Return the network, its first weights drawn."""
    widths = [len(NAMES), *hidden, 1]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(recipe: TrainingRecipe, found: Sweep, held_out: Sweep) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Return the tensors of `NetworkPredictor`, and what it does on the cases that were held out."""
    torch.manual_seed(recipe.seed)
    rows = torch.from_numpy(found.rows)
    flat = rows.reshape(-1, rows.shape[-1])
    mean, scale = flat.mean(0), flat.std(0).clamp_min(1e-3)
    net = make_net(recipe.hidden)
    _fit(net, recipe, (rows - mean) / scale, torch.from_numpy(found.logs))
    with torch.no_grad():
        predicted = net((torch.from_numpy(held_out.rows) - mean) / scale)[..., 0]
    linears = [layer for layer in net if isinstance(layer, nn.Linear)]
    tensors = {"mean": mean, "scale": scale}
    for number, layer in enumerate(linears):
        tensors |= {f"weight{number}": layer.weight.detach().contiguous(), f"bias{number}": layer.bias.detach()}
    return tensors, _judge(predicted, torch.from_numpy(held_out.logs))


def _fit(net: nn.Sequential, recipe: TrainingRecipe, inputs: torch.Tensor, logs: torch.Tensor) -> None:
    optimiser = torch.optim.AdamW(net.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.epochs)
    weights = 1 / (recipe.near + logs - logs.min(1, keepdim=True).values)
    weights = weights / weights.sum(1, keepdim=True)
    order = torch.Generator().manual_seed(recipe.seed)
    for _ in range(recipe.epochs):
        for batch in torch.split(torch.randperm(len(inputs), generator=order), recipe.batch):
            error = net(inputs[batch])[..., 0] - logs[batch]
            weight = weights[batch]
            error = error - (weight * error).sum(1, keepdim=True)
            loss = (weight * error**2).sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()


def _judge(predicted: torch.Tensor, logs: torch.Tensor) -> dict[str, float]:
    """Return what counts of predictions: how much longer steps are with the setting chosen than with the best one."""
    chosen = logs.gather(1, predicted.argmin(1, keepdim=True))[:, 0]
    regret = torch.expm1(chosen - logs.min(1).values)
    first = (predicted - predicted[:, :1])[:, 1:] - (logs - logs[:, :1])[:, 1:]
    return {
        "speed_up_error_median": float(torch.expm1(first.abs()).median()),
        "regret_mean": float(regret.mean()),
        "regret_p90": float(regret.quantile(0.9)),
        "regret_of_shortlist_mean": _shortlist_regret(predicted, logs),
    }


def _shortlist_regret(predicted: torch.Tensor, logs: torch.Tensor, length: int = 4) -> float:
    """Return what the best of the settings costs that the network finds best, mean of the cases."""
    listed = logs.gather(1, predicted.argsort(1)[:, :length]).min(1).values
    return float(torch.expm1(listed - logs.min(1).values).mean())


def write(folder: Path, recipe: TrainingRecipe, tensors: dict[str, torch.Tensor], scores: dict[str, float]) -> None:
    """Write the weights, and beside them how they were made."""
    folder.mkdir(parents=True, exist_ok=True)
    data = safetensors.torch.save(tensors)
    (folder / WEIGHTS_FILE).write_bytes(data)
    names = [name for name in dir(made_up) if name[0].isupper() and name.isupper()]
    bounds = {name.lower(): list(getattr(made_up, name)) for name in names}
    text: dict[str, Any] = {
        "made_by": f"python -m csd_lab.generate.autobyte.train_network --seed {recipe.seed}",
        "recipe": asdict(recipe),
        "drawn_from": bounds,
        "features": list(NAMES),
        "candidates": len(candidates(TRAINED_SLICE_BYTES)),
        "held_out": scores,
        "sha256": hashlib.sha256(data).hexdigest(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__},
    }
    (folder / RECIPE_FILE).write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Sweep, train and write."""
    parser = argparse.ArgumentParser(prog="python -m csd_lab.generate.autobyte.train_network", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=TrainingRecipe.cases)
    parser.add_argument("--epochs", type=int, default=TrainingRecipe.epochs)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    given = parser.parse_args(arguments)
    recipe = TrainingRecipe(given.seed, given.cases, epochs=given.epochs)
    torch.set_num_threads(1)
    if not 1 <= recipe.cases <= HELD_OUT_FROM:
        parser.error(f"--cases: give 1 to {HELD_OUT_FROM}")
    held = range(HELD_OUT_FROM, HELD_OUT_FROM + recipe.held_out)
    found, held_out = (sweep(recipe, numbers, given.processes) for numbers in (range(recipe.cases), held))
    tensors, scores = train(recipe, found, held_out)
    write(given.output, recipe, tensors, scores)
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
