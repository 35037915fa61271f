"""A run, read and checked: data and model loaded, batches, cut and devices planned; nothing is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from csd_emu.config.array_file import SAMPLED, ArrayConfig
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationStore, CalibrationTable
from csd_emu.profiles.profile import RATIO_DRIVE
from csd_emu.util.node_names import HOST
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.app.array_service import make_service
from host.app.client_trial import try_client
from host.app.drive_imports import check_imports
from host.app.load_inputs import check_cut_loss, load_job_dataset, make_inputs
from host.config.array_files import read_array
from host.config.host_io_section import decisive_profiles
from host.config.job_file import JobConfig, load_job
from host.config.plugins.kinds import SPLIT_POLICY
from host.config.resolve import NO_PLUGINS, Plugins, ResolvedRun, check_files, load_plugins
from host.config.server_group import ServerGroup
from host.config.sync_section import OptimiserSection
from host.core.device_time import MEASURED_HOST, WALL, HostModel, StepModel, host_model, table_models
from host.core.layer_time_shares import BY_ARITHMETIC, Shares, step_shares
from host.core.readers.source_names import file_of, make_portable
from host.core.table_plan import plan_table
from host.fleet.checkpoint import job_sha256
from host.fleet.lifecycle import ArrayRequest
from host.policies.aggregation import check_drives, make_strategy
from host.policies.batching.client_layers import WHOLE, Front, front_models
from host.policies.schedules import Schedule, make_schedule
from host.policies.split.cut_decision import CutDecision
from host.training.host_optimiser import try_optimiser
from host.training.job_inputs import JobInputs
from host.training.rounds.client_contract import ClientContract
from host.training.selection.planning import Planning, make_planning
from host.training.split.decide_cut import choose_placement, explain
from host.training.split.split_model import NONE, SplitModelInfo, place_model
from host.training.split.split_request import PlacementRequest, of_run
from host.training.split.split_review import CutInForce, at_link_share
from host.training.sync_plan import Records, SyncPlan, make_plan
from host.training.transfer_policy import UNSLICED, TransferPolicy, choose_communication

_NOT_COVERED = (
    "modelled from a calibration table that has no row near batch size {}; it can be off by a third: "
    "measure more with csd-emu calibrate"
)

_BY_TABLE = (
    "client {}: modelled seconds are those of the calibration table for the batches that it takes, without what it "
    "computes beside them; on virtual machines that is counted"
)


@dataclass(frozen=True)
class RunRequest(JobInputs):
    """A run, read and checked: nothing in it can fail for being misspelt.

    A cut that was left to us has its layer's name in the job.

    Attributes:
        sync: plan of a synchronous job.
        expected: device -> what its steps should cost undisturbed, of those with a calibration table.
        communication: how a synchronous job's steps are sent.
        plugins: the user's own strategy or tuner.
        proximal: the strategy's mu, which drives add to their loss.
        contract: the client program that trains in the drives; None for their own loop.
        placed: where the model is cut; None if nothing is moved.
        host_table: what the whole model's steps cost on the host, or on a drive that it is compared with; None if it is
            not known.
        decision: why the model is cut there, or not; None if that was not left to us.
        planning: what chooses the devices that train; None if all do.
        server_group: the servers that train together, of which `config` is this one's array; None if there is one.
        shares: what each layer has of a step's seconds, as measured on a drive or by arithmetic.
        schedule: of a federated job's learning rate; None if it stays.
    """

    sync: SyncPlan | None = None
    expected: Mapping[str, StepModel] = field(default_factory=dict)
    communication: TransferPolicy = UNSLICED
    plugins: Plugins = NO_PLUGINS
    proximal: float = 0.0
    contract: ClientContract | None = None
    placed: SplitModelInfo | None = None
    host_table: CalibrationTable | None = None
    decision: CutDecision | None = None
    planning: Planning | None = None
    server_group: ServerGroup | None = None
    shares: Shares = BY_ARITHMETIC
    schedule: Schedule | None = None

    def round_rate(self, number: int) -> float | None:
        """Return the learning rate of a federated job's round; None for the job's own."""
        return None if self.schedule is None else self.job.learning_rate * self.schedule.factor(number)

    @property
    def array(self) -> ArrayRequest:
        """What must be up for this run."""
        among = None if self.server_group is None else tuple(self.server_group.devices)
        data = self.job.data.resolved(self.job.mode)
        return ArrayRequest(self.config, data, self.job.seed, among=among, dealt=self.dealt, dataset=self.dataset)

    @property
    def notes(self) -> list[str]:
        """What must be known of the run's figures, in sentences."""
        clocks = self.clock_notes() + [MEASURED_HOST] * self.host_measured
        if left_out := self.dealt.held.left_out:
            clocks.append(
                f"{self.plugins.partition} left out {left_out} of {len(self.dataset)} records: no drive has them"
            )
        clocks += [] if self.table_hint is None else [self.table_hint]
        if self.sync is not None:
            placed = [] if self.placed is None else self.placed.notes(self.job)
            if self.placed is not None and (own := ", ".join(self.sync.in_place)):
                placed.append(
                    f"{own}: of each record that lies there in place the host learns its class and what the layers "
                    f"before {self.placed.layer} make of it, in the steps that it is in; the record itself stays"
                )
            decided = [] if self.decision is None else explain(self.decision)
            rest = [*self.communication.notes(self.job), *decided, *placed]
            return [*self.sync.notes, *clocks, *rest]
        clocks += [] if self.contract is None or not self.models else [_BY_TABLE.format(self.contract.code.name)]
        size = self.job.batch_size
        guessed = [name for name, model in self.models.items() if not model.covers(size)]
        return ([f"{', '.join(guessed)}: {_NOT_COVERED.format(size)}"] if guessed else []) + clocks

    @cached_property  # the model is traced for it
    def table_hint(self) -> str | None:
        """How to measure the calibration table for want of which the clock is the wall's; None if it is not."""
        if not self.wall or self.config.clock != "auto":
            return None
        seconds = plan_table(self.evaluator.layers(), self.job.batch_size).wall_seconds
        return (
            f"no calibration table has {self.spec.name}: seconds are this machine's (wall) and say nothing of a drive; "
            f"csd-emu run --calibrate (calibrate: auto in the array) measures one first, in some {seconds:.0f} s"
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Job and, under ``array``, array as resolved."""
        return self.portable_job.model_dump(mode="json") | {"array": self.config.model_dump(mode="json")}

    @property
    def host_model(self) -> HostModel | None:
        """What the whole model's steps cost on the host, if a table says it."""
        return None if self.host_table is None else host_model(self.host_table, get_profile(self.config.host.profile))

    @property
    def host_measured(self) -> bool:
        """Whether the host's seconds are modelled by a table of its own."""
        table = self.host_table
        own = table is not None and (table.clock, table.core) == (WALL, self.config.host.profile)
        return own and (HOST in self.models or (self.placed is not None and not self.wall))

    @property
    def portable_job(self) -> JobConfig:
        """The job as it can be run from a folder that holds the user's files under their own names."""
        data = self.job.data.model_copy(update={"source": make_portable(self.job.data.source)})
        job = self.plugins.portable(self.job.model_copy(update={"data": data}))
        if self.spec.source is None:
            return job
        path, _, function = self.job.model.partition(":")
        return job.model_copy(update={"model": f"{Path(path).name}:{function}"})

    @property
    def user_files(self) -> dict[str, str]:
        """Name -> text of the user's own files, without which the run cannot be resumed."""
        model = {} if self.spec.source is None else {self.portable_job.model.partition(":")[0]: self.spec.source}
        name = file_of(self.job.data.source)
        data = {} if name is None or self.dataset.code is None else {name: self.dataset.code}
        return data | model | {each.file_name: each.source for each in self.plugins if each.file_name and each.source}

    @property
    def profiles(self) -> dict[str, dict[str, Any]]:
        """The profiles of drives and host, with all their figures and sources."""
        config = self.config if self.server_group is None else self.server_group.whole
        names = {device.profile for device in config.list_devices()} | {config.host.profile}
        return {name: asdict(get_profile(name)) for name in sorted(names)}

    @property
    def sha256(self) -> str:
        """Hash of all that decides the run's trajectory, on this server."""
        return self.trajectory_sha256(self.config)

    def trajectory_sha256(self, config: ArrayConfig) -> str:
        """Return the same for the array `config`: this server's, or that of all servers."""
        figures: list[Any] = [decisive_profiles(self.profiles, self.job.host_io), self.models]
        figures += [self.cycles] if self.cycles else []
        figures += [self.host_table] if self.host_measured else []
        figures += [] if self.sync is None else [self.sync.batches]
        figures += [self.plugins.facts] if self.plugins.facts else []
        figures += [self.array.own_sha256] if self.array.own_sha256 else []
        figures += [] if self.dataset.code is None else [self.dataset.code]
        figures += [self.evaluator.weights_sha256] if self.evaluator.weights_sha256 else []
        figures += [self.placed.layer] if self.placed is not None else []
        figures += [self.server_group.sha256] if self.server_group is not None else []
        return job_sha256(config, self.portable_job, self.spec.source, figures)


def prepare_run(resolved: ResolvedRun) -> RunRequest:
    """Return the run if model, data, array and plug-ins fit together; nothing is started.

    With several servers the array is that of one of them, and the plan is made for all servers' drives.

    Raises:
        ConfigurationError: they do not.
    """
    config, job, spec = resolved.whole, resolved.job, resolved.spec
    store = find_tables(config)
    dataset = load_job_dataset(job)
    inputs = make_inputs(config, job, spec, store, dataset, plugins=resolved.plugins)
    return prepare_loaded(resolved, inputs, store)


def prepare_loaded(resolved: ResolvedRun, inputs: JobInputs, store: CalibrationStore) -> RunRequest:
    """Return the run of a job whose data and model are loaded already; see `prepare_run`.

    Args:
        resolved: the run; its array is that of all servers.
        inputs: of it.
        store: the calibration tables.

    Raises:
        ConfigurationError: model, data, array and plug-ins do not fit together.
    """
    config, job, spec, plugins = resolved.whole, resolved.job, resolved.spec, resolved.plugins
    store = store.of_task(inputs.task)
    if resolved.server_group is not None and (own := [each.name for each in config.list_devices() if each.data]):
        raise ConfigurationError(
            f"{', '.join(own)}: of records in place only the drive's own server knows how many there are, and several "
            "servers deal out steps together; train with one server, or leave data out of the inventory"
        )
    files = {spec.name: spec.source, job.data.source: inputs.dataset.code}
    check_files(plugins, {name: text for name, text in files.items() if text is not None})
    travel = plugins.loss, plugins.client, plugins.optimizer, plugins.collate, *plugins.augment
    check_imports(config, {spec.name: spec.source, **{each.name: each.source for each in travel if each is not None}})
    if job.mode == "federated":
        return _prepare_federated(inputs, plugins, store)
    request = _prepare_sync(inputs, plugins, store, inputs.records)
    cut_bytes = None if request.placed is None else request.placed.kept_bytes
    planning = (
        None
        if request.sync is None
        else make_planning(
            *(request, request.sync, partial(make_service, request, steady=True), cut_bytes, resolved.server_group)
        )
    )
    return replace(request, planning=planning, config=resolved.config, server_group=resolved.server_group)


def prepare_with_cut(request: RunRequest, cut: CutInForce, store: CalibrationStore) -> RunRequest:
    """Return a run with its model cut elsewhere, planned for the link as measured.

    Its steps are composed with the array's own link, as before.
    """
    job = request.job.model_copy(update={"placement": cut.layer or NONE})
    return _prepare_again(request, at_link_share(request.config, cut.link_share), job, store)


def prepare_in_place(request: RunRequest, in_place: Mapping[str, tuple[int, str]]) -> RunRequest:
    """Return a run that knows what drives say that they hold in place; a synchronous one is planned for it.

    Args:
        request: the run, planned before anything started.
        in_place: drive -> number of its records, and their hash.

    Raises:
        ConfigurationError: tuner, planner or memory do not go with so many.
    """
    if not in_place:
        return request
    told = replace(request, in_place=in_place)
    if request.sync is None:
        return told
    return replace(
        _prepare_again(told, request.config, request.job, find_tables(request.config)), decision=request.decision
    )


def _prepare_again(request: RunRequest, config: ArrayConfig, job: JobConfig, store: CalibrationStore) -> RunRequest:
    """Return the plan of a run for another link, cut or number of records; its steps are composed with its own link."""
    inputs = make_inputs(config, job, request.spec, store, request.dataset, request.evaluator, request.plugins)
    inputs = replace(inputs, dealt=request.dealt, in_place=request.in_place)
    planned = prepare_loaded(ResolvedRun(config, job, request.spec, request.plugins), inputs, store)
    return replace(planned, config=request.config)


def find_tables(config: ArrayConfig) -> CalibrationStore:
    """Return the calibration tables for an array's model of the core."""
    return CalibrationStore(Paths.default().calibration).counting(config.core_model)


def read_placement(job_path: Path, array_path: Path, store: CalibrationStore) -> PlacementRequest:
    """Read the files. A model that is too large for a drive as a whole is none that is refused here.

    Raises:
        ConfigurationError: a file breaks a rule, or the job is not synchronous.
        CalibrationError: the tuner, or the array's clock, needs a table that is missing.
    """
    config = read_array(array_path)
    store = store.counting(config.core_model)
    job, spec = load_job(job_path)
    inputs = make_inputs(config, job, spec, store, load_job_dataset(job), plugins=load_plugins(job, job_path))
    check_cut_loss(inputs.objective, inputs.dataset)
    sync = job.mode == "sync"
    communication = choose_communication(config, job, inputs.models, inputs.evaluator) if sync else UNSLICED
    return of_run(inputs, communication, store.of_task(inputs.task))


def _prepare_federated(inputs: JobInputs, plugins: Plugins, store: CalibrationStore) -> RunRequest:
    config, job = inputs.config, inputs.job
    expected = {} if inputs.wall else table_models(config, inputs.spec, inputs.shape, store)
    parameters = frozenset(inputs.evaluator.initial_weights()).difference(inputs.evaluator.structure().buffers)
    if job.optimizer is not None:  # what it refuses is said now: made as it will be in a drive, of the first weights
        try_optimiser(job, inputs.evaluator.structure(), inputs.evaluator.initial_weights(), inputs.optimizer)
    strategy = make_strategy(job.strategy, job.drive_momentum, parameters, plugins.strategy)
    check_drives(strategy, job.strategy.name, job.participation.participants(len(config.list_devices())))
    if job.straggler is not None and hasattr(strategy, "round_seconds"):
        raise ConfigurationError(f"straggler: strategy {job.strategy.name} waits for nobody; leave it out")
    contract = try_client(inputs, plugins, strategy)
    if config.clock == SAMPLED and (contract is not None or hasattr(strategy, "configure")):
        raise ConfigurationError(
            f"clock: sampled: counts steps of the built-in loop, and strategy {job.strategy.name} or a client program "
            "says to each drive what it does; use the clock counted"
        )
    return _request_of(
        inputs,
        expected=expected,
        plugins=plugins,
        proximal=strategy.proximal,
        contract=contract,
        schedule=make_schedule(job.schedule, plugins.schedule, job.rounds),
        host_table=store.find(inputs.spec, inputs.shape, config.host.profile),
    )


def _prepare_sync(inputs: JobInputs, plugins: Plugins, store: CalibrationStore, records: Records) -> RunRequest:
    """Return a synchronous run with its plan, its model cut where the job says; devices are not chosen yet.

    Raises:
        ConfigurationError: optimiser, tuner, communication or cut are not possible.
    """
    config, job, spec, shape, evaluator = inputs.config, inputs.job, inputs.spec, inputs.shape, inputs.evaluator
    if job.chosen_optimiser != OptimiserSection() or not evaluator.structure().trained:
        # What it refuses is said now.
        try_optimiser(job, evaluator.structure(), evaluator.initial_weights(), inputs.optimizer)
    communication = choose_communication(config, job, inputs.models, evaluator)

    def plan_with(front: Front) -> SyncPlan:
        tables = None if inputs.wall else store
        plan = replace(make_plan(config, job, spec, shape, tables, records, front), plugin=plugins.tuner)
        plan = replace(plan, schedule=make_schedule(job.schedule, plugins.schedule, plan.steps))
        plan.make_tuner()  # the same
        return plan

    request = _request_of(
        inputs,
        communication=communication,
        plugins=plugins,
        host_table=store.find(spec, shape, config.host.profile),
        shares=step_shares(store.find(spec, shape, RATIO_DRIVE), job.batch_size, evaluator),
    )
    return _with_placement(request, plan_with, store)


def _request_of(inputs: JobInputs, **more: Any) -> RunRequest:
    return RunRequest(**{each.name: getattr(inputs, each.name) for each in fields(JobInputs)}, **more)


def _with_placement(request: RunRequest, plan_with: Callable[[Front], SyncPlan], store: CalibrationStore) -> RunRequest:
    """Return the request with its plan, and its model cut where the job says.

    Raises:
        ConfigurationError: it cannot be cut there, or the host has no room for its part.
    """
    job, layer = request.job, request.job.placement
    if layer != NONE and layer in SPLIT_POLICY.names:
        # Without a plan: a model too large for a drive has one with a cut alone.
        decision = choose_placement(of_run(request, request.communication, store), layer, store)
        layer = NONE if decision.layer is None else decision.layer
        # Decided once: a run that is resumed goes on with this cut, whatever this machine is like by then.
        request = replace(request, job=job.model_copy(update={"placement": layer}), decision=decision)
    if layer == NONE:
        plan = plan_with(WHOLE)
        return replace(request, sync=plan, expected=plan.expected)
    placed = place_model(request.evaluator, layer, job.chosen_precision, request.shares)
    plan = plan_with(placed.front)
    host = get_profile(request.config.host.profile)
    placed.check_host(sum(plan.batches), host)
    # Known before the host holds any of it: what a tuner may raise batches to later.
    most = placed.most_records(host) if plan.most_records is None else min(plan.most_records, placed.most_records(host))
    plan = replace(plan, most_records=max(sum(plan.batches), most))
    models = front_models(request.models, placed.front)
    return replace(request, sync=plan, expected=plan.expected, models=models, placed=placed)
