"""What training starts from beside the seed: weights from a file, and parameters that stay as they are."""

from __future__ import annotations

import difflib
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_safetensors
from torch import nn

from firmware_agent.common.atomic_files import read_file
from firmware_agent.common.errors import ModelError
from firmware_agent.common.weights import tied_names

# What a file may have beside the values of its tensors: names, shapes, padding.
_OVERHEAD_BYTES, _TENSOR_BYTES = 1 << 20, 4096


@dataclass(frozen=True)
class ModelStart:
    """How a job's model begins.

    Attributes:
        weights: file of its weights and buffers; None for those that it is built with.
        freeze: patterns of names of parameters that are not trained.
        precision: in which drives train it by its loss; None for a client program, which may train it in other ways.
    """

    weights: str | None = None
    freeze: tuple[str, ...] = ()
    precision: str | None = "float32"


AS_BUILT = ModelStart()


def read_initial_weights(path: Path, model: nn.Module) -> str:
    """Fill a model with the weights of a file, and return the file's sha256.

    Raises:
        ModelError: the file cannot be read, or its tensors are not those of the model, or not finite.
    """
    wanted = model.state_dict()
    try:
        content = read_file(path, _OVERHEAD_BYTES + sum(each.nbytes + _TENSOR_BYTES for each in wanted.values()))
    except OSError as error:
        raise _wrong(path, f"cannot be read ({error}); give a file of this model's weights alone") from error
    found = _read(path, content)
    # A file may have tied weights once.
    found = {name: found[first] for name, first in tied_names(model).items() if first in found} | found
    for told, names, others in (("has no", wanted, found), ("has, beside the model's,", found, wanted)):
        if odd := [name for name in names if name not in others]:
            near = difflib.get_close_matches(str(odd[0]), list(map(str, others)), n=3, cutoff=0.0)
            raise _wrong(path, f"{told} {odd[0]!r} ({len(odd)} such); near it are {', '.join(near) or 'none'}")
    for name, tensor in wanted.items():
        if (said := _describe(found[name])) != (should := _describe(tensor)):
            raise _wrong(path, f"{name} is {said}, and the model's {should}; save the weights of this model")
        if not bool(torch.isfinite(found[name]).all()):
            raise _wrong(path, f"{name} has values that are no finite numbers; save weights from before that")
    model.load_state_dict(found)
    return hashlib.sha256(content).hexdigest()


def _read(path: Path, content: bytes) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_safetensors(content)
        found: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch reads whatever bytes these are, and may raise anything
        raise _wrong(path, f"is no safetensors file and no torch state dict ({error})") from error
    if not isinstance(found, Mapping) or not all(
        isinstance(value, torch.Tensor) and value.layout == torch.strided for value in found.values()
    ):
        raise _wrong(path, "is no state dict, name -> tensor; save model.state_dict() alone")
    return dict(found)


def _describe(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _wrong(path: Path, what: str) -> ModelError:
    return ModelError(f"initial_weights: {path} {what}")
