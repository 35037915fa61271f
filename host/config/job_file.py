"""The job file: what to train, on which data, how long, and what counts as success."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue

from csd_emu.util.config_files import Config, RegisteredName, Seconds, ShortForm, load_mapping, parse_config
from firmware_agent.common.errors import ConfigurationError, ModelError
from host.config.communication_section import CommunicationKey, CommunicationSection
from host.config.host_io_section import HostIoSection
from host.config.optimizer_key import AnyOptimiser, NamedOptimiser, OptimizerKey
from host.config.overrides import NO_KEYS, override
from host.config.participation import Participation
from host.config.planner_section import PlannerSection
from host.config.plugins.kinds import SPLIT_POLICY, TRACKER
from host.config.plugins.plugin_section import (
    AugmentSection,
    ClientSection,
    CollateSection,
    LossSection,
    MetricSection,
    ScheduleSection,
    StrategySection,
    TunerSection,
    UserSection,
)
from host.config.sync_section import DisturbSection, OptimiserSection, SyncSection
from host.core.datasets import check_source
from host.core.plain_text import plain_name
from host.core.readers.source_names import make_absolute

if TYPE_CHECKING:
    from firmware_agent.common.shipped_code import ShippedCode


Concentration = Annotated[float | None, Field(gt=0, le=1e6, allow_inf_nan=False)]
_WAYS = ("dirichlet", "classes_per_drive", "quantity", "column", "function")


class Partition(Config):
    """How records are dealt out to the drives: in one of these ways, or evenly at random if all are null.

    Attributes:
        dirichlet: concentration by which each class is spread over the drives; small is uneven.
        classes_per_drive: how many classes each drive holds; drives with a class share its records evenly.
        quantity: concentration by which the drives' numbers of records are drawn; which records they are is random.
        column: a field with one whole number per record, such as a user's; records of one value stay together.
        function: ``my_part.py:split`` (from the job file's folder) or ``package.module:function``: the user's own.
        options: keyword arguments of `function`.
    """

    dirichlet: Concentration = None
    classes_per_drive: int | None = Field(default=None, ge=1, le=1_000_000)
    quantity: Concentration = None
    column: str | None = Field(default=None, min_length=1, max_length=64)
    function: str | None = Field(default=None, min_length=1, max_length=256)
    options: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def ways(self) -> list[str]:
        """The keys that say how; none for evenly."""
        return [key for key in _WAYS if getattr(self, key) is not None]

    @property
    def own(self) -> UserSection | None:
        """Name and options of the user's own function, if that deals records out."""
        return None if self.function is None else UserSection.model_validate({"name": self.function} | self.options)

    def rules(self) -> Mapping[str, object]:
        """Return the rules of its keys."""
        ways, (where, _, name) = self.ways, (self.function or "").partition(":")
        odd = [key for key in self.options if key == "name" or not key.isidentifier()]
        return {
            f"{' and '.join(ways)}: records can be dealt out in one way alone; leave the others out": len(ways) > 1,
            f"function: {self.function!r} names none; write my_part.py:split or package.module:function": (
                self.function is not None and not (where and name)
            ),
            "options: are those of a function of your own; name it in function, or leave them out": (
                self.options and self.function is None
            ),
            f"options: {', '.join(map(repr, odd))} cannot be the name of an option; use another name": odd,
        }


class DataSection(Config):
    """Which data set, and how it is dealt out.

    Attributes:
        source: name of the data set, or the path of files (with a / in it), from the job file's folder.
        partition: how the private records are dealt out.
        input: the field of a record that the model takes, or several, in the order of its arguments; null: the only
            one that is not to be predicted.
        private: share of the records that are private, each to one drive, which they never leave; the others are public
            and lie on every drive. None: all of them in federated mode, none in synchronous mode.
    """

    source: str
    input: str | list[str] | None = Field(default=None, min_length=1, max_length=64)
    partition: Partition = Partition()
    private: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)

    def resolved(self, mode: str) -> DataSection:
        """Return the section with the share of private records that a job of this `mode` has."""
        usual = 1.0 if mode == "federated" else 0.0
        return self.model_copy(update={"private": usual if self.private is None else self.private})


class CheckpointSection(Config):
    """After how many rounds a checkpoint is written; 0 for never."""

    every: int = Field(default=1, ge=0, le=100_000)


DEFAULT_DATA = DataSection.model_validate({"source": "digits", "partition": {"dirichlet": 0.5}, "private": 1.0})
"""The quickstart's, for arrays that come up without a job."""


