"""Synchronous training whose model may be cut elsewhere between steps, as a review finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import CheckpointError, CsdError
from firmware_agent.common.slices import Array
from host.app.prepare import RunRequest, find_tables, prepare_with_cut
from host.core.records import EventKind, OnEvent, RoundRecord, StepRecord
from host.core.states.training_state import TrainingState
from host.policies.split.link_watch import STEPS_IN_A_ROW, LinkWatch
from host.training.split.split_review import CutInForce, SplitReview
from host.training.sync.sync_training import SyncTraining

S = TypeVar("S")
_CUT, _LINK = "cut", "link"


class ReviewedTraining:
    """A `host.training.training_protocol.Training`; a change of the cut makes a new `SyncTraining`, which goes on."""

    def __init__(
        self,
        begin: SyncTraining,
        cut: CutInForce,
        review: SplitReview,
        prepare: Callable[[CutInForce], RunRequest],
        make: Callable[[RunRequest], SyncTraining],
        on_note: Callable[[str], None],
    ) -> None:
        """Begin as planned.

        Args:
            begin: has the model cut as planned.
            cut: where that is.
            review: looks at it between steps.
            prepare: plans a run with another cut, beside the event loop.
            make: makes the training of such a run; the one before is over.
            on_note: told what changed, and why.
        """
        self._training, self._cut, self._review = begin, cut, review
        self._prepare, self._make, self._on_note = prepare, make, on_note
        self._watch = LinkWatch()

    @property
    def weights(self) -> Mapping[str, Array]:
        """Parameters and buffers as they are now."""
        return self._training.weights

    @property
    def done(self) -> bool:
        """Whether the target is reached, or the rounds are done."""
        return self._training.done

    @property
    def cut_short(self) -> bool:
        """Whether the last round ended before its last step, for a pause was asked for."""
        return self._training.cut_short

    async def run_round(self) -> RoundRecord:
        """Train one more round (see `SyncTraining.run_round`); where it is due, cut the model elsewhere on the way."""
        self._training.begin_round()
        while not await self._training.take_steps(self._is_due):
            await self._look()
        return await self._training.end_round()

    def _is_due(self, steps: Sequence[StepRecord]) -> bool:
        """Take the last step, and return whether the cut is to be looked at: batches stay, the link does not."""
        step = steps[-1]
        if self._training.is_deciding or step.late or step.lost:
            return False
        batches = {part.device: part.batch_size for part in step.devices}
        tail_seconds = 0.0 if step.placement is None else step.placement.tail_seconds
        changed = self._watch.observe(batches, step.slowest_seconds + tail_seconds, step.array_seconds)
        return changed and step.step >= self._cut.next_step

    async def _look(self) -> None:
        """Look at the cut, and change it; what fails leaves it as it is."""
        steps = [step for step in self._training.steps if not step.late and not step.lost][-STEPS_IN_A_ROW:]
        self._watch.begin()
        try:
            found = await asyncio.to_thread(self._review.look, self._cut, steps)
            if found is None:
                return
            self._go_on(await asyncio.to_thread(self._prepare, found.cut))
            self._on_note(found.reason)
            self._cut = found.cut
        except CsdError as error:
            self._on_note(f"the model stays cut as it is: {error}")

    def _go_on(self, prepared: RunRequest) -> None:
        after = self._make(prepared)
        after.take_over(self._training)
        self._training = after

    def state(self) -> TrainingState:
        """Return where the training stands; the arrays are not copied."""
        state = self._training.state()
        return replace(
            state,
            progress={**state.progress, _CUT: msgspec.to_builtins(self._cut), _LINK: msgspec.to_builtins(self._watch)},
        )

    def restore(self, state: TrainingState) -> None:
        """Go on from `state`, with the cut that it has.

        Raises:
            CheckpointError: it is of another model, optimiser or mode.
        """
        if (cut := cut_of(state)) is not None:
            if cut.changes:
                self._go_on(self._prepare(cut))
            self._cut, self._watch = cut, _convert(state.progress.get(_LINK, {}), LinkWatch)
        self._training.restore(state)


def cut_of(state: TrainingState) -> CutInForce | None:
    """Return the cut of a checkpoint; None of one whose cut is not looked at again.

    Raises:
        CheckpointError: what it says is no cut.
    """
    told = state.progress.get(_CUT)
    return None if told is None else _convert(told, CutInForce)


def _convert(told: object, kind: type[S]) -> S:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"the checkpoint does not say where the model is cut ({error}); resume with what wrote it"
        ) from error


def first_cut(request: RunRequest, state: TrainingState | None) -> CutInForce | None:
    """Return where a model is cut whose cut is looked at again while the run goes on; None if it stays.

    It is looked at again if it was left to a policy, in this run or in the one that `state` is of, no slice is on its
    way between steps, and no virtual machine counts the steps of the job as it was.
    """
    decided = (None if state is None else cut_of(state)) or request.decision
    if decided is None or request.communication.overlap or request.config.sampled:
        return None
    return CutInForce(None if request.placed is None else request.placed.layer, 1.0, decided.policy)


def review_cut(
    request: RunRequest,
    cut: CutInForce,
    begin: SyncTraining,
    make: Callable[[RunRequest], SyncTraining],
    on_event: OnEvent,
) -> ReviewedTraining:
    """Return the training of a run whose cut is looked at between steps.

    Args:
        request: the run as planned.
        cut: where its model is cut.
        begin: the training of the run as planned.
        make: makes that of one that goes on with another cut.
        on_event: told of changes.
    """
    store = find_tables(request.config).of_task(request.task)
    return ReviewedTraining(
        begin,
        cut,
        SplitReview(request, store),
        lambda found: prepare_with_cut(request, found, store),
        make,
        lambda text: on_event(HOST, EventKind.NOTE, text),
    )
