"""What cannot be asked of a machine that is measured by its own clock."""

import pytest

from firmware_agent.common.errors import ConfigurationError
from host.app.real_machine import RealMachine
from host.cli.commands.calibrate import calibrate

PROFILE = "xeon-4108"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "newport"}, "--host: .*newport.* is a drive, not a host; choose one of: .*xeon-4108"),
        (
            {"host": PROFILE, "drive": "left"},
            "on a real drive give both --inventory and --drive, on this machine --host",
        ),
        ({"threads": 2}, "on a real drive give both --inventory and --drive, on this machine --host"),
        ({"host": PROFILE, "verify": 1}, "--verify: compares counted rows"),
        ({"host": PROFILE, "profile": "newport"}, "leave out --no-cycles, --verify, --inventory, --drive and --host"),
        ({"host": "nobody"}, "nobody"),
    ],
)
def test_what_cannot_be_asked_of_a_host_is_refused_before_anything_is_measured(
    options: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RealMachine, "measure", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(ConfigurationError, match=words):
        calibrate("digits_cnn", **options)  # type: ignore[arg-type]
