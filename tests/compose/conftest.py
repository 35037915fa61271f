"""A real Docker engine, real images, real virtual machines in containers."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from csd_lab.testkit.containers import Stack, docker
from firmware_agent.common.errors import EnvironmentUnfit

TOP = Path(__file__).parents[2]
# Without a Docker engine these tests fail, unless whoever runs them says that none is expected.
ALLOW_NONE = "CSD_ALLOW_NO_DOCKER"


@pytest.fixture(scope="session")
def engine() -> None:
    """A Docker engine that answers."""
    try:
        docker("info")
    except EnvironmentUnfit as error:
        if os.environ.get(ALLOW_NONE) == "1":
            pytest.skip(f"{error} ({ALLOW_NONE}=1)")
        raise


@pytest.fixture(scope="session")
def images(engine: None) -> None:
    """Our images, built by the unmodified compose file."""
    Stack(TOP, "csd-test-build").build()


@pytest.fixture(scope="module")
def stack(images: None) -> Iterator[Stack]:
    """A stack that nobody has started yet; whatever is left of it is removed."""
    stack = Stack(TOP, f"csd-test-{secrets.token_hex(3)}", {"CSD_COUNT": "3", "CSD_POWER_CAP": "1 W"})
    yield stack
    stack.down()
