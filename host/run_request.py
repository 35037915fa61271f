"""A run, read and checked: what `host/run.py` needs to know before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from csd_emu.array import NATIVE, QEMU, ArrayConfig
from csd_emu.calibration import CalibrationStore
from csd_emu.paths import Paths
from csd_emu.placement.decision import Decision
from csd_emu.profiles import get_profile
from csd_emu.shape import Shape
from firmware_agent.errors import ConfigurationError
from firmware_agent.models import ModelSpec
from host.checkpoint import job_sha256
from host.datasets import Dataset, load_dataset
from host.device_time import (
    COUNTED,
    MODELLED,
    RATIO_DRIVE,
    WALL,
    StepModel,
    find_models,
    host_model,
    table_models,
)
from host.evaluation import Evaluator
from host.job import JobConfig
from host.lifecycle import ArrayRequest
from host.placement.choose import choose_placement, explain
from host.placement.placed import AUTO, NONE, Placed, place_model
from host.placement.shares import BY_ARITHMETIC, Shares, step_shares
from host.planner.planning import Planning, make_planning
from host.plugins.plugins import NO_PLUGINS, Plugins, check_files
from host.servers.fitting import fit_job
from host.servers.hall import Hall
from host.shards import deal_out
from host.strategies import check_drives, make_strategy
from host.sync.communicating import TODAY, Communication, choose_communication
from host.sync.optimiser import make_optimiser
from host.sync.plan import Records, SyncPlan, make_plan
from host.tuning.front import WHOLE, Front, front_models

_NOT_COVERED = (
    "modelled from a calibration table that has no row near batch size {}; it can be off by a third: "
    "measure more with csd-emu calibrate"
)


@dataclass(frozen=True)
class RunRequest:
    """A run, read and checked: nothing in it can fail for being misspelt.

    Attributes:
        config, job, spec: what was asked for; a cut that was left to us has its layer's name.
        dataset: that is trained on.
        evaluator: of its held-out records.
        models: device -> what its steps cost, of those whose seconds are modelled.
        sync: plan of a synchronous job.
        expected: device -> what its steps should cost undisturbed, of those with a calibration table.
        communication: how a synchronous job's steps are sent.
        plugins: the user's own strategy or tuner.
        proximal: the strategy's mu, which drives add to their loss.
        placed: where the model is cut; None if nothing is moved.
        host_model: what the whole model's steps cost on the host, if a table says it.
        decision: why the model is cut there, or not; None if that was not left to us.
        planning: what chooses the devices that train; None if all do.
        hall: the servers that train together, of which `config` is this one's array; None if there is one.
        shares: what each layer has of a step's seconds, as measured on a drive or by arithmetic.
    """

    config: ArrayConfig
    job: JobConfig
    spec: ModelSpec
    dataset: Dataset
    evaluator: Evaluator
    models: Mapping[str, StepModel]
    sync: SyncPlan | None = None
    expected: Mapping[str, StepModel] = field(default_factory=dict)
    communication: Communication = TODAY
    plugins: Plugins = NO_PLUGINS
    proximal: float = 0.0
    placed: Placed | None = None
    host_model: StepModel | None = None
    decision: Decision | None = None
    planning: Planning | None = None
    hall: Hall | None = None
    shares: Shares = BY_ARITHMETIC

    @property
    def array(self) -> ArrayRequest:
        """What must be up for this run."""
        among = None if self.hall is None else tuple(self.hall.devices)
        return ArrayRequest(self.config, self.job.data.resolved(self.job.mode), self.job.seed, among=among)

    @property
    def notes(self) -> list[str]:
        """What must be known of the run's figures, in sentences."""
        clocks = _clock_notes(self.config, self.models)
        if self.sync is not None:
            placed = [] if self.placed is None else self.placed.notes(self.job, self.communication)
            decided = [] if self.decision is None else explain(self.decision)
            return [*self.sync.notes, *clocks, *self.communication.notes(self.job), *decided, *placed]
        size = self.job.batch_size
        guessed = [name for name, model in self.models.items() if not model.covers(size)]
        return ([f"{', '.join(guessed)}: {_NOT_COVERED.format(size)}"] if guessed else []) + clocks

    @property
    def portable_job(self) -> JobConfig:
        """The job as it can be run from a folder that holds the user's files under their own names."""
        job = self.plugins.portable(self.job)
        if self.spec.source is None:
            return job
        path, _, function = self.job.model.partition(":")
        return job.model_copy(update={"model": f"{Path(path).name}:{function}"})

    @property
    def user_files(self) -> dict[str, str]:
        """Name -> text of the user's own files, without which the run cannot be resumed."""
        model = {} if self.spec.source is None else {self.portable_job.model.partition(":")[0]: self.spec.source}
        return model | {each.file_name: each.source for each in self.plugins if each.file_name and each.source}

    @property
    def profiles(self) -> dict[str, dict[str, Any]]:
        """The profiles of drives and host, with all their figures and sources."""
        config = self.config if self.hall is None else self.hall.whole
        names = {device.profile for device in config.list_devices()} | {config.host.profile}
        return {name: asdict(get_profile(name)) for name in sorted(names)}

    @property
    def sha256(self) -> str:
        """Hash of all that decides the run's trajectory, on this server."""
        return self.trajectory_sha256(self.config)

    def trajectory_sha256(self, config: ArrayConfig) -> str:
        """Return the same for the array `config`: this server's, or that of all servers."""
        figures: list[Any] = [self.profiles, self.models]
        figures += [] if self.sync is None else [self.sync.batches]
        figures += [self.plugins.facts] if self.plugins.facts else []
        figures += [self.placed.layer] if self.placed is not None else []
        figures += [self.hall.sha256] if self.hall is not None else []
        return job_sha256(config, self.portable_job, self.spec.source, figures)


