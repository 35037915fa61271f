"""At which record size and batch the array moves that much less over the host's link than a host that reads records.

With h the host's share of the records, E the bytes of weights and gradients of one drive and step, b a drive's batch
and r the bytes of a record, the array moves per record

    T / r = h + (1 - h) E / (b r)

of what a host moves that reads every record: it reads its own share, and N drives of b records each cost N E, where
N b is (1 - h) of all records. T / r falls with b r towards h and never gets below it, so that a target below h is out
of reach whatever records and batch are; else b r must be (1 - h) E / (target - h) or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from csd_lab.reproduce.blind_server import DRIVES, model_load
from csd_lab.reproduce.hypertune_result import TrafficNeed

# Published: 68 % less.
TARGET = 1 - 0.68
# Records of a step for which training was published to go well: You et al., ImageNet training in minutes (2017), 32K.
MOST_RECORDS = 32768
# Records of this size are the largest that we call images: a camera's, assumed.
MOST_RECORD_BYTES = 10_000_000


def traffic_ratio(host_share: float, exchange_bytes: float, record_bytes: float, drive_batch: float) -> float:
    """Return T / r: bytes per record over the host's link over those of a host that reads its records."""
    return host_share + (1 - host_share) * exchange_bytes / (drive_batch * record_bytes)


def needed_bytes(host_share: float, exchange_bytes: float, target: float = TARGET) -> float:
    """Return the least b r, bytes of records per drive and step, with which T / r is `target`; inf if none is."""
    if host_share >= target:
        return math.inf
    return (1 - host_share) * exchange_bytes / (target - host_share)


def traffic_needs(shares: Mapping[str, Mapping[str, float]], drive_batches: Mapping[str, int]) -> Iterator[TrafficNeed]:
    """Yield what the target takes for each model and each of its host's shares.

    Args:
        shares: model -> who trains -> the host's share of the records.
        drive_batches: model -> the batch for which a record's size is asked.
    """
    for model, cases in shares.items():
        load = model_load(model)
        exchange = 2 * load.state_bytes
        for case, share in cases.items():
            needed = needed_bytes(share, exchange)
            reachable = math.isfinite(needed)
            batch = math.ceil(needed / load.record_bytes) if reachable else None
            records = round(DRIVES * batch / (1 - share)) if batch is not None else None
            size = needed / drive_batches[model] if reachable else None
            fits = records is not None and records <= MOST_RECORDS
            yield TrafficNeed(
                model=model,
                case=case,
                host_share=share,
                exchange_bytes=exchange,
                record_bytes=load.record_bytes,
                needed_bytes=needed if reachable else None,
                drive_batch=batch,
                global_batch=records,
                at_batch=drive_batches[model],
                at_batch_record_bytes=size,
                holds=fits or (size is not None and size <= MOST_RECORD_BYTES),
            )
