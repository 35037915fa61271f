"""Flower's programs and strategies as strategies of a job, against weights that are made up here."""

from __future__ import annotations

import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import CheckpointError, PluginError, PluginFailed
from firmware_agent.common.imports import adapt
from firmware_agent.common.slices import Array
from host.config.plugins.kinds import STRATEGY
from host.config.plugins.plugin_loading import Plugin, load_plugin
from host.config.plugins.plugin_section import UserSection
from host.core.interrupts import INTERRUPTS
from host.core.learning.judgement import Judgement
from host.policies.aggregation import Contribution, DriveHistory, FirstRound, UserStrategy
from host.policies.aggregation.clipping import Clipped

DRIVES = ("csd-00", "csd-01", "csd-02")
WEIGHTS = {"w": np.array([1.0, 2.0], np.float32), "n": np.array(3, np.int64)}
BEGIN = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()
FIRST = ArrayRecord({"w": Array(np.array([5.0, 6.0], np.float32)), "n": Array(np.array(1))})


def ask(nodes, kind="train", arrays=FIRST, **config):
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
    return [Message(content, node, kind) for node in nodes]


@app.main()
def main(grid, context):
"""
LOOP = "    FedAvg(fraction_evaluate={}).start(grid, FIRST, num_rounds=context.run_config['num-server-rounds'])\n"


def strategy_of(folder: Path, body: str, **options: Any) -> Any:
    """The strategy of a program with this text in its main function."""
    (folder / "server_app.py").write_text(BEGIN + body, encoding="utf-8")
    section = UserSection.model_validate({"name": "server_app.py:app", **options})
    return UserStrategy(load_plugin(STRATEGY, section, folder), 0.9, ["w"])


@functools.cache
def plugin_of(name: str, **options: Any) -> Plugin:
    section = UserSection.model_validate({"name": f"flwr.serverapp.strategy:{name}", **options})
    return load_plugin(STRATEGY, section, Path())


def flowers(name: str, **options: Any) -> Any:
    return UserStrategy(plugin_of(name, **options), 0.9, ["w"])


def start(
    rounds: int = 2, client: bool = False, judge: Callable[[Mapping[str, Array]], Judgement] | None = None
) -> FirstRound:
    return FirstRound(DRIVES, WEIGHTS, rounds, 0, client, judge or (lambda _: Judgement(float("nan"), 0.5)))


def histories(names: Sequence[str] = DRIVES) -> dict[str, DriveHistory]:
    return {name: DriveHistory(name, 10) for name in names}


def part(device: str, value: float, samples: int = 10, **metrics: float) -> Contribution:
    weights = {"w": np.full(2, value, np.float32), "n": np.array(int(value))}
    return Contribution(weights, samples, 1, device, metrics=metrics)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_a_program_gives_the_first_weights_and_makes_those_of_each_round(folder: Path) -> None:
    strategy = strategy_of(folder, LOOP.format(1.0))
    assert strategy.first_weights(start())["w"].tolist() == [5.0, 6.0]
    for value in (1.0, 4.0):
        assert set(strategy.configure(1, histories())) == set(DRIVES)
        after = strategy.aggregate(WEIGHTS, [part(DRIVES[0], value, 30), part(DRIVES[1], value + 4, 10)])
        assert after["w"].tolist() == [value + 1, value + 1]
        assert after["n"].dtype == np.int64
    with pytest.raises(PluginFailed, match="ended after 2 rounds of 2; give the job so many"):
        strategy.configure(3, histories())


def test_the_model_of_a_last_round_that_no_message_shows_is_flowers_result(folder: Path) -> None:
    strategy = strategy_of(folder, LOOP.format(0.0))
    strategy.first_weights(start(rounds=1))
    strategy.configure(1, histories())
    assert strategy.aggregate(WEIGHTS, [part(DRIVES[0], 2.0)])["w"].tolist() == [2.0, 2.0]


@settings(deadline=None, max_examples=25)
@given(
    parts=st.lists(
        st.tuples(st.floats(-100, 100, width=32), st.integers(1, 10_000)), min_size=len(DRIVES), max_size=len(DRIVES)
    )
)
def test_flowers_mean_is_the_mean_weighted_by_samples(parts: list[tuple[float, int]]) -> None:
    strategy = flowers("FedAvg")
    assert strategy.first_weights(start())["w"].tolist() == [1.0, 2.0]
    said = strategy.configure(1, histories())
    given_parts = [part(name, value, samples) for name, (value, samples) in zip(DRIVES, parts, strict=True)]
    after = strategy.aggregate(WEIGHTS, given_parts)
    mean = np.average([value for value, _ in parts], weights=[samples for _, samples in parts])
    assert said == {name: {} for name in DRIVES}
    assert after["w"] == pytest.approx(mean, abs=1e-4)


def test_who_is_asked_repeats_with_the_seed(folder: Path) -> None:
    def asked() -> list[list[str]]:
        strategy = flowers("FedAvg", fraction_train=0.34, min_train_nodes=1)
        strategy.first_weights(start(rounds=6))
        found = []
        for number in range(1, 7):
            found.append(list(strategy.configure(number, histories())))
            strategy.aggregate(WEIGHTS, [part(found[-1][0], 1.0)])
        return found

    first = asked()
    assert first == asked()
    assert len({names[0] for names in first}) > 1


def test_drives_hear_settings_by_their_own_names_and_the_proximal_term_from_the_job(folder: Path) -> None:
    body = (
        "    grid.send_and_receive(ask([2], **{'lr': 0.1, 'local-epochs': 2, 'server-round': 1, 'proximal-mu': 0.0}))\n"
    )
    strategy = strategy_of(folder, body)
    strategy.first_weights(start())
    assert strategy.configure(1, histories()) == {"csd-00": {"learning_rate": 0.1, "epochs": 2}}
    proximal = flowers("FedProx", proximal_mu=0.5)
    proximal.first_weights(start())
    assert (proximal.proximal, proximal.configure(1, histories())) == (0.5, {name: {} for name in sorted(DRIVES)})


def test_a_client_program_hears_all_and_its_place(folder: Path) -> None:
    body = "    grid.send_and_receive(ask([3], **{'lr': 0.1, 'server-round': 1}))\n"
    strategy = strategy_of(folder, body, run_config={"local-epochs": 2})
    strategy.first_weights(start(client=True))
    said = {"lr": 0.1, "server-round": 1, "partition-id": 1, "num-partitions": 3, "run/local-epochs": 2}
    assert strategy.configure(1, histories()) == {"csd-01": said}


def test_replies_have_figures_and_those_of_who_did_not_return_an_error(folder: Path) -> None:
    body = (
        "    replies = grid.send_and_receive(ask([2, 3]))\n"
        "    good, bad = replies\n"
        "    assert bad.has_error() and 'csd-01' in bad.error.reason\n"
        "    metrics = good.content['metrics']\n"
        "    assert (metrics['num-examples'], metrics['top']) == (7, 0.5)\n"
        "    grid.send_and_receive(ask([2], arrays=good.content['arrays']))\n"
    )
    strategy = strategy_of(folder, body)
    strategy.first_weights(start())
    strategy.configure(1, histories())
    assert strategy.aggregate(WEIGHTS, [part(DRIVES[0], 2.0, 7, top=0.5)])["w"].tolist() == [2.0, 2.0]


def test_a_drive_does_not_say_its_own_weight(folder: Path) -> None:
    strategy = strategy_of(folder, LOOP.format(1.0))
    strategy.first_weights(start())
    strategy.configure(1, histories())
    honest, boasts = ({"num-examples": count, "train_loss": count} for count in (10.0, 1e30))
    after = strategy.aggregate(WEIGHTS, [part(DRIVES[0], 1.0, **honest), part(DRIVES[1], 3.0, **boasts)])
    assert after["w"].tolist() == [2.0, 2.0]


def test_one_that_waits_for_more_nodes_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", lambda _: None)
    with pytest.raises(PluginFailed, match="needs more nodes than the 3 that are there; add drives, or lower min_ava"):
        flowers("FedAvg", min_available_nodes=4).first_weights(start())


def test_asking_who_is_there_counts_anew_with_what_is_sent(folder: Path) -> None:
    ask_often = "    nodes = [grid.get_node_ids() for _ in range(90)][-1]\n    grid.send_and_receive(ask(nodes))\n"
    strategy = strategy_of(folder, 2 * ask_often)
    strategy.first_weights(start())
    strategy.configure(1, histories())
    assert strategy.aggregate(WEIGHTS, [part(DRIVES[0], 1.0)])["w"].tolist() == [5.0, 6.0]


def test_a_wait_for_the_program_hears_a_signal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = strategy_of(folder, "    import threading\n    threading.Event().wait(60)\n")
    monkeypatch.setattr(INTERRUPTS, "signal", signal.SIGTERM)
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        strategy.first_weights(start())
    assert time.monotonic() - before < 30


def test_a_program_all_of_whose_drives_have_left_is_told_so(folder: Path) -> None:
    strategy = strategy_of(folder, "    grid.send_and_receive(ask([2, 3]))\n")
    strategy.first_weights(start())
    with pytest.raises(PluginFailed, match="asks only drives that have left: csd-00, csd-01; have it ask more drives"):
        strategy.configure(1, histories(DRIVES[2:]))


def test_the_host_answers_evaluate_messages_once_for_all_drives(folder: Path) -> None:
    asked: list[float] = []

    def judge(weights: Mapping[str, Array]) -> Judgement:
        asked.append(float(weights["w"][0]))
        return Judgement(0.25, 0.5, {"top": 0.75})

    body = (
        "    for reply in grid.send_and_receive(ask([2, 3, 4], 'evaluate')):\n"
        "        figures = {'loss': 0.5, 'accuracy': 0.25, 'top': 0.75, 'num-examples': 1}\n"
        "        assert dict(reply.content['metrics']) == figures\n"
        "    grid.send_and_receive(ask(grid.get_node_ids()))\n"
    )
    strategy_of(folder, body).first_weights(start(judge=judge))
    assert asked == [5.0]


def test_a_drive_that_is_away_is_no_node(folder: Path) -> None:
    body = (
        "    ids = grid.push_messages(ask([2, 4]))\n    assert len(list(grid.pull_messages(ids))) == 2\n"
        "    assert grid.get_node_ids() == [2, 4]\n    grid.send_and_receive(ask([2]))\n"
    )
    strategy = strategy_of(folder, body)
    strategy.first_weights(start())
    assert set(strategy.configure(1, histories([DRIVES[0], DRIVES[2]]))) == {DRIVES[0], DRIVES[2]}
    strategy.aggregate(WEIGHTS, [part(DRIVES[0], 1.0)])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    raise KeyError('my bug')\n", r"KeyError: 'my bug' \(server_app.py, line 18\)"),
        ("    pass\n", "asks no drive to train"),
        ("    grid.send_and_receive(ask([2], 'query'))\n", "sends 'query' to node 2; drives hear train and evaluate"),
        ("    grid.send_and_receive(ask([5]))\n", "sends 'train' to node 5"),
        ("    grid.send_and_receive(ask([2, 2]))\n", "two train messages at once"),
        (
            "    other = ArrayRecord({'w': Array(np.zeros(2, np.float32)), 'n': Array(np.array(1))})\n"
            "    grid.send_and_receive([*ask([2]), *ask([3], arrays=other)])\n",
            "drives different weights; send all one",
        ),
        ("    grid.send_and_receive([Message(RecordDict(), 2, 'train')])\n", "sends 0 ArrayRecords in a message"),
        ("    grid.send_and_receive(ask([2], arrays=ArrayRecord({'w': FIRST['w']})))\n", "first_weights must return"),
        (
            "    grid.send_and_receive(ask([2], arrays=ArrayRecord({'w': FIRST['n'], 'n': FIRST['n']})))\n",
            r"first_weights returned w with shape \(\)",
        ),
    ],
)
def test_what_drives_cannot_do_is_refused(body: str, message: str, folder: Path) -> None:
    with pytest.raises(PluginFailed, match=message):
        strategy_of(folder, body).first_weights(start())


def test_a_program_that_ends_without_its_model_is_told_what_to_do(folder: Path) -> None:
    strategy = strategy_of(folder, "    grid.send_and_receive(ask([2]))\n")
    strategy.first_weights(start())
    with pytest.raises(PluginFailed, match="ended without sending its model; have its strategy evaluate"):
        strategy.aggregate(WEIGHTS, [part(DRIVES[0], 1.0)])


def test_a_program_that_waits_ends_with_the_run(folder: Path) -> None:
    body = "    try:\n        grid.send_and_receive(ask([2]))\n    finally:\n        open('ENDED', 'w').close()\n"
    strategy = strategy_of(folder, body.replace("ENDED", str(folder / "ended")))
    strategy.first_weights(start())
    thread = [each for each in threading.enumerate() if each.name == "ServerApp"][-1]
    strategy._strategy._grid.close()
    thread.join(10)
    assert (folder / "ended").exists()


def test_a_bound_on_updates_passes_the_first_weights_on(folder: Path) -> None:
    strategy = Clipped(strategy_of(folder, LOOP.format(0.0)), 1.0, {"w"})
    assert strategy.first_weights(start())["w"].tolist() == [5.0, 6.0]  # type: ignore[attr-defined]


def test_a_resumed_run_is_refused(folder: Path) -> None:
    strategy = strategy_of(folder, "    pass\n")
    assert strategy.state() == {}
    with pytest.raises(CheckpointError, match="cannot be resumed; start the run anew"):
        strategy.load_state({})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("flwr.serverapp.strategy:FedAdam", {"ete": 0.1}, "did you mean 'eta'"),
        ("flwr.serverapp.strategy:FedAdam", {"eta": "much"}, "strategy.eta"),
        ("flwr.serverapp:ServerApp", {}, "no class of a flwr.serverapp.strategy.Strategy"),
        ("flwr.simulation:run_simulation", {}, "no class of a flwr.serverapp.strategy.Strategy"),
    ],
)
def test_only_flowers_strategies_may_be_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        load_plugin(STRATEGY, UserSection.model_validate({"name": name, **options}), Path())


def test_what_is_not_flowers_stays_as_it_is() -> None:
    assert adapt(dict, STRATEGY.adapters) is dict
    assert "flwr" in sys.modules