def _check_in_place(config: ArrayConfig, job: JobConfig) -> None:
    named = [device.name for device in config.list_devices() if device.data is not None]
    if named and job.mode == "sync":
        raise ConfigurationError(
            f"{', '.join(named)}: how many records lie there in place is known only when the drive says hello, and a "
            "job of mode: sync deals all records out before; use mode: federated, or leave data out of the inventory"
        )


def _clock_notes(config: ArrayConfig, models: Mapping[str, StepModel]) -> list[str]:
    """Return what must be known of an array whose drives have different clocks."""
    clocks: dict[str, list[str]] = {}
    for node in config.list_nodes():
        clock = COUNTED if node.engine == QEMU else MODELLED if node.name in models else WALL
        clocks.setdefault(clock, []).append(node.name)
    if len(clocks) < 2:
        return []
    each = "; ".join(f"{clock}: {', '.join(names)}" for clock, names in sorted(clocks.items()))
    return [
        f"its drives have different clocks ({each}): the array's seconds put them side by side as if they were one, "
        "and sums and means over drives mix them; compare drives of one clock"
    ]


def check_run(
    config: ArrayConfig, job: JobConfig, spec: ModelSpec, plugins: Plugins = NO_PLUGINS, hall: Hall | None = None
) -> RunRequest:
    """Return the run if model, data, array and plug-ins fit together; nothing is started.

    With a `hall` the array is that of one of its servers, and the plan is made for all servers' drives.

    Raises:
        ConfigurationError: they do not.
    """
    own = config
    if hall is not None:
        job, config = fit_job(job, hall), hall.whole
    dataset = load_dataset(job.data.source, job.seed)
    nodes, data = config.list_nodes(), job.data.resolved(job.mode)
    dealt = deal_out(dataset, data, nodes, job.seed)
    channels, height, width = dataset.images.shape[1:]
    shape, store = (channels, height, width), CalibrationStore(Paths.default().calibration)
    models = find_models(config, spec, shape, store)
    evaluator = Evaluator(spec, dataset, job.seed)
    _check_in_place(config, job)
    check_files(plugins, spec.name, spec.source)
    wall = NATIVE in config.engines and not any(device.name in models for device in config.list_devices())
    if job.mode == "federated":
        expected = {} if wall else table_models(config, spec, shape, store)
        strategy = make_strategy(job.strategy, job.momentum, _parameters(evaluator), plugins.strategy)
        check_drives(strategy, job.strategy.name, job.participation.participants(len(config.list_devices())))
        proximal = strategy.proximal
        return RunRequest(config, job, spec, dataset, evaluator, models, None, expected, TODAY, plugins, proximal)
    sizes = tuple(len(indices) for indices in dealt.private)
    record_bytes = (dataset.images.nbytes + dataset.labels.nbytes) // len(dataset.labels)
    records = Records(sizes, len(dealt.public), record_bytes)
    make_optimiser(job, evaluator.structure(), evaluator.initial_weights())  # what it refuses is said now
    communication = choose_communication(config, job, models, evaluator)

    def plan_with(front: Front) -> SyncPlan:
        plan = make_plan(config, job, spec, shape, store, records, wall, plugins.tuner, front)
        plan.make_tuner()  # the same
        return plan

    request = RunRequest(
        *(config, job, spec, dataset, evaluator, models, None, {}, communication, plugins),
        host_model=_host_model(config, spec, shape, store),
        shares=step_shares(store.find(spec, shape, RATIO_DRIVE), job.batch_size, evaluator),
    )
    placed = _with_placement(request, plan_with)
    return replace(placed, planning=make_planning(placed, record_bytes, hall), config=own, hall=hall)


def _with_placement(request: RunRequest, plan_with: Callable[[Front], SyncPlan]) -> RunRequest:
    """Return the request with its plan, and its model cut where the job says.

    Raises:
        ConfigurationError: it cannot be cut there, or the host has no room for its part.
    """
    job, layer = request.job, request.job.placement
    if layer == AUTO:
        # Without a plan: a model too large for a drive has one with a cut alone.
        decision = choose_placement(request)
        layer = NONE if decision.layer is None else decision.layer
        # Decided once: a run that is resumed goes on with this cut, whatever this machine is like by then.
        request = replace(request, job=job.model_copy(update={"placement": layer}), decision=decision)
    if layer == NONE:
        plan = plan_with(WHOLE)
        return replace(request, sync=plan, expected=plan.expected)
    placed = place_model(request.evaluator, layer, job.sync.precision, request.shares)
    plan = plan_with(placed.front)
    host = get_profile(request.config.host.profile)
    placed.check_host(sum(plan.batches), host)
    # Known before the host holds any of it: what a tuner may raise batches to later.
    plan = replace(plan, most_records=max(sum(plan.batches), placed.most_records(host)))
    models = front_models(request.models, placed.front)
    return replace(request, sync=plan, expected=plan.expected, models=models, placed=placed)


def _host_model(config: ArrayConfig, spec: ModelSpec, shape: Shape, store: CalibrationStore) -> StepModel | None:
    table, host = store.find(spec, shape, RATIO_DRIVE), get_profile(config.host.profile)
    return None if table is None or host.ratio is None else host_model(table, host)


def _parameters(evaluator: Evaluator) -> frozenset[str]:
    return frozenset(evaluator.initial_weights()).difference(evaluator.structure().buffers)
