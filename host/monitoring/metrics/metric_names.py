"""Every metric of csd-emu, once: what is exported, documented and tested comes from this table."""

from __future__ import annotations

from dataclasses import replace

from host.monitoring.metrics.metric import ROUND_BUCKETS, STEP_BUCKETS, Metric
from host.monitoring.metrics.nvme_metrics import HEALTH_FIGURES
from host.monitoring.metrics.service_metric_names import SERVICE_METRICS

BUILD_INFO = Metric("csd_build_info", "gauge", "", ("version", "python_version"), "1; which csd-emu serves this")
RUN_INFO = Metric("csd_run_info", "gauge", "", ("array", "engine", "model", "mode"), "1; what runs where")

DEVICE_INFO = Metric(
    "csd_device_info",
    "gauge",
    "",
    (
        "device",
        "kind",
        "profile",
        "machine",
        "cores",
        "clock",
        "agent_version",
        "torch_version",
        "hypervisor",
        "core_model",
    ),
    "1; what the drive is: kind is emulated (a virtual machine), native (a process here), real, or host (its own); "
    "cores are the profile's, hypervisor is what runs it, if it is a virtual machine; core_model is what a nanosecond "
    "of its seconds stands for",
)
DEVICE_UP = Metric("csd_device_up", "gauge", "", ("device",), "1 while the drive has a session, else 0", outlives=True)
DEVICE_STATE = Metric(
    "csd_device_state",
    "gauge",
    "",
    ("device", "state"),
    "1 for the drive's state, 0 for the others: defined, booting, ready, training or lost",
    outlives=True,
)
BOOT_SECONDS = Metric(
    "csd_boot_duration_seconds", "gauge", "seconds", ("device", "clock"), "From the drive's start to its hello"
)
SCALE_RATIO = Metric(
    "csd_emulation_scale_ratio",
    "gauge",
    "ratio",
    ("device", "phase"),
    "What the reference core's seconds of a phase are multiplied by to be the profile's",
)

DEVICE_SECONDS = Metric(
    "csd_device_seconds_total",
    "counter",
    "seconds",
    ("device", "clock"),
    "Elapsed device time: the composed length of all rounds, waiting included; divide joules by it",
    hardware=True,
)
COMPUTE_SECONDS = Metric(
    "csd_compute_seconds_total",
    "counter",
    "seconds",
    ("device", "phase", "clock"),
    "Device time in which the drive computed, per phase; divide samples by it",
)
NVME_SECONDS = Metric(
    "csd_nvme_io_seconds_total",
    "counter",
    "seconds",
    ("device", "op", "clock"),
    "Device time of reading the records, composed from bytes",
)
LINK_SECONDS = Metric(
    "csd_link_seconds_total",
    "counter",
    "seconds",
    ("device", "direction", "clock"),
    "Device time of moving weights over the link, composed from bytes",
)
STEP_SECONDS = Metric(
    "csd_train_step_duration_seconds",
    "histogram",
    "seconds",
    ("device", "phase", "clock"),
    "Device time of a step in a phase; each step of a federated round counts with the round's mean",
    STEP_BUCKETS,
)

SAMPLES = Metric("csd_train_samples_total", "counter", "", ("device",), "Records trained on, repetitions counted")
STEPS = Metric("csd_train_steps_total", "counter", "", ("device",), "Optimiser steps")
CALIBRATED_RATE = Metric(
    "csd_calibrated_records_per_second",
    "gauge",
    "",
    ("device", "clock"),
    "What its calibration table says of the device's last round: records per second of compute, undisturbed, at the "
    "batch sizes it had; only where the table covers them",
)
BATCH_SIZE = Metric("csd_batch_size", "gauge", "", ("device",), "Records per step")
MEMORY_BYTES = Metric("csd_memory_used_bytes", "gauge", "bytes", ("device",), "Most memory that the agent has held")

