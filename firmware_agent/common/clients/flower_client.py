"""A Flower `ClientApp` as a client program: a round is a train message to it.

Flower is imported where an app is there already. A drive's image has none: it would be some 15 packages more.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from firmware_agent.common.errors import ModelError

if TYPE_CHECKING:
    from firmware_agent.common.clients.client_round import ClientRound

RUN_CONFIG = "run/"
"""Begins the name of what a strategy says that belongs into the context's `run_config`."""
_STATE = "context"
_rounds: ContextVar[ClientRound] = ContextVar("drive_round")


def drive_round() -> ClientRound:
    """Return the round that a `ClientApp` trains in: ``.loader`` has the drive's records, ``.loss`` the job's loss.

    Raises:
        ModelError: none is running.
    """
    try:
        return _rounds.get()
    except LookupError:
        raise ModelError("drive_round: there is no round; ask in the train function of a ClientApp") from None


def adapt_app(target: Any) -> Any:
    """Return the client program of a `ClientApp`, which may have got options; anything else as it is."""
    app = getattr(target, "func", target)
    if type(app).__module__ != "flwr.clientapp.client_app" or "flwr" not in sys.modules:
        return target
    if getattr(target, "keywords", None):
        raise ModelError("client: a ClientApp has no options; put them into run_config of the strategy")
    return FlowerClient(app).train


class FlowerClient:
    """Calls an app with one train message a round, and returns what is in its reply.

    The context's `state` is kept from round to round, its `run_config` is the strategy's, and its `node_config` has
    ``partition-id`` and ``num-partitions``. Both are empty if the strategy is not Flower's.
    """

    def __init__(self, app: Any) -> None:
        """Take the app; torch's optimisers then import what they need, which a program that trains may not do."""
        self._app = app
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

    def train(
        self,
        model: Any,
        config: Mapping[str, Any],
        received: Mapping[str, Any],
        state: MutableMapping[str, Any],
        csd: Any,
    ) -> dict[str, Any]:
        """Return the weights and figures of the app's reply.

        Raises:
            ModelError: the reply is an error, or has what cannot be returned.
        """
        from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
        from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
        from flwr.proto.recorddict_pb2 import RecordDict as StoredRecords
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        plain = {name: value for name, value in config.items() if not name.startswith(RUN_CONFIG)}
        records = {"arrays": ArrayRecord(model.state_dict()), "config": ConfigRecord(plain)}
        if received:
            records["tensors"] = ArrayRecord(dict(received))
        place = {name: plain[name] for name in ("partition-id", "num-partitions") if name in plain}
        run_config = {name.removeprefix(RUN_CONFIG): config[name] for name in config.keys() - plain}
        kept = RecordDict()
        if _STATE in state:
            kept = recorddict_from_proto(StoredRecords.FromString(np.asarray(state[_STATE]).tobytes()))
        node = int(place.get("partition-id", 0)) + 2
        message = Message(RecordDict(records), dst_node_id=node, message_type=MessageType.TRAIN)
        context = Context(run_id=1, node_id=node, node_config=place, state=kept, run_config=run_config)
        token = _rounds.set(csd)
        try:
            reply = self._app(message, context)
        finally:
            _rounds.reset(token)
        if context.state:
            stored = recorddict_to_proto(context.state).SerializeToString(deterministic=True)
            state[_STATE] = np.frombuffer(stored, np.uint8)
        return _read_reply(reply)


def _read_reply(reply: Any) -> dict[str, Any]:
    if reply.has_error():
        raise ModelError(f"client: the ClientApp replied with an error: {reply.error.reason}")
    if len(arrays := list(reply.content.array_records.values())) > 1 or reply.content.config_records:
        raise ModelError("client: the ClientApp's reply has more than one ArrayRecord, or a ConfigRecord; return one")
    weights = {name: array.numpy() for record in arrays for name, array in record.items()}
    figures = {name: value for record in reply.content.metric_records.values() for name, value in record.items()}
    losses = {"loss": figures["train_loss"]} if "train_loss" in figures else {}
    return losses | weights | figures
