"""What is read from the probe's script, and the decision on a form: laws over random drives."""

import contextlib
import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import DriveUnfit
from host.deploy.compatibility import (
    NEEDED_TOOLS,
    SCRIPT,
    WHEELS_GLIBC,
    DriveRequirements,
    Facts,
    Form,
    Python,
    choose_python,
    judge,
    parse_facts,
    read_version,
)

NOW = 1_790_000_000.0
GOOD = Facts(
    machine="aarch64",
    kernel=(6, 1),
    kernel_text="6.1.0",
    cores=4,
    cpu_flags=("fp", "asimd", "crc32"),
    memory_bytes=6 * 2**30,
    folder_free_bytes=8 * 10**9,
    folder_mount="/",
    folder_options=("rw", "relatime"),
    pythons=(Python("/usr/bin/python3", (3, 11, 2), 64),),
    libc="glibc",
    libc_version=(2, 36),
    init="systemd",
    root="yes",
    tools=(*NEEDED_TOOLS, "chroot"),
    power_sensors=("/sys/class/hwmon/hwmon0/power1_input x",),
    unix_seconds=int(NOW),
)
PYTHONS = st.builds(
    Python, st.just("/usr/bin/python3"), st.tuples(st.just(3), st.integers(5, 15), st.integers(0, 9)), st.just(64)
)
DRIVES = st.builds(
    Facts,
    machine=st.sampled_from(["aarch64", "arm64", "armv7l", "x86_64"]),
    kernel=st.sampled_from([(), (3, 2), (3, 7), (4, 14), (6, 1)]),
    kernel_text=st.just("some"),
    cpu_flags=st.sampled_from([(), ("fp",), ("fp", "asimd")]),
    memory_bytes=st.none() | st.integers(2**28, 2**33),
    folder_free_bytes=st.none() | st.integers(0, 4 * 10**9),
    folder_mount=st.just("/"),
    folder_options=st.sampled_from([("rw",), ("ro",), ("rw", "noexec")]),
    data_there=st.sampled_from([None, True, False]),
    pythons=st.lists(PYTHONS, max_size=3).map(tuple),
    libc=st.sampled_from(["", "glibc", "musl"]),
    libc_version=st.sampled_from([(), (1, 2), (2, 27), (2, 28), (2, 36)]),
    init=st.sampled_from(["systemd", "initd", "none"]),
    root=st.sampled_from(["yes", "sudo", "no"]),
    tools=st.lists(st.sampled_from([*NEEDED_TOOLS, "chroot"]), unique=True).map(tuple) | st.just(GOOD.tools),
    unix_seconds=st.none() | st.integers(0, 5 * 10**9),
)


def changed(**values: Any) -> Facts:
    return dataclasses.replace(GOOD, **values)


@given(DRIVES, st.sampled_from([None, *Form]))
def test_there_is_a_form_or_a_problem_and_each_problem_has_its_remedy(facts: Facts, forced: Form | None) -> None:
    verdict = judge(facts, DriveRequirements(), NOW, forced)
    assert (verdict.form is None) == bool(verdict.problems)
    assert verdict.form is None or forced in (None, verdict.form)
    assert (verdict.python is not None) == (verdict.form is Form.WHEELS)
    # What is only about the wheels' own needs has one remedy for all: the other form.
    assert all(": " in problem or "wheels need" in problem for problem in verdict.problems)
    assert len(set(verdict.problems)) == len(verdict.problems)


@given(DRIVES)
def test_a_form_is_only_chosen_where_what_it_needs_is_there(facts: Facts) -> None:
    needs = DriveRequirements()
    verdict = judge(facts, needs, NOW)
    if verdict.form is None:
        return
    assert facts.machine in ("aarch64", "arm64")
    assert facts.root != "no"
    assert set(NEEDED_TOOLS) <= set(facts.tools)
    assert (facts.memory_bytes or math.inf) >= needs.memory_bytes
    assert (math.inf if facts.folder_free_bytes is None else facts.folder_free_bytes) >= needs.disk_bytes[verdict.form]
    if verdict.form is Form.WHEELS:
        assert facts.libc == "glibc"
        assert facts.libc_version >= WHEELS_GLIBC
        assert verdict.python in facts.pythons
    else:
        assert "chroot" in facts.tools
        assert judge(facts, needs, NOW, Form.WHEELS).form is None, "wheels go first where they fit"


@given(DRIVES, st.integers(1, 10**10), st.integers(1, 10**10))
def test_more_disk_and_more_dram_never_make_a_drive_unfit(facts: Facts, disk: int, dram: int) -> None:
    if (
        facts.folder_free_bytes is None
        or facts.memory_bytes is None
        or judge(facts, DriveRequirements(), NOW).form is None
    ):
        return
    richer = dataclasses.replace(
        facts, folder_free_bytes=facts.folder_free_bytes + disk, memory_bytes=facts.memory_bytes + dram
    )
    assert judge(richer, DriveRequirements(), NOW).form is not None


