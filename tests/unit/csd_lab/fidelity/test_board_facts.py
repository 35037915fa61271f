import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.fidelity.board_facts import BoardFacts, clean_text, is_older, parse_facts
from firmware_agent.common.errors import DriveUnfit

TOOLS = "".join(f"tool={name}\n" for name in ("taskset", "tar", "head", "tail", "tr", "sed", "mktemp"))
HEAD = f"system=Linux\nmachine=aarch64\nkernel=6.1.0\nmodel=Lab Board\nmemory_kib=1000\n{TOOLS}"
END = "python=cp311\ntorch=2.9.1+cpu\nend=yes\n"


def cores(*parts: str, implementer: str = "0x41") -> str:
    return "".join(f"processor={number}\nimplementer={implementer}\npart={part}\n" for number, part in enumerate(parts))


def facts(middle: str) -> BoardFacts:
    return parse_facts("board lab", HEAD + middle + END)


def test_cores_of_other_kinds_are_told_from_cortex_a53() -> None:
    found = facts(cores("0xd03", "0xd03", "0xd08", "0xd03", "0xd08"))
    assert (found.a53_cores, found.other_cores, found.core) == ([0, 1, 3], 2, 3)
    assert (found.model, found.memory_bytes, found.python, found.torch) == ("Lab Board", 1024000, "cp311", "2.9.1+cpu")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + cores("0xd03"), "did not come to its end"),
        ("end=yes\n", "unknown system"),
        (HEAD.replace("aarch64", "armv7l") + cores("0xd03") + END, r"on armv7l; .*64-bit"),
        (HEAD.replace("Linux", "FreeBSD") + cores("0xd03") + END, "runs FreeBSD"),
        (HEAD + cores("0xd08", "0xd0b") + END, r"none of its 2 cores is a Cortex-A53.*part 0xd08"),
        (HEAD + cores("0xd03", implementer="0x51") + END, "none of its 1 cores"),
        (HEAD + END, "/proc/cpuinfo names none"),
        (HEAD.replace("tool=taskset\n", "") + cores("0xd03") + END, "lacks taskset"),
    ],
)
def test_a_board_that_cannot_run_the_programs_says_why(text: str, words: str) -> None:
    with pytest.raises(DriveUnfit, match=words):
        parse_facts("board lab", text)


def test_a_thousand_cores_are_cores_and_nonsense_is_none() -> None:
    assert len(facts(cores(*["0xd03"] * 1000)).a53_cores) == 1000
    found = facts("processor=-1\nimplementer=0x41\npart=0xd03\nprocessor=99999\npart=0xd03\npart=x\n" + cores("d03"))
    assert found.a53_cores == [0]


def test_nonsense_in_single_facts_is_not_believed() -> None:
    found = parse_facts(
        "board lab", f"{HEAD.replace('1000', '-5')}{cores('0xd03')}python=cp3;rm\ntorch=No module\nend=1\n"
    )
    assert (found.memory_bytes, found.python, found.torch, found.torch_problem) == (None, "", "", "No module")
    assert facts(cores("0xd03")).torch_problem == ""


@given(st.text(max_size=300))
def test_texts_of_the_other_side_are_short_and_plain(text: str) -> None:
    cleaned = clean_text(text)
    assert len(cleaned) <= 80
    assert all(32 <= ord(each) < 127 for each in cleaned)


@given(st.binary(max_size=2000))
def test_whatever_a_board_writes_it_is_facts_or_a_refusal(noise: bytes) -> None:
    for text in (noise.decode(errors="replace"), HEAD + noise.decode(errors="replace") + cores("0xd03") + END):
        try:
            found = parse_facts("board lab", text)
        except DriveUnfit:
            continue
        assert found.core in found.a53_cores
        assert len(found.model) <= 80


def test_releases_are_compared_by_number() -> None:
    assert is_older("2.9.1+cpu", "2.10.0")
    assert not is_older("2.10.0", "2.9.1+cpu")
    assert not is_older("2.9.0", "2.9.1")
    assert is_older("nonsense", "2.0.0")
