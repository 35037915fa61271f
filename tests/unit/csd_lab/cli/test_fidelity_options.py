import pytest

from csd_lab.cli.fidelity import check_options
from firmware_agent.common.errors import ConfigurationError

DRIVE = ("--inventory", "--model", "--input", "--steps")
BOARD = ("--ssh-config", "--repetitions", "--save")


def check(drive: str | None, on: str | None, *given: str) -> None:
    of_drive, of_board = ({name: 1 if name in given else None for name in names} for names in (DRIVE, BOARD))
    check_options(drive, on, of_drive, of_board)


def test_what_fits_together_is_taken() -> None:
    check(None, None)
    check("left", None, *DRIVE)
    check("left", None, "--inventory")
    check(None, "pi@lab")
    check(None, "pi@lab", *BOARD)


@pytest.mark.parametrize("option", DRIVE)
@pytest.mark.parametrize("on", [None, "pi@lab"])
def test_options_of_a_drive_need_one(option: str, on: str | None) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}: for a drive alone; name it"):
        check(None, on, option)


@pytest.mark.parametrize("option", BOARD)
@pytest.mark.parametrize("drive", [None, "left"])
def test_options_of_a_board_need_one(option: str, drive: str | None) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}: for a board alone; name it with --on"):
        check(drive, None, "--inventory" if drive else "", option)


def test_a_drive_and_a_board_are_two_measurements() -> None:
    with pytest.raises(ConfigurationError, match="one of them at a time"):
        check("left", "pi@lab", "--inventory")
    with pytest.raises(ConfigurationError, match="--inventory says how to reach"):
        check("left", None)