NVME_BYTES = Metric("csd_nvme_read_bytes_total", "counter", "bytes", ("device",), "Records read from flash")
RECEIVED_BYTES = Metric(
    "csd_network_receive_bytes_total", "counter", "bytes", ("device",), "Came to the drive over the wire, without TLS"
)
TRANSMITTED_BYTES = Metric(
    "csd_network_transmit_bytes_total", "counter", "bytes", ("device",), "Left the drive over the wire, without TLS"
)
HOST_LINK_BYTES = Metric(
    "csd_host_link_bytes_total",
    "counter",
    "bytes",
    ("device", "direction"),
    "Crossed the link between host and drive: what training in storage saves",
)

ENERGY_JOULES = Metric(
    "csd_energy_joules_total",
    "counter",
    "joules",
    ("device", "component", "source", "clock"),
    "Energy over device time, of drives and of the host",
    hardware=True,
)
POWER_WATTS = Metric(
    "csd_power_watts",
    "gauge",
    "watts",
    ("device", "component", "source", "clock"),
    "Mean power over the device time of the last round",
    hardware=True,
)
POWER_CAP = Metric(
    "csd_power_cap_watts",
    "gauge",
    "watts",
    ("clock",),
    "What the whole array, host included, may draw over device time: host.power_cap of the array file, if it is set",
)
MACHINE_JOULES = Metric(
    "csd_machine_energy_joules_total",
    "counter",
    "joules",
    ("source", "clock"),
    "Energy of this machine's processors during the rounds, where they have RAPL counters: the cost of emulation",
)
ARRAY_BAND_SECONDS = Metric(
    "csd_array_band_seconds_total",
    "counter",
    "seconds",
    ("end", "clock"),
    "The least (low) and the most (high) that all rounds together may have taken by the bands of the profiles' "
    "figures: composed array time",
)
COMPUTE_BAND_SECONDS = Metric(
    "csd_compute_band_seconds_total",
    "counter",
    "seconds",
    ("device", "end", "clock"),
    "The same of the device time in which the drive computed",
)
ENERGY_BAND_JOULES = Metric(
    "csd_energy_band_joules_total",
    "counter",
    "joules",
    ("device", "end", "clock"),
    "The same of the energy of drives and of the host, all components",
    hardware=True,
)
SAMPLING_STEPS = Metric(
    "csd_sampling_steps_total",
    "counter",
    "",
    (),
    "Steps of all drives whose seconds are on the clock sampled: their own counted ones, or the mean of their kind",
)
SAMPLING_COUNTED_STEPS = Metric(
    "csd_sampling_counted_steps_total", "counter", "", (), "Steps that virtual machines counted for these seconds"
)
SAMPLING_ERROR = Metric(
    "csd_sampling_error_ratio",
    "gauge",
    "ratio",
    ("error",),
    "Of the last round's seconds on the clock sampled: interval is half the width of their 95 % interval, starts what "
    "slower first steps add; both over the seconds",
)
SAMPLING_MISSING = Metric(
    "csd_sampling_missing_drives",
    "gauge",
    "",
    (),
    "Drives of which a kind of step could not be counted in the last round: their seconds lack it",
)

ROUND = Metric("csd_round", "gauge", "", ("mode",), "The last round that ended; 0 before the first")
ROUND_SECONDS = Metric(
    "csd_round_duration_seconds",
    "histogram",
    "seconds",
    ("mode", "clock"),
    "Composed array time of a round: compute, flash and link",
    ROUND_BUCKETS,
)
PARTICIPANTS = Metric(
    "csd_round_participants", "gauge", "", ("mode",), "Devices whose weights, or gradients, the last round holds"
)
STRAGGLERS = Metric(
    "csd_round_stragglers_total", "counter", "", ("mode",), "Drives that missed a round's deadline, summed over rounds"
)
LATE_ROUNDS = Metric(
    "csd_late_rounds_total", "counter", "", ("device",), "Rounds whose deadline the device missed: its work was dropped"
)
GRADIENT_NOISE = Metric(
    "csd_gradient_noise_records", "gauge", "", (), "Gradient noise scale: larger steps hardly save steps (synchronous)"
)
ACCURACY = Metric("csd_accuracy_ratio", "gauge", "ratio", (), "Of the last round's weights on held-out records")
CLIENT_METRIC = Metric(
    "csd_client_metric", "gauge", "", ("device", "metric"), "What the drive's client program returned last"
)
LOSS = Metric(
    "csd_loss", "gauge", "", ("set",), "Mean cross-entropy: test (held-out records) or train (records trained on)"
)
WALL_SECONDS = Metric(
    "csd_wall_seconds_total", "counter", "seconds", ("clock",), "Wall time of the rounds: the cost of emulation"
)

