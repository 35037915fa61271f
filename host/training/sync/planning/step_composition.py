"""Inputs for composing the steps of a synchronous job whose exchange overlaps what drives compute."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from csd_emu.perfmodel.overlap.overlapped_step import OverlapComposer
from firmware_agent.common.slices import Array
from host.core.evaluation import Evaluator
from host.core.layer_time_shares import BY_ARITHMETIC, Shares


def make_overlap(
    evaluator: Evaluator,
    weights: Mapping[str, Array],
    batch_norm: str,
    block_bytes: int | None,
    barrier: bool,
    moved: Collection[str] = (),
    shares: Shares = BY_ARITHMETIC,
) -> OverlapComposer:
    """Return what composes a job's steps.

    Args:
        evaluator: has the model.
        weights: in the precision in which they are exchanged.
        batch_norm: see `host.config.sync_section.SyncSection`; unless ``frozen``, buffers are exchanged too.
        block_bytes: the host's optimiser steps tensors in ranges of so many bytes; None for whole ones.
        barrier: whether it needs the whole gradient first.
        moved: layers that the host has, and drives have not.
        shares: what each of the model's layers has of a step.
    """
    structure = evaluator.structure()
    names = (*structure.trained, *(structure.buffers if batch_norm != "frozen" else ()))
    layers = tuple(layer for layer in shares.weigh(evaluator.layers()) if layer.name not in moved)
    kept = {name for layer in layers for name in layer.tensors}
    sizes = {name: weights[name].nbytes for name in names if name in kept}
    return OverlapComposer(layers, sizes, block_bytes, barrier)
