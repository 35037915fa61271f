"""Whether real virtual machines can be started here."""

import os

import pytest

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import Engine, make_engine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import EnvironmentUnfit

REQUIRE_VARIABLE = "CSD_REQUIRE_VM"
# libvirt's daemon outlives the object that started it on purpose.
DAEMON_OUTLIVES = "ignore:subprocess .* is still running:ResourceWarning"


def prepared_qemu(config: ArrayConfig) -> Engine:
    """Return the qemu engine with image and template, on this user's normal cache, shared by all tests.

    Where QEMU or libvirt is missing the test is skipped, unless CSD_REQUIRE_VM=1 says that it must run.
    """
    try:
        engine = make_engine(config, Paths.default())
    except (ImportError, EnvironmentUnfit) as error:
        if os.environ.get(REQUIRE_VARIABLE) == "1":
            raise
        pytest.skip(f"no virtual machines here: {error}")
    engine.prepare(Silent())
    return engine
