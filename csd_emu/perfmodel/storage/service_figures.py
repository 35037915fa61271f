"""Figures of a drive in service, over some of its device time."""

from __future__ import annotations

import msgspec


class ServiceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a drive did for its host, and what that and its training cost each other.

    Latencies are of commands that ended, from their arrival, within 0.8 % (see `LatencyHistogram`); 0 without commands.

    Attributes:
        seconds: device time that this covers.
        reads, writes: commands that ended.
        read_bytes, write_bytes: of them.
        failed_writes: of `writes`, those for which the drive had no room.
        mean_seconds, p50_seconds, p99_seconds, p999_seconds: latency.
        alone_p99_seconds: the same commands' 99th percentile with a drive that does not train.
        queue_depth: commands of the host in the drive, on average.
        write_amplification: pages programmed per page written, since the run began.
        die_busy_share: share of the time in which a die works, on average over dies, 0 to 1.
        second_p99_seconds: the 99th percentile of each whole device second that ended, in order; at most an hour's.
        training_share: rate of training over what it were without the host's load, 0 to 1; 1 if nothing was trained.
        waited_seconds: for how long training waited so that `protect` holds.
        over_limit_seconds: whole device seconds of which the 99th percentile was above the limit of `protect`.
    """

    seconds: float
    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    failed_writes: int = 0
    mean_seconds: float = 0.0
    p50_seconds: float = 0.0
    p99_seconds: float = 0.0
    p999_seconds: float = 0.0
    alone_p99_seconds: float = 0.0
    queue_depth: float = 0.0
    write_amplification: float = 1.0
    die_busy_share: float = 0.0
    second_p99_seconds: list[float] = msgspec.field(default_factory=list)
    training_share: float = 1.0
    waited_seconds: float = 0.0
    over_limit_seconds: int = 0
