"""A Flower `ServerApp`, or one of Flower's strategies, as a strategy of a job (McMahan et al. and others; Flower 1.42).

The Flower program runs on `CsdGrid`: what it sends to nodes is a round of the run. Flower is imported when a job names
something of Flower's, and not before.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from firmware_agent.common.clients.flower_client import RUN_CONFIG
from firmware_agent.common.errors import CheckpointError
from firmware_agent.common.slices import Array
from host.policies.aggregation.strategy import Contribution, DriveHistory, RunStart, Stateless

if TYPE_CHECKING:
    from host.policies.aggregation.csd_grid import CsdGrid

Setting = bool | int | float | str


def adapt_flower(target: Any) -> Any:
    """Return what makes a `FlowerStrategy` of a `ServerApp` or a Flower strategy's class; anything else as it is."""
    if "flwr" not in sys.modules:  # whoever has something of Flower's has imported it
        return target
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import Strategy as FlowerAlgorithm

    if isinstance(target, ServerApp):
        return _maker_of_app(target)
    if isinstance(target, type) and issubclass(target, FlowerAlgorithm):
        return _maker_of_algorithm(target)
    return target


class FlowerStrategy(Stateless):
    """Has a Flower program say what drives are told, and make new weights of theirs."""

    def __init__(
        self,
        program: Callable[[CsdGrid, RunStart], object],
        run_config: Mapping[str, Setting],
        proximal: float = 0.0,
    ) -> None:
        """Take the program, which is started with the run.

        Args:
            program: takes the grid and the run.
            run_config: that `ClientApp`s of the drives find in their context.
            proximal: mu of the term that drives add to their loss.
        """
        self._program, self._run_config, self.proximal = program, run_config, proximal

    def first_weights(self, run: RunStart) -> dict[str, Array]:
        """Start the program, and return the weights that it sends first."""
        from host.policies.aggregation.csd_grid import CsdGrid

        self._grid, self._has_client = CsdGrid(run), run.has_client
        weakref.finalize(self, self._grid.close).atexit = False
        return self._grid.begin(self._program)

    def configure(self, number: int, drives: Mapping[str, DriveHistory]) -> dict[str, dict[str, Any]]:
        """Return what the program says to each drive that it asks."""
        said = self._grid.instructions(drives)
        settings = {RUN_CONFIG + name: value for name, value in self._run_config.items()} if self._has_client else {}
        for each in said.values():
            each.update(settings)
            if not self._has_client and each.get("proximal_mu") == self.proximal:  # drives have it from the job
                del each["proximal_mu"]
        return said

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the weights that the program makes of what drives returned."""
        return self._grid.answer(contributions)

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Refuse: what a program keeps between rounds is its own.

        Raises:
            CheckpointError: always.
        """
        raise CheckpointError("a Flower program keeps its own state and cannot be resumed; start the run anew")


def _maker_of_app(app: Any) -> Callable[..., FlowerStrategy]:
    def make(run_config: dict[str, Setting] | None = None) -> FlowerStrategy:
        settings = run_config or {}

        def main(grid: CsdGrid, run: RunStart) -> None:
            from flwr.app import Context, RecordDict

            config = {"num-server-rounds": run.rounds} | settings
            app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config))

        return FlowerStrategy(main, settings)

    return make


def _maker_of_algorithm(kind: Any) -> Callable[..., FlowerStrategy]:
    @functools.wraps(kind.__init__)
    def make(**options: Any) -> FlowerStrategy:
        algorithm = kind(**options)

        def main(grid: CsdGrid, run: RunStart) -> None:
            from host.policies.aggregation.csd_grid import to_record

            algorithm.start(grid, to_record(run.weights), num_rounds=run.rounds)

        return FlowerStrategy(main, {}, getattr(algorithm, "proximal_mu", 0.0))

    make.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
    return make