def test_old_systems_get_the_root_file_system(subtests: pytest.Subtests) -> None:
    for facts, form in [
        (GOOD, Form.WHEELS),
        (changed(libc_version=(2, 28)), Form.WHEELS),
        (changed(libc_version=(2, 27)), Form.ROOTFS),
        (changed(libc="musl", libc_version=(1, 2, 4)), Form.ROOTFS),
        (changed(libc="", libc_version=()), Form.ROOTFS),
        (changed(pythons=()), Form.ROOTFS),
        (changed(pythons=(Python("/usr/bin/python3", (3, 9, 2), 64),)), Form.ROOTFS),
        (changed(pythons=(Python("/usr/bin/python3", (3, 11, 2), 32),)), Form.ROOTFS),
        (changed(init="none", root="sudo"), Form.WHEELS),
    ]:
        with subtests.test(facts=facts, form=form):
            verdict = judge(facts, DriveRequirements(), NOW)
            assert (verdict.form, verdict.problems) == (form, ())


def test_what_does_not_fit_is_named(subtests: pytest.Subtests) -> None:
    for facts, words in [
        (changed(machine="x86_64"), "its processor is x86_64"),
        (changed(cpu_flags=("fp",)), "no Advanced SIMD"),
        (changed(memory_bytes=2**29), "of DRAM"),
        (changed(folder_free_bytes=10**8), "are free on /"),
        (changed(folder_options=("ro",)), "/ is mounted ro: make it writable"),
        (changed(folder_options=("rw", "noexec")), "make it executable"),
        (changed(root="no", user="me"), "me has no root rights: allow sudo"),
        (changed(tools=()), "it has no tar, gzip, sha256sum, dd, awk"),
        (changed(data_there=False), "data path is not there"),
        (changed(unix_seconds=-86400), "its clock is outside of the years"),
        (changed(pythons=(), kernel=(3, 2), kernel_text="3.2.0"), "its kernel is 3.2.0"),
    ]:
        with subtests.test(facts=facts, words=words):
            verdict = judge(facts, DriveRequirements(), NOW)
            assert verdict.form is None
            assert any(words in problem for problem in verdict.problems), verdict.problems


def test_a_clock_that_is_off_is_told_but_hinders_nothing() -> None:
    verdict = judge(changed(unix_seconds=int(NOW) - 10**8), DriveRequirements(), NOW)
    assert verdict.form is Form.WHEELS
    assert any("off this server's" in note for note in verdict.notes)


@given(st.lists(PYTHONS, max_size=5))
def test_the_newest_python_that_there_is_a_lock_file_for_is_chosen(pythons: list[Python]) -> None:
    needs = DriveRequirements()
    chosen = choose_python(changed(pythons=tuple(pythons)), needs)
    fit = [python.version for python in pythons if python.version[:2] in needs.pythons]
    assert (None if chosen is None else chosen.version) == max(fit, default=None)


def test_facts_are_read_and_what_is_missing_stays_unknown() -> None:
    text = (
        "machine=aarch64\nkernel=4.14.0-xilinx\ncores=4\nclock_khz=1500000\ncpu_flags=fp asimd\nmemory_kib=1024\n"
        "folder_free_kib=2\nfolder_mount=/a b\nfolder_options=rw,noexec\ndata=missing\nlibc=musl 1.2.3\n"
        "python=/usr/bin/python3 3.6.9 64\npython=/usr/bin/python3.6 3.6.9 64\npython=/usr/local/bin/python3 \n"
        "init=systemd 247\nroot=sudo\ntool=tar\ntool=gzip\ndate=1600000000\nend=yes\n"
    )
    facts = parse_facts("csd-00", text)
    assert facts.kernel == (4, 14, 0)
    assert (facts.cores, facts.clock_hz, facts.memory_bytes) == (4, 1.5e9, 2**20)
    assert (facts.folder_free_bytes, facts.folder_mount, facts.folder_options) == (2048, "/a b", ("rw", "noexec"))
    assert (facts.data_there, facts.data_free_bytes, facts.uid) == (False, None, None)
    assert (facts.libc, facts.libc_version) == ("musl", (1, 2, 3))
    assert facts.pythons == (Python("/usr/bin/python3", (3, 6, 9), 64),)
    assert (facts.init, facts.init_version, facts.tools) == ("systemd", "247", ("tar", "gzip"))


@given(st.text(max_size=200))
def test_nonsense_is_refused_or_read_but_never_breaks(text: str) -> None:
    parse_facts("csd-00", text + "\nmachine=aarch64\nend=yes\n")
    with contextlib.suppress(DriveUnfit):
        parse_facts("csd-00", text)


@given(st.data())
def test_a_script_that_was_cut_is_refused(data: st.DataObject) -> None:
    text = "machine=aarch64\ncores=4\nend=yes\n"
    with pytest.raises(DriveUnfit, match="ended before its time"):
        parse_facts("csd-00", text[: data.draw(st.integers(0, len(text) - 6))])


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4), st.sampled_from(["", "-18-arm64", "+", " x"]))
def test_versions(numbers: list[int], rest: str) -> None:
    assert read_version(".".join(map(str, numbers)) + rest) == tuple(numbers)


def test_the_script_is_there_and_is_ascii() -> None:
    assert SCRIPT.read_bytes().isascii()