REJOINS = Metric("csd_rejoins_total", "counter", "", ("device",), "Times that the drive came back", outlives=True)
ERRORS = Metric(
    "csd_errors_total",
    "counter",
    "",
    ("device", "kind"),
    "Times that the drive was lost, that its task failed, or that its hello was refused",
    outlives=True,
)

REJECTED = Metric(
    "csd_updates_rejected_total",
    "counter",
    "",
    ("device", "reason"),
    "Contributions of the drive that were not believed: not_finite, samples, seconds, norm, loss, report, direction or "
    "other; there from the first one on",
    outlives=True,
)

# Of synchronous steps.
STEP = Metric("csd_step", "gauge", "", ("mode",), "The last synchronous step that ended; 0 before the first")
ARRAY_STEP_SECONDS = Metric(
    "csd_step_duration_seconds",
    "histogram",
    "seconds",
    ("mode", "clock"),
    "Composed array time of a synchronous step: compute, flash and link",
    STEP_BUCKETS,
)
GLOBAL_BATCH_SIZE = Metric("csd_global_batch_size", "gauge", "", (), "Records in the last synchronous step")
LEARNING_RATE = Metric("csd_learning_rate", "gauge", "", (), "That the host's optimiser took the last step with")
IMBALANCE = Metric(
    "csd_step_imbalance_ratio",
    "gauge",
    "ratio",
    ("clock",),
    "(max - min) / max of the devices' compute seconds in the last synchronous step",
)
POSSIBLE_RATE = Metric(
    "csd_possible_records_per_second",
    "gauge",
    "",
    ("clock",),
    "What the tables, scaled by the speeds observed, allowed in the last step by compute alone",
)
RETUNES = Metric("csd_retunes_total", "counter", "", ("device",), "Times that the device's batch size was changed")
SLOWDOWN = Metric(
    "csd_device_slowdown_ratio",
    "gauge",
    "ratio",
    ("device", "clock"),
    "Observed over expected compute seconds of the device in the last step, where it has a table",
)
DISTURBANCE_WEIGHT = Metric(
    "csd_disturbance_weight",
    "gauge",
    "",
    ("device",),
    "Cgroup weight of the work that the job had compete in the last step, 0 for none; the trainer has 100",
)
LATE_STEPS = Metric(
    "csd_late_steps_total",
    "counter",
    "",
    ("device",),
    "Steps that did not wait for the device: its gradient was dropped",
)
MIXED_STEPS = Metric(
    "csd_mixed_steps_total",
    "counter",
    "",
    (),
    "Steps in which part of the gradient holds slices of a device that was lost",
)

PS_LAYERS = Metric(
    "csd_ps_layers", "gauge", "", (), "Layers that the host computed in the last step; 0 of a whole model"
)
PS_BYTES = Metric(
    "csd_ps_bytes", "gauge", "bytes", (), "Parameters and buffers of these layers, which do not cross the link"
)
CROSSED_BYTES = Metric(
    "csd_crossed_bytes_total",
    "counter",
    "bytes",
    ("direction",),
    "Activations and labels to the host (up), their gradients to the drives (down), where a model is cut",
)

COMM_SLICE_BYTES = Metric(
    "csd_comm_partition_bytes", "gauge", "bytes", (), "Size of a slice in the last step; none of whole tensors"
)
COMM_CREDIT_BYTES = Metric(
    "csd_comm_credit_bytes", "gauge", "bytes", (), "How much may be under way to or from a drive; none without a limit"
)
COMM_CHANGES = Metric(
    "csd_comm_tuner_changes_total", "counter", "", (), "Steps that were sent otherwise than the one before in the round"
)

