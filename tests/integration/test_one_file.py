"""One new file makes a class built in: options, files, schemas, reference and the tests of the contract follow."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

ENGINE = """
from csd_emu.config.engine_names import ENGINE
from csd_emu.engines.native_engine import NativeEngine

@ENGINE.register("nearby", "Each drive is a process again.")
class NearbyEngine(NativeEngine):
    pass
"""
STRATEGY = """
from typing import Annotated
from annotated_types import Ge, Lt
from host.config.plugins.kinds import STRATEGY
from host.core.tensor_sums import weighted_mean
from host.policies.aggregation.strategy import Stateless

@STRATEGY.register("dictator", "The weights of the drive at one place.")
class Dictator(Stateless):
    def __init__(self, place: Annotated[int, Ge(0), Lt(9)] = 0) -> None:
        self._place = place
        self.least_contributions = place + 1

    def aggregate(self, global_weights, contributions):
        part = contributions[self._place]
        return weighted_mean([(part.samples, part.weights)])
"""
TUNER = """
from host.config.plugins.kinds import TUNER
from host.policies.batching.fixed import FixedBatches

@TUNER.register("steady", "Batches of `stannis`, of which a device gets at most `most`.")
class Steady(FixedBatches):
    def __init__(self, batches, tables, names, most: int = 64) -> None:
        super().__init__([min(int(batch), most) for batch in batches], tables, names)
"""
TRANSFER_TUNER = """
from host.config.plugins.kinds import TRANSFER_TUNER
from host.policies.transfer.transfer_tuner import Change, FixedSending
from firmware_agent.common.send_queue import TransferSettings

@TRANSFER_TUNER.register("larger", "Slices of twice the size after ten steps.")
class Larger(FixedSending):
    def __init__(self, first):
        super().__init__(first)
        self._larger = TransferSettings("priority", 2 * first.slice_bytes, 2 * first.credit_bytes)

    def sending(self, step):
        return self._larger if step > 10 else super().sending(step)

    def observe(self, seen):
        super().observe(seen)
        return Change(11, self._larger, "ten steps are over") if seen.step == 9 else None
"""
SPLIT_POLICY = """
from host.config.plugins.kinds import SPLIT_POLICY
from host.policies.split.choose_cut import decide

@SPLIT_POLICY.register("greedy", "Whatever makes a step shortest, however much the host computes.")
class Greedy:
    def decide(self, situation):
        return decide(situation, heavy=0.0)
"""


@dataclass(frozen=True)
class Case:
    """A new file: its path, its text, the name that it registers, and where that name shows."""

    path: str
    text: str
    name: str
    job: dict[str, object]
    engine: str | None = None
    option: str | None = None
    contract: str = "tests/contract/test_policy_contract.py"


CASES = [
    Case(
        "csd_emu/engines/nearby.py",
        ENGINE,
        "nearby",
        {},
        engine="nearby",
        option="--engine",
        contract="tests/contract/test_engine_contract.py",
    ),
    Case("host/policies/aggregation/dictator.py", STRATEGY, "dictator", {"strategy": {"name": "dictator", "place": 2}}),
    Case(
        "host/policies/batching/steady.py",
        TUNER,
        "steady",
        {"mode": "sync", "tuner": {"name": "steady", "most": 8}},
        option="--tuner",
    ),
    Case(
        "host/policies/transfer/larger.py",
        TRANSFER_TUNER,
        "larger",
        {"mode": "sync", "communication": "larger"},
        option="--comm",
    ),
    Case(
        "host/policies/split/greedy.py",
        SPLIT_POLICY,
        "greedy",
        {"mode": "sync", "placement": "greedy"},
        option="--placement",
    ),
]
USED = """
import json, sys
import jsonschema
from csd_emu.config.array_file import ArrayConfig
from csd_emu.util.config_files import parse_config
from csd_lab.generate.reference.pages import render_registered
from csd_lab.generate.reference.pages import render_commands
from csd_emu.util.paths import Paths
from host.app.array_actions import _engines
from host.config.job_file import JobConfig
from host.monitoring.metrics.info_metrics import describe_devices
from host.training.accounting import make_accountant
from tests.support.fakes import hello

shown = []
pages = {"reference": render_registered(), "commands": render_commands()}
for job, array in json.loads(sys.argv[1]):
    found = dict(pages)
    for name, content, kind in (("job", job, JobConfig), ("array", array, ArrayConfig)):
        schema = kind.model_json_schema()
        jsonschema.Draft202012Validator(schema).validate(content)
        written = parse_config(content, kind, name).model_dump(mode="json")
        assert parse_config(written, kind, name) == parse_config(content, kind, name)
        found[name], found[name + "_schema"] = json.dumps(written), json.dumps(schema)
    config = parse_config(array, ArrayConfig, "array")
    facts = describe_devices(config, make_accountant(config).time, {"csd-00": hello("csd-00")})
    found["kind"] = facts[0].kind
    found["swept"] = [type(engine).__name__ for engine in _engines("other", Paths.default())]
    shown.append(found)
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is tested, with the tests of the contracts."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("csd_emu", "csd_lab", "firmware_agent", "host", "tests/contract", "tests/support"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py", "tests/long.py"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def run(tree: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    environment = {"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def shown(tree: Path) -> dict[str, dict[str, Any]]:
    """What the program shows of each case, and the lines of its contract's tests; all of them share two processes."""
    arrays: list[dict[str, object]] = []
    for case in CASES:
        (tree / case.path).write_text(case.text, encoding="utf-8")
        engine = {} if case.engine is None else {"engine": case.engine}
        arrays.append({"name": "lab", "devices": [{"profile": "newport", "count": 2}]} | engine)
    jobs = [{"model": "digits_cnn", "data": {"source": "digits"}} | case.job for case in CASES]
    found = json.loads(run(tree, "-c", USED, json.dumps(list(zip(jobs, arrays, strict=True)))))
    names = " or ".join(case.name for case in CASES)
    contracts = sorted({case.contract for case in CASES})
    tests = run(tree, "-m", "pytest", "-v", "-m", "not vm and not long", "-k", names, *contracts).splitlines()
    return {
        case.name: each | {"tests": [line for line in tests if line.startswith(case.contract) and case.name in line]}
        for case, each in zip(CASES, found, strict=True)
    }


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_one_file_is_all_that_a_new_class_needs(case: Case, shown: dict[str, dict[str, Any]]) -> None:
    found = shown[case.name]
    place = "array" if case.engine is not None else "job"
    assert f'"{case.name}"' in found[place]
    assert f'"{case.name}"' in found[f"{place}_schema"]
    assert f"| `{case.name}` | " in found["reference"]
    if case.engine is not None:
        assert found["kind"] == case.engine
        assert "NearbyEngine" in found["swept"]
    if case.option is not None:
        choices = [line for line in found["commands"].splitlines() if line.startswith(f"| `{case.option} ")]
        assert choices
        assert all(case.name in line for line in choices)
    assert found["tests"]
    assert all(" PASSED " in line for line in found["tests"])
