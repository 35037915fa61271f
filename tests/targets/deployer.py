"""`csd-emu deploy` on the drives of a test, in this process."""

from pathlib import Path
from typing import Any

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from host.deploy.run_verb import DeployRequest, deploy
from host.deploy.verb_protocol import VerbOptions, VerbOutcome


class NoBoard:
    """Is told how the work goes, and shows nothing."""

    def begin(self, drives: int) -> None:
        pass

    def show(self, drive: str, what: str, share: float | None) -> None:
        pass

    def finish(self, outcome: VerbOutcome) -> None:
        pass


class Deployer:
    """Does verbs with the bundles and the state of some folders."""

    def __init__(self, paths: Paths, seconds: float = 900.0) -> None:
        """Keep to `paths`; a drive may take so many `seconds` for a verb."""
        self.paths, self._seconds = paths, seconds

    def all(self, inventory: Path, verb: str, dry_run: bool = False, **options: Any) -> list[VerbOutcome]:
        """Do a verb on all drives of an inventory."""
        request = DeployRequest(inventory, verb, dry_run=dry_run, seconds=self._seconds, options=VerbOptions(**options))
        return deploy(request, self.paths, Silent(), NoBoard()).drives

    def do(self, inventory: Path, verb: str, result: str = "done", **options: Any) -> VerbOutcome:
        """Do a verb on the one drive of an inventory, and see that it ended so."""
        (outcome,) = self.all(inventory, verb, **options)
        assert outcome.result == result, f"{verb}: {outcome.what}"
        return outcome
