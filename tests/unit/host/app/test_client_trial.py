"""Client programs before a run: which strategy they fit, and what does not return."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from firmware_agent.common.errors import ConfigurationError
from host.app.client_trial import _choose, _within
from host.config.job_file import JobConfig
from host.config.plugins.kinds import CLIENT
from host.config.plugins.plugin_loading import Plugin
from host.config.resolve import Plugins


def chosen(client: str, strategy: str, wanted: str | None = None, needed: str | None = None) -> Any:
    """Return the program of a job whose client wants a strategy, and whose strategy needs a client."""
    base: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}}
    job = JobConfig.model_validate({**base, "client": client, "strategy": strategy})

    def train() -> None:
        """Do nothing."""

    vars(train).update({} if wanted is None else {"strategy": wanted})
    own = Plugin(CLIENT, client, train, {}, "", "") if ":" in client else None
    halves = {} if needed is None else {"client": needed}
    return _choose(job, Plugins(client=own), cast(Any, SimpleNamespace(**halves)))


@pytest.mark.parametrize(
    ("client", "wanted", "told"),
    [
        (
            "scaffold",
            None,
            "client scaffold: needs strategy scaffold, and the job has fedavg; write strategy: scaffold",
        ),
        ("a.py:train", "b.py:Half", "client a.py:train: needs strategy b.py:Half, and the job has fedavg"),
    ],
)
def test_a_client_that_needs_another_strategy_is_refused(client: str, wanted: str | None, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        chosen(client, "fedavg", wanted)


def test_a_client_whose_strategy_is_there_is_taken() -> None:
    assert chosen("scaffold", "scaffold", needed="scaffold").name == "scaffold"
    assert chosen("scaffold", "mine.py:Scaffold", needed="scaffold").name == "scaffold"
    assert chosen("a.py:train", "folder/b.py:Half", "b.py:Half").name == "a.py:train"
    assert chosen("a.py:train", "fedavg").name == chosen("a.py:train", "fedavg", "fedavg").name == "a.py:train"


def test_what_does_not_return_is_told_with_the_line_where_it_is() -> None:
    end, begun, text = threading.Event(), threading.Event(), "def train(begun, end):\n    begun.set()\n    end.wait()\n"
    mine: dict[str, Any] = {}
    exec(compile(text, "mine.py", "exec"), mine)

    def wait_for_it() -> None:
        mine["train"](begun, end)

    try:
        with pytest.raises(ConfigurationError, match=r"after 0.05 s \(mine.py, line 3\)"):
            _within(wait_for_it, "mine.py:train", 0.05)
    finally:
        end.set()
    assert _within(lambda: 3, "mine.py:train", 60.0) == 3
