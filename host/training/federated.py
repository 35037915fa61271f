"""Federated training: in each round drives are chosen and train, and the strategy makes new weights of theirs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from csd_emu.util.node_names import HOST
from firmware_agent.common.slices import Array
from host.config.job_file import JobConfig
from host.config.participation import choose_devices
from host.config.plugins.plugin_loading import Plugin
from host.config.plugins.plugin_section import UserSection
from host.core.evaluation import WeightsJudge
from host.core.records import EventKind, RoundRecord, in_time
from host.core.states.training_state import TrainingState, check_in_place
from host.core.tensor_sums import first_not_finite, in_precision, round_weights
from host.policies.aggregation import Contribution, FirstRound, make_strategy
from host.policies.aggregation.update_direction import AWAY_ROUNDS
from host.training.accounting import Accountant, Lateness, StepAccount
from host.training.device_conduct import diverged
from host.training.round_exchange import RoundExchange, Visited
from host.training.rounds.round_answer import RoundAnswer
from host.training.rounds.strategy_rounds import StrategyRounds, flatten_states, make_contribution, split_states
from host.training.sampling.step_counter import StepCounter
from host.training.training_protocol import is_done, round_totals, with_service


class FederatedTraining:
    """A federated job on the devices of an array; one instance per run.

    Attributes:
        in_place: drive -> hash of the records that it has said lie there in place; none, at first.
    """

    def __init__(
        self,
        job: JobConfig,
        devices: Sequence[str],
        exchange: RoundExchange,
        accountant: Accountant,
        evaluator: WeightsJudge,
        plugin: Plugin | None = None,
        counter: StepCounter | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            job: what to train.
            devices: names of all drives of the array, in order.
            exchange: reaches them.
            accountant: composes time and energy of the rounds.
            evaluator: builds the first weights and judges the others.
            plugin: the job's strategy, if it is one of the user's own.
            counter: counts the seconds of what drives report, on the clock ``sampled``.
        """
        self._counter = counter
        self._job, self._devices = job, list(devices)
        self._exchange, self._accountant, self._evaluator = exchange, accountant, evaluator
        exchange.clock_of = accountant.time.clock
        self._round, self._accuracy = 0, 0.0
        self._weights = in_precision(evaluator.initial_weights(), job.chosen_precision)
        self._structure = evaluator.structure()
        parameters = frozenset(self._weights).difference(self._structure.buffers)
        strategy = make_strategy(job.strategy, job.drive_momentum, parameters, plugin)
        self._strategy = StrategyRounds(strategy, job.strategy.name, parameters)
        self._weights = self._strategy.first_weights(
            FirstRound(
                *(self._devices, self._weights, job.rounds, job.seed, exchange.contract is not None),
                judge=evaluator.evaluate,
            )
        )
        self.in_place: Mapping[str, str] = {}

    @property
    def weights(self) -> Mapping[str, Array]:
        """The global weights; a round makes new arrays."""
        return self._weights

    @property
    def done(self) -> bool:
        """Whether the target is reached, or the rounds are done."""
        return is_done(self._job, self._round, self._accuracy)

    @property
    def cut_short(self) -> bool:
        """False: a round has no steps to pause between."""
        return False

    def state(self) -> TrainingState:
        """Return where the training stands; the arrays are not copied, and no round changes them in place."""
        seconds = self._accountant.array_seconds
        progress: dict[str, Any] = {"screen": self._exchange.screen.state()}
        progress |= {"drives": known} if (known := self._strategy.state()) else {}
        progress |= {"in_place": dict(self.in_place)} if self.in_place else {}
        if (directions := self._strategy.directions) is not None:
            progress["directions"] = directions.state()
        kept = self._strategy.strategy.state() | flatten_states(self._exchange.states)
        service = self._accountant.service.state()
        return TrainingState(self._round, self._accuracy, seconds, self.weights, kept, progress, service)

    def restore(self, state: TrainingState) -> None:
        """Go on from `state`.

        Raises:
            CheckpointError: it is of another model or strategy, or a drive has other records in place than then.
        """
        check_in_place(self.in_place, state.progress)
        weights = state.weights_like(self.weights)
        self.in_place = {  # what a drive had that has not said hello stays known
            drive: own or state.progress.get("in_place", {}).get(drive, "") for drive, own in self.in_place.items()
        }
        strategy, self._exchange.states = split_states(state.strategy)
        self._strategy.strategy.load_state(strategy)
        self._strategy.load_state(state.progress.get("drives", {}))
        self._round, self._accuracy, self._weights = state.round, state.accuracy, weights
        self._accountant.restore(state.array_seconds, state.service)
        self._exchange.screen.load_state(state.progress.get("screen", {}))
        if self._strategy.directions is not None:
            self._strategy.directions.load_state(state.progress.get("directions", {}))

    async def run_round(self) -> RoundRecord:
        """Train one more round.

        Raises:
            DeviceLost: no device is left.
            DeviceFailed: no device returned its weights, and one said why.
            PluginFailed: a strategy of the user's own failed.
            Diverged: no weights or losses are finite numbers any more, or all explode; the weights stay.
        """
        begin, number, job = time.monotonic(), self._round + 1, self._job
        visited = await self._visit(number)
        start_seconds = self._accountant.array_seconds
        ends = getattr(self._strategy.strategy, "round_seconds", None)
        lateness = Lateness(None if job.straggler is None else job.straggler.deadline, ends=ends)
        self._accountant.begin_step(number)
        accounted = self._accountant.account([answer.returned for answer in visited.answers], lateness)
        self._report_stragglers(number, accounted)
        contributions = self._contributions(visited.answers, accounted)
        self._strategy.note(contributions.values())
        if self._are_enough(number, contributions):
            weights, bad = await asyncio.to_thread(self._aggregate, list(contributions.values()))
            if bad:
                what = f"the drives' weights are finite, but what the strategy makes of {bad} is not"
                raise diverged(self._exchange.on_event, job, f"round {number}", what=what)
            await self._report_directions(number, contributions, weights)
            self._weights = weights
        # A strategy of the user's own may keep or return what it was given.
        for answer in () if isinstance(job.strategy, UserSection) else visited.answers:
            answer.session.recycle(answer.weights)
        judged = await asyncio.to_thread(self._evaluator.evaluate, self.weights)
        more = await asyncio.to_thread(self._strategy.metrics, number, self.weights, contributions.values())
        self._round, self._accuracy = number, judged.accuracy
        returned = {part.device for part in accounted.devices}
        return RoundRecord(
            round=number,
            accuracy=self._accuracy,
            test_loss=judged.loss,
            metrics={**judged.metrics, **more},
            start_seconds=start_seconds,
            wall_seconds=time.monotonic() - begin,
            array_seconds=accounted.array_seconds,
            devices=with_service(accounted.devices, self._accountant.service.take_figures),
            spans=accounted.spans,
            energy_joules=accounted.energy_joules,
            lost=[device for device in self._devices if device in visited.asked and device not in returned],
            idle=[device for device in self._devices if device not in visited.asked],
            **round_totals(accounted.devices),
        )

    async def _visit(self, number: int) -> Visited:
        """Have those drives train that participation and strategy choose."""
        choice = choose_devices(self._devices, self._job.participation, self._job.seed, number)
        samples, has_client = self._exchange.list_samples(), self._exchange.contract is not None
        choice, instructions = self._strategy.plan(number, self._devices, choice, samples, has_client)
        given = number, self.weights, choice, frozenset(self._structure.buffers), instructions
        visit = self._exchange.visit(*given, partial(self._strategy.exchange, number))
        return await (visit if self._counter is None else self._counter.count_round(number, self.weights, visit))

    def _report_stragglers(self, number: int, accounted: StepAccount) -> None:
        limit = f"the deadline is {accounted.array_seconds:g} s"
        for part in accounted.devices:
            if part.straggler:
                seconds = accounted.finish_seconds[part.device]
                self._exchange.on_event(
                    part.device, EventKind.STRAGGLER, f"in round {number}: it took {seconds:g} s, {limit}"
                )
        if all(part.straggler for part in accounted.devices):
            self._exchange.on_event(
                HOST, EventKind.NOTE, f"round {number}: every device was late, {limit}; the weights stay"
            )

    async def _report_directions(
        self, number: int, contributions: Mapping[str, Contribution], weights: Mapping[str, Array]
    ) -> None:
        if (directions := self._strategy.directions) is None:
            return
        returned = {device: part.weights for device, part in contributions.items()}
        away = await asyncio.to_thread(directions.watch, self.weights, weights, returned)
        for device, cosine in away.items():
            what = (
                f"its updates point away from what {self._job.strategy.name} makes of all, {AWAY_ROUNDS} rounds running"
            )
            self._exchange.on_event(device, EventKind.NOTE, f"in round {number}: {what} (cosine {cosine:.2f})")

    def _aggregate(self, contributions: Sequence[Contribution]) -> tuple[dict[str, Array], str]:
        """Return the new weights, and the first of them that is not finite; empty if all are."""
        weights = self._strategy.strategy.aggregate(self.weights, contributions)
        weights |= {name: weights[first] for name, first in self._structure.tied.items() if first in weights}
        if self._job.freeze:  # a mean of equal values may be rounded
            weights = weights | {name: self.weights[name] for name in self._structure.frozen(self.weights)}
        return weights, first_not_finite(weights)

    def _contributions(self, answers: Sequence[RoundAnswer], accounted: StepAccount) -> dict[str, Contribution]:
        """Return device -> what it adds to the round, of those that were in time."""
        counted = {part.device: part for part in in_time(accounted.devices)}
        answers = [answer for answer in answers if answer.returned.device in counted]
        planned = self._exchange.contract is not None or self._strategy.plans
        counts = round_weights(
            [each.session.hello.samples if planned else each.returned.trained.samples for each in answers]
        )
        return {
            answer.returned.device: make_contribution(
                *(self.weights, answer, count, counted[answer.returned.device]),
                finish_seconds=accounted.finish_seconds[answer.returned.device],
            )
            for answer, count in zip(answers, counts, strict=True)
        }

    def _are_enough(self, number: int, contributions: Collection[object]) -> bool:
        """Whether the strategy can keep what it promises with these; the weights stay if not, and an event says so."""
        count, least = len(contributions), self._strategy.strategy.least_contributions
        if 0 < count < least:
            needed = f"strategy {self._job.strategy.name} needs {least}; the weights stay"
            self._exchange.on_event(
                HOST, EventKind.NOTE, f"round {number}: {count} drives' weights can be used, and {needed}"
            )
        return count >= least
