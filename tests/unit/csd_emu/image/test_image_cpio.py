import stat

from hypothesis import given
from hypothesis import strategies as st

from csd_emu.image.initramfs import Entry, archive


def read(data: bytes) -> dict[str, tuple[int, int, bytes]]:
    """Return path -> (mode, owner, content), in the order of the archive; checks magic and alignment."""
    found: dict[str, tuple[int, int, bytes]] = {}
    at = 0
    while True:
        assert at % 4 == 0
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * index : at + 14 + 8 * index], 16) for index in range(13)]
        mode, owner, size, name_size = fields[1], fields[2], fields[6], fields[11]
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        assert data[at + 110 + name_size - 1] == 0
        start = at + 110 + name_size
        start += -start % 4
        if name == "TRAILER!!!":
            assert start == len(data)
            return found
        assert name not in found
        found[name] = (mode, owner, data[start : start + size])
        at = start + size + -(start + size) % 4


names = st.text("abcxyz.-_0", min_size=1, max_size=6).filter(lambda name: name not in {".", ".."})
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(paths, st.binary(max_size=40), max_size=8))
def test_files_come_back_and_every_parent_comes_first(files: dict[str, bytes]) -> None:
    # A name cannot be a file and a folder.
    files = {path: data for path, data in files.items() if not any(other.startswith(f"{path}/") for other in files)}
    found = read(archive(Entry(path, 0o640, data) for path, data in files.items()))
    order = list(found)
    for path, data in files.items():
        assert found[path] == (stat.S_IFREG | 0o640, 0, data)
        if "/" in path:
            parent = path.rsplit("/", 1)[0]
            assert stat.S_ISDIR(found[parent][0])
            assert order.index(parent) < order.index(path)
    assert sum(stat.S_ISREG(mode) for mode, _, _ in found.values()) == len(files)


def test_a_folder_given_first_keeps_its_mode() -> None:
    found = read(archive([Entry("root", 0o700), Entry("root/key", 0o600, b"k")]))
    assert found["root"][0] == stat.S_IFDIR | 0o700
    assert found["root/key"] == (stat.S_IFREG | 0o600, 0, b"k")
