"""libFuzzer's guidance for the fuzzer, where atheris is installed: one process per target, for it ends its process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from host.bench.fuzz_loop import Crash, Tally, Target, run_case
from host.bench.fuzz_mutation import encoder

_PACKAGES = ["csd_emu", "firmware_agent", "host"]
_SECONDS = 600


def find_atheris() -> str | None:
    """Return where atheris is; None if it is not installed."""
    spec = importlib.util.find_spec("atheris")
    return None if spec is None else spec.origin


def explore(name: str, cases: int, seed: int, tally: Tally) -> None:
    """Have libFuzzer run `cases` cases of the target `name` in a process of its own, and add what came to `tally`."""
    with tempfile.TemporaryDirectory(prefix="csd-fuzz-") as folder:
        command = [sys.executable, "-m", "host.bench.fuzz_atheris", name, str(cases), str(seed), folder]
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        tally.cases += sum(path.stat().st_size for path in Path(folder).glob("count"))
        known = {crash.what.partition("\n")[0] for crash in tally.crashes}
        for path in sorted(Path(folder).glob("crash-*")):
            what = path.with_name(path.name.replace("crash", "what")).read_text(encoding="utf-8")
            if (kind := what.partition("\n")[0]) not in known:
                known.add(kind)
                tally.crashes.append(Crash(name, seed, int(path.name.partition("-")[2]), what, path.read_bytes()))
        if done.returncode not in (0,) and not list(Path(folder).glob("count")):
            tally.crashes.append(Crash(name, seed, 0, f"Ended: {done.stderr[-500:].decode(errors='replace')}", b""))


def main(name: str, cases: int, seed: int, folder: Path) -> None:
    """Run the cases; crashes and their number are left in `folder`."""
    import atheris

    with atheris.instrument_imports(include=_PACKAGES):
        from host.bench.fuzz_files import file_targets
        from host.bench.fuzz_wire import wire_targets

    work, corpus = folder / "work", folder / "corpus"
    work.mkdir()
    corpus.mkdir()
    target: Target = next(each for each in [*wire_targets(work), *file_targets(work)] if each.name == name)
    for number, value in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(encoder(target.codec)(value))
    seen: set[str] = set()
    number = 0

    def case(content: bytes) -> None:
        nonlocal number
        number += 1
        _, what, _ = run_case(target.call, content)
        with (folder / "count").open("ab") as count:
            count.write(b".")
        if what and (kind := what.partition("\n")[0]) not in seen:
            seen.add(kind)
            (folder / f"crash-{number}").write_bytes(content)
            (folder / f"what-{number}").write_text(what, encoding="utf-8")

    options = [f"-runs={cases}", f"-seed={seed + 1}", "-max_len=16384", "-rss_limit_mb=4096", str(corpus)]
    atheris.Setup([sys.argv[0], *options], case)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
