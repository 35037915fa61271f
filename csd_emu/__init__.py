"""csd-emu from Python: arrays of emulated computational storage drives that train.

    import csd_emu as ce

    with ce.Array(drives=3, engine="native") as array:
        run = array.train(model="digits_cnn", data="digits", rounds=2)
        print(run.accuracy, run.records_per_device_second, run.clock)

Each name is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from csd_lab.sweep.job_sweep import sweep
    from firmware_agent import __version__
    from firmware_agent.common.errors import (
        ConfigurationError,
        CsdError,
        DeviceError,
        EnvironmentUnfit,
        RunCancelled,
        UserCodeFailed,
    )
    from host.app.python_api.commands import calibrate, plan, simulate
    from host.app.python_api.compared_runs import compare
    from host.app.python_api.open_array import Array
    from host.app.python_api.run_handle import Run
    from host.app.python_api.run_handle import open_run as open
    from host.app.python_api.run_result import RunResult
    from host.app.python_api.run_result import load_result as load

__all__ = [
    "Array",
    "ConfigurationError",
    "CsdError",
    "DeviceError",
    "EnvironmentUnfit",
    "Run",
    "RunCancelled",
    "RunResult",
    "UserCodeFailed",
    "__version__",
    "calibrate",
    "compare",
    "load",
    "open",
    "plan",
    "simulate",
    "sweep",
]
# Of csd_lab, which stands above the product; found by entry point.
_EXPERIMENTS = ("sweep",)
_ERRORS, _API = "firmware_agent.common.errors", "host.app.python_api"
_HOMES = {
    "Array": f"{_API}.open_array",
    "Run": f"{_API}.run_handle",
    "RunResult": f"{_API}.run_result",
    "__version__": "firmware_agent",
    "calibrate": f"{_API}.commands",
    "compare": f"{_API}.compared_runs",
    "load": f"{_API}.run_result:load_result",
    "open": f"{_API}.run_handle:open_run",
    "plan": f"{_API}.commands",
    "simulate": f"{_API}.commands",
}


def __getattr__(name: str) -> Any:
    """Return what `name` stands for.

    Raises:
        AttributeError: it stands for nothing.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    if name in _EXPERIMENTS:
        from importlib import metadata  # its import takes as long as all else

        value = next(iter(metadata.entry_points(group="csd_emu.functions", name=name))).load()
    else:
        module, _, own = _HOMES.get(name, _ERRORS).partition(":")
        value = getattr(importlib.import_module(module), own or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names that there are."""
    return __all__