# Of several servers that train together.
SERVER_INFO = Metric(
    "csd_server_info", "gauge", "", ("server",), "1; the server whose host this is: join it on job and instance"
)
SERVERS_EXPECTED = Metric(
    "csd_servers_expected", "gauge", "", (), "Servers that the run was begun with; only where several train together"
)
SERVERS = Metric(
    "csd_servers", "gauge", "", (), "Servers, this one included, that took the last step together, or have met since"
)
SERVER_STEPS = Metric("csd_server_steps_total", "counter", "", (), "Steps that were taken together with other servers")
ALLREDUCE_BYTES = Metric(
    "csd_allreduce_bytes_total", "counter", "bytes", (), "Sent by this server to others to add up gradients"
)
ALLREDUCE_SECONDS = Metric(
    "csd_allreduce_seconds_total",
    "counter",
    "seconds",
    ("clock",),
    "Device time of adding up gradients over the servers, composed from bytes",
)
SERVER_WAIT_SECONDS = Metric(
    "csd_server_wait_seconds_total",
    "counter",
    "seconds",
    ("clock",),
    "Device time in which this server had done its part of a step, and another had not",
)
RENDEZVOUS = Metric(
    "csd_rendezvous_total", "counter", "", (), "Times that the servers met anew after one was lost or came back"
)

METRICS: tuple[Metric, ...] = (
    *(BUILD_INFO, RUN_INFO, DEVICE_INFO, DEVICE_UP, DEVICE_STATE, BOOT_SECONDS, SCALE_RATIO),
    *(DEVICE_SECONDS, COMPUTE_SECONDS, NVME_SECONDS, LINK_SECONDS, STEP_SECONDS),
    *(SAMPLES, STEPS, CALIBRATED_RATE, BATCH_SIZE, MEMORY_BYTES),
    *(NVME_BYTES, RECEIVED_BYTES, TRANSMITTED_BYTES, HOST_LINK_BYTES),
    *SERVICE_METRICS,
    *(ENERGY_JOULES, POWER_WATTS, POWER_CAP, MACHINE_JOULES),
    *(ARRAY_BAND_SECONDS, COMPUTE_BAND_SECONDS, ENERGY_BAND_JOULES),
    *(ROUND, ROUND_SECONDS, PARTICIPANTS, STRAGGLERS),
    *(LATE_ROUNDS, ACCURACY, LOSS, CLIENT_METRIC, WALL_SECONDS, GRADIENT_NOISE),
    *(SAMPLING_STEPS, SAMPLING_COUNTED_STEPS, SAMPLING_ERROR, SAMPLING_MISSING),
    *(STEP, ARRAY_STEP_SECONDS, GLOBAL_BATCH_SIZE, LEARNING_RATE, IMBALANCE, POSSIBLE_RATE),
    *(RETUNES, SLOWDOWN, DISTURBANCE_WEIGHT, LATE_STEPS, MIXED_STEPS),
    *(PS_LAYERS, PS_BYTES, CROSSED_BYTES),
    *(COMM_SLICE_BYTES, COMM_CREDIT_BYTES, COMM_CHANGES),
    *(SERVER_INFO, SERVERS_EXPECTED, SERVERS, SERVER_STEPS),
    *(ALLREDUCE_BYTES, ALLREDUCE_SECONDS, SERVER_WAIT_SECONDS, RENDEZVOUS),
    *(REJOINS, ERRORS, REJECTED),
    *HEALTH_FIGURES,
)


def _old_name(name: str, metric: Metric) -> Metric:
    return replace(metric, name=name, help=f"Deprecated: the old name of {metric.name}, for one release")


# Metrics that were renamed, each as it was: both are exported, with the same values.
OLD_NAMES: dict[Metric, Metric] = {
    CALIBRATED_RATE: _old_name("csd_calibrated_images_per_second", CALIBRATED_RATE),
    POSSIBLE_RATE: _old_name("csd_possible_images_per_second", POSSIBLE_RATE),
}