class Target(Config):
    """When a run has succeeded."""

    accuracy: float = Field(gt=0, le=1, allow_inf_nan=False)


class StragglerSection(Config):
    """When a device is too late for a round: `deadline`, in seconds of the array's composed time."""

    deadline: Seconds

    def rules(self) -> Mapping[str, object]:
        """Return the rule of its deadline."""
        return {"deadline must be more than 0 s": self.deadline <= 0}


_TWICE = "{0} and {1} are the same key; leave {1} out"
# Keys that one mode has and the other has not.
_FEDERATED_KEYS = ("participation", "straggler", "strategy", "client")
_SYNC_KEYS = ("tuner", "sync", "disturb", "communication", "placement", "planner")


class JobConfig(Config):
    """A training job.

    Attributes:
        model: a built-in name, ``my_net.py:build`` (from the job file's folder) or ``package.module:function``.
        model_arguments: keyword arguments of the builder.
        data: what to train on.
        loss: what is minimised: a built-in name such as ``cross_entropy``, or a function of the user's own, of outputs
            and batch. None: by what is to be predicted, ``cross_entropy`` for class numbers and ``mean_squared_error``
            for other values.
        collate: makes the batch that model, loss and metrics take of the records as stored: ``pad``, or a function of
            the user's own. None: they take them as stored.
        augment: what changes records at random in training, one after the other: built-in names such as ``flip``, or
            functions of the user's own.
        metrics: what is told of the model after each round beside loss and accuracy, from held-out records: built-in
            names, or functions or classes of the user's own. None: by the loss.
        mode: ``federated``: drives train for whole epochs, the host averages; ``sync``: every step, drives push
            gradients, the host steps the optimiser, drives pull weights.
        tuner: of synchronous jobs: ``none`` gives every device `batch_size`, ``stannis`` chooses batches so that all
            finish a step together, ``hypertune`` also keeps that so while devices change; or one of the user's own.
        sync: more about synchronous jobs.
        disturb: of synchronous jobs: competing work in drives, by step.
        communication: of synchronous jobs: in which pieces and order tensors are sent, and whether beside computing.
        placement: of synchronous jobs: which layers the host has: ``none``, ``auto`` (those where a step is predicted
            to be shortest), ``relieve_wire`` (late ones, heavy on the wire), or those from a layer of this name on.
        planner: of synchronous jobs: which devices train is chosen in the first steps; without it all do.
        host_io: what the host reads and writes on the drives while they train; without it nothing.
        strategy: how the host makes new weights of the devices': a built-in name such as ``fedavg`` or
            ``trimmed_mean`` (see docs/training.md), or one of the user's own (see docs/extending.md).
        client: what a drive does in a round in place of local training: a function of the user's own (see
            docs/extending.md). None: the strategy's own half, if it has one.
        participation: how many devices are chosen for a round: a share, or a count.
        straggler: optional; a device that takes longer is left out of the round's mean.
        rounds: at most so many; a run ends early when the target is reached.
        epochs: passes over the shard per round.
        batch_size, learning_rate, momentum: of SGD in the drive.
        optimizer: what steps the weights, in the drive or, of synchronous jobs, on the host: a class of `torch.optim`,
            or ``my_file.py:Class``. None: SGD, or what `sync.optimiser` says.
        schedule: the learning rate by round or, of synchronous jobs, by step: a built-in name such as ``cosine``, or a
            function of the user's own. None: it stays.
        clip_norm: the norm of a step's gradient is cut to this. None: it is not, or as `sync.clip_norm` says.
        precision: in which drives compute. None: as `sync.precision` says, which is single precision by default.
        initial_weights: file of the first weights, ``.safetensors`` or a torch state dict. None: the model's as built.
        freeze: patterns of names of parameters that are not trained, such as ``conv1.*``.
        seed: of everything random.
        track: experiment trackers that are told of its runs: ``tensorboard``, ``mlflow``, ``csv``, ``parquet``, or the
            user's own.
        name: of its runs, by which their directories are called; else the job file's.
        checkpoint: how often a run writes down what it needs to be resumed.
        target: optional; without it a run succeeds when its rounds are done.
        watchdog: wall time after which a device that has not returned its round counts as dead; emulation is slow.
        on_failure: what comes of a failure of the user's code in a drive: the run ends at once (``stop``), or goes on
            while enough drives are left (``continue``); it has failed either way.
    """

    model_config = ConfigDict(defer_build=True)  # see `RegisteredSection`
    synonyms: ClassVar = {
        "lr": "learning_rate",
        **dict.fromkeys(("bs", "batch", "minibatch"), "batch_size"),
        **dict.fromkeys(("num_rounds", "n_rounds", "global_rounds"), "rounds"),
        **dict.fromkeys(("local_epochs", "num_epochs"), "epochs"),
        **dict.fromkeys(("dataset", "train_data"), "data"),
        **dict.fromkeys(("net", "network", "architecture"), "model"),
        "optimiser": "optimizer",
        **dict.fromkeys(("scheduler", "lr_scheduler", "lr_schedule"), "schedule"),
        **dict.fromkeys(("max_grad_norm", "grad_clip", "gradient_clipping"), "clip_norm"),
        **dict.fromkeys(("init_weights", "pretrained"), "initial_weights"),
        "frozen": "freeze",
        **dict.fromkeys(("aggregation", "algorithm"), "strategy"),
        "fraction_fit": "participation",
        "random_seed": "seed",
    }

    model: str
    model_arguments: dict[str, int | float | str | bool] = Field(default_factory=dict)
    data: DataSection
    loss: LossSection | None = None
    collate: CollateSection | None = None
    augment: Annotated[
        list[AugmentSection],
        BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
        ShortForm(lambda: {"type": "string", "minLength": 1, "examples": ["flip", "my_augment.py:function"]}),
    ] = Field(default_factory=list, max_length=16)
    metrics: list[MetricSection] | None = Field(default=None, max_length=16)
    mode: Literal["federated", "sync"] = "federated"
    tuner: TunerSection = "none"
    sync: SyncSection = SyncSection()
    disturb: list[DisturbSection] = Field(default_factory=list)
    communication: CommunicationKey = CommunicationSection()
    placement: str = Field(
        default="none",
        min_length=1,
        max_length=256,
        json_schema_extra=lambda schema: schema.update(examples=list(SPLIT_POLICY.names)),
    )
    planner: PlannerSection | None = None
    host_io: HostIoSection | None = None
    strategy: StrategySection = Field(default="fedavg")  # type: ignore[assignment]
    client: ClientSection | None = None
    participation: Participation = Field(default=1.0)  # type: ignore[assignment]
    straggler: StragglerSection | None = None
    rounds: int = Field(default=10, ge=1, le=1_000_000)
    epochs: int = Field(default=1, ge=1, le=10_000)
    batch_size: int = Field(default=32, ge=1, le=65536)
    learning_rate: float = Field(default=0.05, gt=0, le=100, allow_inf_nan=False)
    momentum: float = Field(default=0.9, ge=0, lt=1, allow_inf_nan=False)
    optimizer: OptimizerKey | None = None
    schedule: ScheduleSection | None = None
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    precision: Literal["float32", "float64"] | None = None
    initial_weights: str | None = Field(default=None, min_length=1, max_length=4096)
    freeze: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(default_factory=list, max_length=1024)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    track: list[Annotated[str, RegisteredName(TRACKER)]] = Field(default_factory=list)
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    checkpoint: CheckpointSection = CheckpointSection()
    target: Target | None = None
    watchdog: Seconds = Field(default="10 min")  # type: ignore[assignment]
    on_failure: Literal["stop", "continue"] = "stop"

    @property
    def tuner_name(self) -> str:
        """The tuner's name, as a person reads it."""
        return self.tuner if isinstance(self.tuner, str) else self.tuner.name

    @property
    def run_name(self) -> str:
        """What a run of the job is called: by its name, else by its model."""
        return self.name or plain_name(self.model.partition(":")[0].rpartition("/")[2].removesuffix(".py"))

    @property
    def chosen_optimiser(self) -> AnyOptimiser:
        """What steps the weights, under whichever key it stands."""
        return self.optimizer or self.sync.optimiser

    @property
    def own_optimizer(self) -> NamedOptimiser | None:
        """The optimiser, if it is a class of the user's own."""
        return self.optimizer if ":" in self.chosen_optimiser.name else None

    @property
    def by_sgd(self) -> bool:
        """Whether SGD steps the weights, with whatever options."""
        return self.chosen_optimiser.name.lower() == "sgd"

    @property
    def chosen_clip_norm(self) -> float | None:
        """What gradients' norm is cut to, under whichever key it stands."""
        return self.sync.clip_norm if self.clip_norm is None else self.clip_norm

    @property
    def chosen_precision(self) -> Literal["float32", "float64"]:
        """In which drives compute, under whichever key it stands."""
        return self.precision or self.sync.precision

    @property
    def drive_momentum(self) -> float:
        """Momentum of SGD in the drives; 0 of another optimiser."""
        options = self.chosen_optimiser.arguments
        return options.get("momentum", self.momentum) if self.by_sgd else 0.0  # type: ignore[return-value]

    def rules(self) -> Mapping[str, object]:
        """Return the rules of its watchdog, and of keys that have two places."""
        return {
            "watchdog must be more than 0 s": self.watchdog <= 0,
            _TWICE.format("optimizer", "sync.optimiser"): self.optimizer and self.sync.optimiser != OptimiserSection(),
            _TWICE.format("clip_norm", "sync.clip_norm"): self.clip_norm and self.sync.clip_norm,
            _TWICE.format("precision", "sync.precision"): self.precision and self.sync.precision != "float32",
        }


