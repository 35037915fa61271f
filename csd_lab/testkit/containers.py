"""A stack of docker-compose.yml for the time of a measurement or a test: started, asked, and removed again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import ROOT
from csd_lab.testkit.prometheus import LOOPBACK, free_port
from firmware_agent.common.errors import EnvironmentUnfit

FILE = "docker-compose.yml"
SERVICES = ("drives", "host", "prometheus")
_LABEL = "com.docker.compose.project"
_POLL_SECONDS = 0.5
_START_DOCKER = ROOT / "scripts" / "docker-engine"
INSTALL_DOCKER = (
    "run scripts/docker-engine start" if _START_DOCKER.is_file() else "install Docker with its compose plug-in"
)
_KINDS = {"container": ("ps", "--all"), "volume": ("volume", "ls"), "network": ("network", "ls")}


def compose_command() -> list[str]:
    """Return the command of Docker Compose, version 2 or 1.29.

    Raises:
        EnvironmentUnfit: there is none.
    """
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True).returncode == 0:
            return command
    raise EnvironmentUnfit(f"neither docker compose nor docker-compose is installed; {INSTALL_DOCKER}")


class Stack:
    """One project of docker-compose, on free ports of loopback; a context manager that removes all of it."""

    def __init__(self, folder: Path, project: str, settings: Mapping[str, str] | None = None) -> None:
        """Prepare; nothing is started.

        Args:
            folder: of docker-compose.yml.
            project: names containers, volumes and networks.
            settings: variables in place of those in .env.
        """
        self.folder, self.project = folder, project
        self.page_port, self.prometheus_port = free_port(), free_port()
        ports = {"CSD_PAGE_PORT": str(self.page_port), "CSD_PROMETHEUS_PORT": str(self.prometheus_port)}
        self._environment = {**os.environ, **ports, **(settings or {})}
        self._command = [*compose_command(), "--project-name", project, "--file", str(folder / FILE)]

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def page(self) -> str:
        """The URL of the live page, without a slash at its end."""
        return f"http://{LOOPBACK}:{self.page_port}"

    @property
    def prometheus(self) -> str:
        """The URL of Prometheus, without a slash at its end."""
        return f"http://{LOOPBACK}:{self.prometheus_port}"

    def compose(self, *arguments: str, seconds: float = 120.0, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run docker-compose and return how it ended; `settings` are variables for this once."""
        return subprocess.run(
            [*self._command, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            env=self._environment | settings,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def must(self, *arguments: str, seconds: float = 120.0) -> str:
        """Run docker-compose and return its output.

        Raises:
            EnvironmentUnfit: it failed.
        """
        done = self.compose(*arguments, seconds=seconds)
        if done.returncode != 0:
            raise EnvironmentUnfit(
                f"docker-compose {' '.join(arguments)} failed: {(done.stderr or done.stdout)[-2000:]}"
            )
        return done.stdout

    def build(self, seconds: float = 3600.0) -> None:
        """Build our images, as far as they are not there."""
        self.must("build", *SERVICES, seconds=seconds)

    def build_from_nothing(self, seconds: float = 3600.0) -> None:
        """Build our images as if nothing had been built before.

        What several have in common is built once, as a builder without a cache would: all others follow from the
        stages of the first, which are new.
        """
        self.must("build", "--no-cache", SERVICES[0], seconds=seconds)
        self.build(seconds)

    def up(self, *services: str, seconds: float = 1800.0) -> None:
        """Start in the background; returns when what others depend on is healthy."""
        self.must("up", "--detach", *services, seconds=seconds)

    def down(self) -> None:
        """Remove containers, networks and volumes."""
        self.must("down", "--volumes", "--remove-orphans", "--timeout", "60", seconds=300.0)

    def container(self, service: str) -> dict[str, Any]:
        """Return what Docker knows of a service's container."""
        number = self.must("ps", "--quiet", service).strip()
        described: list[dict[str, Any]] = json.loads(docker("inspect", number))
        return described[0]

    def left(self) -> list[str]:
        """Return the containers, volumes and networks of this project that exist."""
        return [
            f"{kind} {name}"
            for kind, verb in _KINDS.items()
            for name in docker(*verb, "--quiet", "--filter", f"label={_LABEL}={self.project}").split()
        ]


def docker(*arguments: str) -> str:
    """Run the docker command and return its output.

    Raises:
        EnvironmentUnfit: it is missing, or failed.
    """
    try:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=300)
    except OSError as error:
        raise EnvironmentUnfit(f"docker cannot be run ({error}); {INSTALL_DOCKER}") from error
    if done.returncode != 0:
        raise EnvironmentUnfit(f"docker {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def wait_for(what: str, look: Callable[[], Any], seconds: float) -> Any:
    """Return the first result of `look` that is true.

    Raises:
        EnvironmentUnfit: there is none in time.
    """
    deadline = Deadline(seconds)
    while not (found := look()):
        if deadline.expired:
            raise EnvironmentUnfit(f"{what}: not within {seconds:.0f} s; see docker-compose logs")
        threading.Event().wait(_POLL_SECONDS)
    return found


def image_version() -> str:
    """Return the tag of our images: as in docker-compose.yml."""
    return os.environ.get("CSD_VERSION") or "0.1.0"


def image_bytes() -> dict[str, int]:
    """Return the size of each of our images as Docker reports it, layers that they share counted in each."""
    return {
        name: int(docker("inspect", "--format", "{{.Size}}", f"csd-emu/{name}:{image_version()}")) for name in SERVICES
    }
