"""libFuzzer runs one target of the fuzzer, in a process of its own, for it ends its process; see `bench_fuzz`.

Nothing of ours is imported but below `atheris.instrument_imports`: what is there before guides nobody.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from csd_lab.bench.security.fuzz_loop import FuzzTarget

_PACKAGES = ["csd_emu", "firmware_agent", "host"]


def main(name: str, cases: int, seed: int, folder: Path) -> None:
    """Run the cases; crashes and their number are left in `folder`."""
    import atheris

    with atheris.instrument_imports(include=_PACKAGES):
        from csd_lab.bench.security.fuzz_files import file_targets
        from csd_lab.bench.security.fuzz_loop import run_case
        from csd_lab.bench.security.fuzz_mutation import encoder
        from csd_lab.bench.security.fuzz_wire import wire_targets

    work, corpus = folder / "work", folder / "corpus"
    work.mkdir()
    corpus.mkdir()
    target: FuzzTarget = next(each for each in [*wire_targets(work), *file_targets(work)] if each.name == name)
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