def check_mode(job: JobConfig, where: str | Path) -> None:
    """Return if the job has no key of the mode that it is not of; what is as by default may stand.

    Raises:
        ConfigurationError: it has one; the message begins with `where`.
    """
    usual = JobConfig.model_validate({"model": job.model, "data": {"source": job.data.source}})
    for key in _FEDERATED_KEYS if job.mode == "sync" else _SYNC_KEYS:
        if getattr(job, key) != getattr(usual, key):
            other = "federated" if job.mode == "sync" else "sync"
            raise ConfigurationError(f"{where}: {key} is for mode: {other}, this job is mode: {job.mode}; leave it out")
    if job.mode == "federated" and job.data.resolved(job.mode).private != 1:
        raise ConfigurationError(
            f"{where}: data.private: a public pool, which lies on every drive, is for mode: sync; a federated job's "
            "records are all private, so leave it out"
        )


def read_job(path: Path, keys: Mapping[str, Any] = NO_KEYS) -> JobConfig:
    """Read a job file, with `keys` in place of its own; its model is not looked at.

    Raises:
        ConfigurationError: the file breaks a rule, or would with the keys.
    """
    job = _checked(override(load_mapping(path), keys, str(path)), path, path.parent)
    return job if job.name is not None else job.model_copy(update={"name": plain_name(path.stem)})


