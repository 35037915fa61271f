from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.archive import write_archive
from firmware_agent.common.errors import ShardError
from firmware_agent.common.identity import IDENTITY, Identity, read_identity, write_identity


@given(identity=st.builds(Identity, unix_seconds=st.floats(0, 1e10)))
def test_an_identity_comes_back_as_it_was_written(identity: Identity, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("identity") / "identity.tar"
    write_identity(path, identity)
    assert read_identity(path) == identity
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"null", b"\xff"])
def test_a_damaged_identity_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.tar"
    write_archive(path, {IDENTITY: content})
    with pytest.raises(ShardError, match=r"identity\.tar: identity\.json cannot be read.*start the device again"):
        read_identity(path)


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    identity = Identity("lab", "csd-00", 1, "127.0.0.1:1", "wall", 1.0, b"e", "ca", "cert", "key")
    fields = msgspec.json.decode(msgspec.json.encode(identity)) | {"password": "x"}
    write_archive(tmp_path / "i.tar", {IDENTITY: msgspec.json.encode(fields)})
    with pytest.raises(ShardError, match="password"):
        read_identity(tmp_path / "i.tar")
