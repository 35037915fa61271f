"""The browser that tests drive; without one they are skipped, unless CSD_REQUIRE_VM=1 says that they must run."""

import os
from collections.abc import Collection
from typing import Any

import pytest

from csd_lab.testkit import browser
from csd_lab.testkit.browser import Browser, Tab
from firmware_agent.common.errors import EnvironmentUnfit
from tests.support.machines import REQUIRE_VARIABLE

__all__ = ["Browser", "Tab", "find_browser", "layouts"]


def layouts(*light: int, dark: Collection[int]) -> list[Any]:
    """Return parameters: a width and whether the page is dark, for every width in both themes.

    Those of `light` and of `dark` are for every change, the others are long.
    """
    return [
        pytest.param(
            width,
            is_dark,
            id=f"{width}-{'dark' if is_dark else 'light'}",
            marks=[] if width in chosen else [pytest.mark.long],
        )
        for width in sorted({*light, *dark})
        for is_dark, chosen in ((False, light), (True, dark))
    ]


def find_browser() -> str:  # type: ignore[return]
    """Return the browser's path."""
    try:
        return browser.find_browser()
    except EnvironmentUnfit as error:
        pytest.fail(str(error)) if os.environ.get(REQUIRE_VARIABLE) == "1" else pytest.skip(str(error))
