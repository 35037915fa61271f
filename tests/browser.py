"""The browser that tests drive; without one they are skipped, unless CSD_REQUIRE_VM=1 says that they must run."""

import os

import pytest

from firmware_agent.errors import EnvironmentUnfit
from host.bench import browser
from host.bench.browser import Browser, Tab
from tests.machines import REQUIRE_VARIABLE

__all__ = ["Browser", "Tab", "find_browser"]


def find_browser() -> str:
    """Return the browser's path."""
    try:
        return browser.find_browser()
    except EnvironmentUnfit as error:
        pytest.fail(str(error)) if os.environ.get(REQUIRE_VARIABLE) == "1" else pytest.skip(str(error))