def _checked(content: dict[str, Any], where: str | Path, folder: Path) -> JobConfig:
    job = parse_config(content, JobConfig, where)
    if (source := make_absolute(job.data.source, folder)) != job.data.source:
        job = job.model_copy(update={"data": job.data.model_copy(update={"source": source})})
    if job.host_io is not None:
        job = job.model_copy(update={"host_io": job.host_io.at(folder)})
    if job.initial_weights is not None:
        job = job.model_copy(update={"initial_weights": str((folder / job.initial_weights).absolute())})
    if ":" in (stepper := job.sync.optimiser).name:  # a class of the user's own has one place
        named = NamedOptimiser.model_validate({"name": stepper.name, **stepper.arguments})
        sync = job.sync.model_copy(update={"optimiser": OptimiserSection()})
        job = job.model_copy(update={"optimizer": named, "sync": sync})
    if job.track:
        # A file is of the job's folder, and stays so in the run directory.
        trackers = [str((folder / each).absolute()) if ".py:" in each else each for each in job.track]
        job = job.model_copy(update={"track": trackers})
    check_mode(job, where)
    check_source(job.data.source, f"{where}: data.source")
    return job


def load_job(path: Path, keys: Mapping[str, Any] = NO_KEYS) -> tuple[JobConfig, ShippedCode]:
    """Read a job file, with `keys` in place of its own, and find and build its model.

    Raises:
        ConfigurationError: the file breaks a rule, or the model cannot be found or built.
    """
    return _with_model(read_job(path, keys), str(path), path.parent)


def find_model(job: JobConfig, where: str, folder: Path) -> ShippedCode:
    """Return the model that a job names, whose file may lie in `folder`; none of it is run.

    Raises:
        ModelError: it cannot be found, or may not be named; the message begins with `where`.
    """
    from firmware_agent.common.models import resolve_model  # torch: whoever only reads a job has no need of it

    try:
        return resolve_model(job.model, job.model_arguments, folder)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error


def parse_job(content: dict[str, Any], where: str, folder: Path) -> tuple[JobConfig, ShippedCode]:
    """Return the job that a mapping describes, and its model, whose file may lie in `folder`; see `load_job`."""
    return _with_model(_checked(content, where, folder), where, folder)


def _with_model(job: JobConfig, where: str, folder: Path) -> tuple[JobConfig, ShippedCode]:
    from firmware_agent.common.models import build_model  # torch: whoever only reads a job has no need of it

    spec = find_model(job, where, folder)
    try:
        build_model(spec)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    return job, spec
