"""A Flower `ClientApp` as a client program: a round is a train message to it.

Flower is imported where an app is there already. A drive's image has none: it would be some 15 packages more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from firmware_agent.common.clients.confinement import import_ahead
from firmware_agent.common.errors import ModelError

RUN_CONFIG = "run/"
"""Begins the name of what a strategy says that belongs into the context's `run_config`."""
_STATE = "context"


def adapt(target: Any) -> Any:
    """Return the client program of a `ClientApp`; anything else as it is.

    The app gets one train message a round, with records ``arrays`` and ``config``. Its context's `state` is kept from
    round to round, `run_config` is the strategy's, `node_config` has ``partition-id`` and ``num-partitions``; these two
    are empty if the strategy is not Flower's. Its `csd` is the `ClientRound`, with the drive's records.
    """
    app = getattr(target, "func", target)  # of what was made with options
    if (type(app).__module__, type(app).__name__) != ("flwr.clientapp.client_app", "ClientApp"):
        return target
    import_ahead(None)

    def train(model: Any, config: dict[str, Any], state: dict[str, Any], csd: Any) -> dict[str, Any]:
        from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
        from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
        from flwr.proto.recorddict_pb2 import RecordDict as StoredRecords
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        plain = {name: value for name, value in config.items() if not name.startswith(RUN_CONFIG)}
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "config": ConfigRecord(plain)})
        place = {name: plain[name] for name in ("partition-id", "num-partitions") if name in plain}
        run_config = {name.removeprefix(RUN_CONFIG): config[name] for name in config.keys() - plain}
        node = place.get("partition-id", 0) + 2
        kept = recorddict_from_proto(StoredRecords.FromString(bytes(np.asarray(state.get(_STATE, ()), np.uint8))))
        context: Any = Context(1, node, place, kept, run_config)
        context.csd = csd
        reply = app(Message(content, node, "train"), context)
        if kept:
            state[_STATE] = np.frombuffer(recorddict_to_proto(kept).SerializeToString(deterministic=True), np.uint8)
        return _read_reply(reply)

    return train


def _read_reply(reply: Any) -> dict[str, Any]:
    """Return the weights and figures of an app's reply, and its ``train_loss`` as the round's loss.

    Raises:
        ModelError: it is an error, or has what cannot be returned.
    """
    if reply.has_error():
        raise ModelError(f"client: the ClientApp replied with an error: {reply.error.reason}")
    if len(reply.content.array_records) != 1 or reply.content.config_records:
        raise ModelError("client: the ClientApp must reply with one ArrayRecord, and MetricRecords of numbers")
    (arrays,) = reply.content.array_records.values()
    figures = {name: value for record in reply.content.metric_records.values() for name, value in record.items()}
    losses = {"loss": figures["train_loss"]} if "train_loss" in figures else {}
    return losses | {name: array.numpy() for name, array in arrays.items()} | figures
