"""A Flower `ServerApp` on native drives, and the same in Flower's own simulation: how far the weights are apart.

Flower and its simulation are no dependencies of csd-emu: ``pip install 'flwr[simulation]'``.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.nn import functional

from firmware_agent.common.datafiles.record_set import LABEL
from firmware_agent.common.losses.objective import Objective
from firmware_agent.common.models import build_model
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array
from firmware_agent.common.split.activations import device_number, epoch_order
from host.app.prepare import prepare_run
from host.config.resolve import resolve_run
from host.fleet.shards import deal_out

MISSING = "left out: Flower's simulation is not installed; pip install 'flwr[simulation]'"
# The model is smooth: with ReLU and maxima, rounding alone, as of another number of threads, grows to 0.002 in places.
DRIVES, ROUNDS, BATCH, RATE = 10, 5, 32, 0.01
SERVER = f"""
import os

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from safetensors.numpy import save_file
from torch import nn


def net():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 64, 10)),
    )


app = ServerApp()


@app.main()
def main(grid, context):
    torch.manual_seed(SEED)
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes={DRIVES})
    result = strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds={ROUNDS})
    if "FLOWER_CURVE" in os.environ:
        save_file({{name: array.numpy() for name, array in result.arrays.items()}}, os.environ["FLOWER_CURVE"])
"""


def can_simulate() -> bool:
    """Return whether Flower and what its simulation needs are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))


def curve_differences(
    folder: Path, seeds: Sequence[int], run: Callable[[Path, str, str, str], int]
) -> tuple[list[float], list[float]]:
    """Return how far the last weights are from Flower's, for each seed, and how far Flower's are apart by their seed.

    Both are the largest difference over the largest weight; the second has one for each pair of seeds.

    Made data of CIFAR-10's shape, `DRIVES` drives by a Dirichlet distribution of 0.3, `ROUNDS` rounds of FedAvg.

    Args:
        folder: an empty one.
        seeds: of data, partition, batches and first weights.
        run: runs a job in a folder, given those of job, array and runs.

    Raises:
        RuntimeError: one of the runs failed.
    """
    array = {"name": "curve", "engine": "native", "devices": [{"profile": "newport", "count": DRIVES}]}
    found, simulated = [], []
    for seed in seeds:
        data = {"source": "synthetic:3x32x32:10:2500", "partition": {"dirichlet": 0.3}}
        place = folder / str(seed)
        place.mkdir(parents=True)
        job = {
            **{"model": "server_app.py:net", "data": data, "seed": seed},
            **{"strategy": "server_app.py:app", "rounds": ROUNDS, "batch_size": BATCH, "learning_rate": RATE},
        }
        (place / "server_app.py").write_text(SERVER.replace("SEED", str(seed)), encoding="utf-8")
        (place / "array.yaml").write_text(yaml.safe_dump(array), encoding="utf-8")
        (place / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
        _write_shards(place)
        if code := run(place, "job.yaml", "array.yaml", "runs"):
            raise RuntimeError(f"the job of {place} ended with exit code {code}")
        (ours,) = place.glob("runs/*/model.safetensors")
        simulated.append(_simulated(place, seed))
        found.append(_difference(load_file(ours), simulated[-1]))
    return found, [_difference(one, other) for one, other in combinations(simulated, 2)]


def simulate(place: Path, seed: int) -> None:
    """Run the folder's `ServerApp` in Flower's simulation; it writes its last weights where FLOWER_CURVE says."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.simulation import run_simulation

    module: dict[str, Any] = {}
    exec(compile((place / "server_app.py").read_text(encoding="utf-8"), "server_app.py", "exec"), module)
    client = ClientApp()

    @client.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        shard = load_file(place / f"{context.node_config['partition-id']}.safetensors")
        spec = ShippedCode("server_app.py:net", (place / "server_app.py").read_text(encoding="utf-8"))
        model = build_model(spec).train()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        number = int(message.content["config"]["server-round"])
        order = epoch_order(seed, int.from_bytes(shard["device"].tobytes(), "big"), number, 0, len(shard["labels"]))
        _descend(model, torch.from_numpy(shard["inputs"][order]), torch.from_numpy(shard["labels"][order]))
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(order)}),
        }
        return Message(RecordDict(content), reply_to=message)

    run_simulation(module["app"], client, DRIVES, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


def _descend(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Take one pass of plain SGD with the job's momentum."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for start in range(0, len(labels), BATCH):
        loss = functional.cross_entropy(model(inputs[start : start + BATCH]), labels[start : start + BATCH])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def _write_shards(place: Path) -> None:
    """Write what each drive holds, ``NUMBER.safetensors``: inputs, labels, and the drive's name in bytes."""
    request = prepare_run(resolve_run(place / "job.yaml", place / "array.yaml"))
    dealt = deal_out(
        request.dataset, request.job.data.resolved(request.job.mode), request.config.list_nodes(), request.job.seed
    )
    objective = Objective.of_spec(request.objective, "float32")
    for number, (device, places) in enumerate(zip(request.config.list_devices(), dealt.private, strict=True)):
        held = {name: column[places] for name, column in request.dataset.fields.items()}
        name = np.frombuffer(device.name.encode(), np.uint8)
        assert int.from_bytes(name.tobytes(), "big") == device_number(device.name)
        labels = held[LABEL].astype(np.int64)
        shard = {"inputs": objective.inputs(held)[0].numpy(), "labels": labels, "device": name.copy()}
        save_file(shard, place / f"{number}.safetensors")


def _simulated(place: Path, seed: int) -> dict[str, Array]:
    """Return the last weights of Flower's simulation, which has a process of its own."""
    code = f"from pathlib import Path\nfrom {__name__} import simulate\nsimulate(Path({str(place)!r}), {seed})"
    environment = os.environ | {"FLOWER_CURVE": str(place / "flower.safetensors"), "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not (place / "flower.safetensors").exists():
        raise RuntimeError(f"Flower's simulation failed: {done.stderr[-2000:]}")
    return load_file(place / "flower.safetensors")


def _difference(ours: dict[str, Array], flowers: dict[str, Array]) -> float:
    most = max(float(np.abs(array).max()) for array in flowers.values())
    return max(float(np.abs(np.subtract(ours[name], array)).max()) for name, array in flowers.items()) / most
