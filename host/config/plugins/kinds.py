"""The registries of policies: what a job file can name, and what each class of a kind is given and must have."""

from __future__ import annotations

from csd_emu.util.registry import Registry
from firmware_agent.common.clients.built_in_clients import ADAPTERS, GIVEN

STRATEGY = Registry(
    word="strategy",
    group="csd_emu.strategies",
    package="host.policies.aggregation",
    needed=("aggregate", "state", "load_state"),
    given={"parameters": "names of the weights that are trained", "momentum": "of SGD in the drives"},
    by_path=True,
    adapters={"flwr": "host.policies.aggregation.flower_strategy"},
)
TUNER = Registry(
    word="tuner",
    group="csd_emu.tuners",
    package="host.policies.batching",
    needed=("probes", "observe", "leave", "join", "possible_records_per_second", "state", "load_state"),
    given={
        "tables": "the speed table of each device",
        "batches": "(devices,) STANNIS's, to begin with",
        "names": "of the devices",
        "total_steps": "of the run, if batches stay",
        "sync_seconds": "what the exchange adds to each step",
        "tuning_rules": "when a retune is made, from the job's sync.tuning",
        "shares_records": "whether one device can take over another's: all records are public, and fill a step",
    },
    renamed={"possible_images_per_second": "possible_records_per_second"},
    by_path=True,
)
TRANSFER_TUNER = Registry(
    word="communication.schedule",
    group="csd_emu.transfer_tuners",
    package="host.policies.transfer",
    needed=("sending", "observe", "state", "load_state"),
    given={
        "first": "slice and credit that the run begins with",
        "seed": "of the job",
        "block_bytes": "the host steps ranges of so many bytes",
        "predictor": "what compares settings: the job's communication.predictor",
    },
)
SPLIT_POLICY = Registry(
    word="placement",
    group="csd_emu.split_policies",
    package="host.policies.split",
    needed=("decide",),
)
LOSS = Registry(
    word="loss",
    group="csd_emu.losses",
    package="firmware_agent.common.losses",
    needed=("__call__",),
    given={"outputs": "of the model", "batch": "field -> (records, ...) tensor"},
    in_order=2,
    by_path=True,
)
COLLATE = Registry(
    word="collate",
    group="csd_emu.collates",
    package="firmware_agent.common.collates",
    needed=("__call__",),
    given={"batch": "field -> (records, ...) tensor, as stored"},
    in_order=1,
    by_path=True,
)
AUGMENT = Registry(
    word="augment",
    group="csd_emu.augments",
    package="firmware_agent.common.augments",
    needed=("__call__",),
    given={
        "batch": "field -> (records, ...) tensor, as stored",
        "generator": "torch's, seeded: the only source of randomness",
    },
    in_order=2,
    by_path=True,
)
CLIENT = Registry(
    word="client",
    group="csd_emu.clients",
    package="firmware_agent.common.clients",
    needed=("__call__",),
    given=GIVEN,
    by_path=True,
    adapters=ADAPTERS,
)
OPTIMIZER = Registry(
    word="optimizer",
    group="csd_emu.optimizers",
    package="firmware_agent.common.optimisers",
    needed=("step", "zero_grad"),
    given={"params": "the parameters that are trained", "lr": "the learning rate"},
    in_order=1,
    by_path=True,
)
SCHEDULE = Registry(
    word="schedule",
    group="csd_emu.schedules",
    package="host.policies.schedules",
    needed=("__call__",),
    given={"step": "number of the round or step, from 0", "steps": "how many the run has"},
    in_order=2,
    by_path=True,
)
METRIC = Registry(
    word="metrics",
    group="csd_emu.metrics",
    package="host.policies.metrics",
    needed=("update", "compute"),
    given={"outputs": "of the model", "batch": "field -> (records, ...) tensor"},
    in_order=2,
    by_path=True,
)
PARTITION = Registry(
    word="data.partition",
    group="csd_emu.partitions",
    package="host.core.partition",
    needed=(),
    given={
        "fields": "name -> (records, ...) array, of the records to be dealt out; may not be changed",
        "drives": "how many",
        "generator": "NumPy's, seeded: the only source of randomness",
    },
    by_path=True,
)
TRACKER = Registry(
    word="track",
    group="csd_emu.trackers",
    package="host.monitoring.trackers",
    needed=("begin", "log", "finish"),
    by_path=True,
)
