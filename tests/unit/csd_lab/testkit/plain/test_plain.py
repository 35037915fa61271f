"""Plain machines: what is decided before anything boots."""

import contextlib
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.engines.remote.inventory import DriveSection
from csd_emu.image.initramfs import KeyPair
from csd_lab.testkit.plain import load_plain_recipe, plain_names
from csd_lab.testkit.plain.machine_images import host_key_file, load_order
from firmware_agent.common.errors import ConfigurationError, ImageError
from tests.targets import TcpProxy


@pytest.mark.parametrize("name", plain_names())
def test_every_recipe_can_be_read_and_names_overlays_that_are_there(name: str) -> None:
    recipe = load_plain_recipe(name)
    assert recipe.overlay_folders
    assert all(folder.is_dir() for folder in recipe.overlay_folders)
    assert recipe.ssh_server in ("openssh", "dropbear")
    assert not {"firmware_agent", "torch"} & set(recipe.install)


def test_hashes_tell_recipes_apart() -> None:
    assert len({load_plain_recipe(name).hash for name in plain_names()}) == len(plain_names())


def test_a_recipe_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"'squeeze' is not known; choose one of: armhf, bare"):
        load_plain_recipe("squeeze")


@given(st.lists(st.sets(st.integers(0, 9), max_size=4), min_size=10, max_size=10), st.data())
def test_modules_come_after_what_they_rest_on(below: list[set[int]], data: st.DataObject) -> None:
    # A module rests on those with lower numbers only, so there is an order.
    rests_on = {number: {other for other in others if other < number} for number, others in enumerate(below)}
    wanted = data.draw(st.lists(st.sampled_from(range(10)), min_size=1, unique=True))
    order = [int(path.stem[1:]) for path in _order(rests_on, [f"m{number}" for number in wanted])]
    assert set(wanted) <= set(order)
    assert len(set(order)) == len(order)
    for place, number in enumerate(order):
        assert rests_on[number] <= set(order[:place])


def _order(rests_on: dict[int, set[int]], wanted: list[str]) -> list[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [f"kernel/m{one}.ko: {' '.join(f'kernel/m{two}.ko' for two in rests_on[one])}" for one in rests_on]
        (folder / "modules.dep").write_text("\n".join(lines) + "\n")
        (folder / "modules.builtin").write_text("kernel/ext-four.ko\n")
        return load_order(folder, wanted)


def test_what_is_built_in_is_not_loaded_and_what_is_nowhere_is_named() -> None:
    assert _order({0: set()}, ["ext_four", "ext-four"]) == []
    with pytest.raises(ImageError, match="has no module zfs"):
        _order({0: set()}, ["zfs"])


def test_a_dropbear_key_holds_both_halves_of_the_pair() -> None:
    pair = KeyPair.make()
    written = host_key_file(load_plain_recipe("bare"), pair)
    (kind,) = struct.unpack(">I", written[:4])
    assert written[4 : 4 + kind] == b"ssh-ed25519"
    (length,) = struct.unpack(">I", written[4 + kind : 8 + kind])
    halves = written[8 + kind :]
    public = serialization.load_ssh_public_key(pair.public).public_bytes_raw()  # type: ignore[union-attr]
    assert (length, len(halves), halves[32:]) == (64, 64, public)
    assert host_key_file(load_plain_recipe("bookworm"), pair) == pair.private


def test_an_inventory_takes_what_a_machine_says_of_itself() -> None:
    entry = {"host": "127.0.0.1", "port": 2222, "user": "root", "key": "/k", "known_hosts": "/h", "ssh_config": "none"}
    assert DriveSection.model_validate(entry).port == 2222


@pytest.fixture
def echo() -> Iterator[TcpProxy]:
    """A proxy in front of a server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    while piece := connection.recv(65536):
                        connection.sendall(piece)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    proxy = TcpProxy(listener.getsockname()[1])
    yield proxy
    proxy.close()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def talk(proxy: TcpProxy, message: bytes) -> bytes:
    """Send a message and return what came back, however the connection ended."""
    said = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as connection:
        connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            said += piece
    return said


def test_a_proxy_hands_on_every_byte(echo: TcpProxy) -> None:
    message = bytes(range(256)) * 1000
    assert talk(echo, message) == message
    assert echo.sent_bytes == len(message)


def test_a_proxy_cuts_once_and_then_works_again(echo: TcpProxy) -> None:
    echo.cut_after(100_000)
    assert len(talk(echo, bytes(500_000))) <= 100_000
    assert echo.cuts == 1
    assert talk(echo, b"again") == b"again"


def test_a_proxy_refuses_until_it_is_healed(echo: TcpProxy) -> None:
    echo.cut()
    assert talk(echo, b"x") == b""
    echo.heal()
    assert talk(echo, b"x") == b"x"
