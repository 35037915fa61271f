"""What modules import, each seen in a fresh interpreter."""

import subprocess
import sys

from tests import ROOT

HEAVY = (
    "torch",
    "numpy",
    "pydantic",
    "libvirt",
    "grpc",
    "msgspec",
    "yaml",
    "host.app.pytest_plugin.array_pool",
    "asyncio",
)


def test_what_looks_after_arrays_starts_without_torch() -> None:
    """Its import takes more than a second, of each `csd-emu status`."""
    modules = "sys, host.app.array_actions, host.app.inject_fault"
    program = f"import {modules}; print([name for name in sys.modules if name == 'torch'])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_torch_s_compiler_is_not_imported_where_a_model_is_cut() -> None:
    """Else a drive's first step waits for 500 to 800 modules, under emulation for 1 to 2 s of its own clock."""
    program = """
import sys, torch
from firmware_agent.common.models import build_model
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.training.gradient_step import GivenGradients
from firmware_agent.training.loaded_job import build_front
front = build_front(lambda: build_model(ShippedCode("digits_cnn")), torch.zeros(1, 1, 8, 8), "6").front
values = front(torch.zeros(1, 1, 8, 8))
GivenGradients.apply([torch.ones_like(value) for value in values], *values).backward()
assert all(weight.grad is not None for weight in front.parameters())
print({"sympy", "torch._dynamo"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_torch_s_compiler_is_not_imported_where_the_host_steps() -> None:
    program = """
import sys
import numpy as np, torch
from host.config.sync_section import OptimiserSection
from host.training.host_optimiser import _TENSOR_WISE, HostOptimiser
for name in sorted(_TENSOR_WISE & vars(torch.optim).keys()):
    for clip_norm in (None, 1.0):
        arrays = {"weight": np.ones((2, 2), np.float32)}
        optimiser = HostOptimiser(arrays, OptimiserSection(name=name), 0.1, clip_norm=clip_norm)
        optimiser.step_all({"weight": np.ones((2, 2), np.float32)}, 0.1)
        optimiser.load_state(optimiser.state_after_a_step())
        assert (arrays["weight"] < 1).all(), name
print({"sympy", "torch._dynamo"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_tuner_of_transfers_does_not_import_torch() -> None:
    """It takes longer to import than the command line takes to start."""
    program = (
        "import sys; from host.policies.transfer.transfer_tuner import make_tuner; "
        "from firmware_agent.common.send_queue import TransferSettings; first = TransferSettings('priority', 1, 1); "
        "make_tuner('priority', first); make_tuner('search', first); make_tuner('autobyte', first);"
        "print([name for name in ('torch',) if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_loading_the_plugin_imports_nothing_but_pytest() -> None:
    program = f"""
import sys
import pytest
before = set(sys.modules)
import host.app.pytest_plugin.plugin
print([name for name in {HEAVY} if name in set(sys.modules) - before])
print(sorted(name for name in set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy, new = done.stdout.splitlines()
    assert heavy == "[]"
    assert new == "['host', 'host.app', 'host.app.pytest_plugin', 'host.app.pytest_plugin.plugin']"


def test_resolving_imports_nothing_that_trains_or_connects() -> None:
    program = (
        "import sys, host.config.resolve; "
        "print(sorted({'torch', 'sklearn', 'scipy', 'grpc', 'libvirt'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_run_imports_torch_beside_the_launcher_of_its_native_drives() -> None:
    """The launcher imports it, too: one after the other they would wait for each other."""
    program = """
import sys
from pathlib import Path
from csd_emu.engines import native_engine
from host.cli.commands.runs import run
def launched_ahead(config, paths):
    sys.exit(f"{config.name}: {'torch' in sys.modules}")
native_engine.launched_ahead = launched_ahead
folder = Path("examples/quickstart")
run(folder / "job.yaml", folder / "array.yaml")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == "quickstart: False\n"


def test_names_of_registered_classes_are_known_without_importing_them() -> None:
    program = (
        "import sys\nfrom csd_emu.config.engine_names import ENGINE\nfrom host.config.plugins.kinds import STRATEGY\n"
        "assert 'qemu' in ENGINE.names and 'fedavg' in STRATEGY.names\n"
        "print([m for m in ('numpy', 'torch', 'csd_emu.engines', 'host.policies') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_schemas_are_read_without_libvirt() -> None:
    program = (
        "import sys; sys.modules['libvirt'] = None; from host.cli import schemas; print(len(schemas.schema_files()))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 30
