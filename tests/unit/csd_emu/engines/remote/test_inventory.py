"""The inventory: layers, what is refused and how, paths."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from csd_emu.engines.remote.drive_layout import DEFAULT_FOLDER
from csd_emu.engines.remote.inventory import DEFAULT_PROFILE, Inventory, Reach, load_inventory
from firmware_agent.common.errors import ConfigurationError

WORDS = st.text("abcdefgh0123456789._", min_size=1, max_size=8)
FOLDERS = st.text("abcdefgh", min_size=1, max_size=8).map("/opt/{}".format)
REACHES = st.fixed_dictionaries(
    {},
    optional={
        "user": WORDS,
        "port": st.integers(1, 65535),
        "key": WORDS,
        "jump": WORDS,
        "folder": FOLDERS,
        "data": FOLDERS.map("/records{}".format),
        "profile": st.sampled_from(["newport", "solana"]),
    },
)


def write(folder: Path, content: Any) -> Path:
    path = folder / "inventory.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def refusal(folder: Path, content: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        load_inventory(write(folder, content))
    text = str(error.value).replace(str(folder / "inventory.yaml"), "FILE")
    assert all(line.startswith("FILE: ") for line in text.splitlines()), text
    return text


@given(st.lists(REACHES, min_size=2, max_size=4), REACHES, REACHES)
def test_a_drives_own_keys_go_before_its_groups_in_their_order_and_these_before_the_defaults(
    groups: list[dict[str, Any]], defaults: dict[str, Any], own: dict[str, Any]
) -> None:
    named = {f"g{number}": group for number, group in enumerate(groups)}
    section = own | {"groups": list(named)}
    content = {"name": "lab", "defaults": defaults, "groups": named, "drives": {"csd-00": section}}
    (drive,) = Inventory.model_validate(content).list_drives()
    usual = {"folder": DEFAULT_FOLDER, "profile": DEFAULT_PROFILE}
    expected = usual
    for layer in (defaults, *reversed(groups), own):
        expected = expected | layer
    assert {key: getattr(drive, key) for key in Reach.model_fields} == dict.fromkeys(Reach.model_fields) | expected
    assert drive.host == "csd-00"


def test_drives_come_in_the_order_of_the_file_and_need_no_key_at_all(tmp_path: Path) -> None:
    text = "name: lab\ndrives:\n  csd-07:\n  csd-01: {host: 10.0.0.1}\n  csd-03:\n"
    drives = load_inventory(write(tmp_path, text)).list_drives()
    assert [(drive.name, drive.host) for drive in drives] == [
        ("csd-07", "csd-07"),
        ("csd-01", "10.0.0.1"),
        ("csd-03", "csd-03"),
    ]


def test_paths_of_this_machine_are_from_the_inventorys_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    content = {
        "name": "lab",
        "defaults": {"key": "keys/id", "ssh_config": "none"},
        "groups": {"rack": {"known_hosts": "~/hosts"}},
        "drives": {"csd-00": {"groups": ["rack"]}, "csd-01": {"key": "/etc/id", "ssh_config": "config"}},
    }
    first, second = load_inventory(write(tmp_path, content)).list_drives()
    assert (first.key, first.known_hosts, first.ssh_config) == (f"{tmp_path}/keys/id", "/home/me/hosts", "none")
    assert (second.key, second.known_hosts, second.ssh_config) == ("/etc/id", None, f"{tmp_path}/config")


def test_a_password_is_refused_wherever_it_is_and_is_not_shown(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for key in ["password", "ssh_pass", "sudo_password", "passphrase", "Password"]:
        for place in ["top", "defaults", "group", "drive"]:
            with subtests.test(place=place, key=key):
                content: dict[str, Any] = {
                    "name": "lab",
                    "defaults": {},
                    "groups": {"rack": {}},
                    "drives": {"csd-00": {}},
                }
                section = {
                    "top": content,
                    "defaults": content["defaults"],
                    "group": content["groups"]["rack"],
                    "drive": content["drives"]["csd-00"],
                }[place]
                section[key] = "hunter2"
                text = refusal(tmp_path, content)
                assert f"{key}: no password belongs into a file" in text
                assert "hunter2" not in text
                assert len(text.splitlines()) == 1


def test_a_mistake_gets_one_line_that_names_it(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for content, words in [
        ({"name": "lab"}, "drives: is missing"),
        ({"name": "lab", "drives": {}}, "drives: there is none; add one"),
        ({"name": "lab", "drives": {"csd-00": {"hots": "a"}}}, "drives.csd-00.hots: unknown key; did you mean 'host'?"),
        (
            {"name": "lab", "groups": {"r": {"usr": "a"}}, "drives": {"csd-00": {}}},
            "groups.r.usr: unknown key; did",
        ),
        ({"name": "lab", "drives": {"Drive_1": {}}}, "drives.Drive_1: must be lower-case letters"),
        ({"name": "Lab", "drives": {"csd-00": {}}}, "name: must be lower-case letters"),
        ({"name": "lab", "drives": {"csd-00": {"port": 0}}}, "drives.csd-00.port: "),
        ({"name": "lab", "drives": {"csd-00": {"host": "-oProxyCommand=x"}}}, "not begin with '-'"),
        ({"name": "lab", "drives": {"csd-00": {"user": "a b"}}}, "must be one word of letters"),
        ({"name": "lab", "drives": {"csd-00": {"jump": "a b"}}}, "'a b' is no jump host; write [user@]host[:port]"),
        ({"name": "lab", "drives": {"csd-00": {"jump": "ok,-x"}}}, "'-x' is no jump host"),
        ({"name": "lab", "drives": {"csd-00": {"folder": "opt"}}}, "drives.csd-00.folder: must be an absolute path"),
        ({"name": "lab", "drives": {"csd-00": {"folder": "/"}}}, "must be an absolute path"),
        ({"name": "lab", "drives": {"csd-00": {"folder": "/opt/../etc"}}}, "without '..'"),
        ({"name": "lab", "drives": {"csd-00": {"folder": "/opt/$(x)"}}}, "must be an absolute path"),
        ({"name": "lab", "drives": {"csd-00": {"profile": "newprot"}}}, "newport"),
        ({"name": "lab", "drives": {"csd-00": {"profile": "xeon-4108"}}}, "not a drive"),
    ]:
        with subtests.test(content=content, words=words):
            text = refusal(tmp_path, content)
            assert words in text
            assert len(text.splitlines()) == 1


def test_an_unknown_group_names_the_nearest_one(tmp_path: Path) -> None:
    content = {"name": "lab", "groups": {"rack-1": {}}, "drives": {"csd-00": {"groups": ["rack1"]}}}
    text = refusal(tmp_path, content)
    assert text == "FILE: drives.csd-00.groups: there is no group 'rack1'; did you mean 'rack-1'?"


@pytest.mark.parametrize("key", ["host", "user", "host_address", "jump"])
@given(
    st.text("ab.-@", max_size=4), st.sampled_from(list(";&|`$(){}<>*?![]~#'\"\\\n\t\0^")), st.text("ab.", max_size=4)
)
def test_what_a_shell_might_read_is_in_no_name_and_no_user(key: str, before: str, mark: str, after: str) -> None:
    """OpenSSH puts them into a ProxyCommand, which a shell runs; older ones do not look at them."""
    section = {key: f"{before}{mark}{after}"}
    with pytest.raises(ValidationError):
        Inventory.model_validate({"name": "lab", "drives": {"csd-00": section}})


@pytest.mark.parametrize(
    "section",
    [
        {"host": "fe80::1%eth0", "user": "dom+user.name", "host_address": "10.0.0.1"},
        {"host": "csd-00.lab", "jump": "admin@server:2222,[fe80::1]:22,other_1"},
    ],
)
def test_names_and_users_as_they_are_go_on_working(section: dict[str, str]) -> None:
    Inventory.model_validate({"name": "lab", "drives": {"csd-00": section}})


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the key 'csd-00' occurs twice"):
        load_inventory(write(tmp_path, "name: lab\ndrives: {csd-00: {host: a}, csd-00: {host: b}}\n"))


@given(st.data())
def test_two_names_for_one_place_are_refused_and_for_two_places_they_are_not(data: st.DataObject) -> None:
    section = {
        "host": data.draw(st.sampled_from(["a", "b"])),
        "port": data.draw(st.sampled_from([22, 2222])),
        "folder": data.draw(st.sampled_from(["/opt/x", "/opt/y"])),
    }
    key = data.draw(st.sampled_from([None, "host", "port"]))
    other = section | ({} if key is None else {key: {"host": "c", "port": 7}[key]})
    content = {"name": "lab", "drives": {"csd-00": section, "csd-01": other}}
    if key is None:
        with pytest.raises(ValueError, match="csd-01: is the same place as csd-00"):
            Inventory.model_validate(content)
    else:
        assert len(Inventory.model_validate(content).list_drives()) == 2


def test_a_hosts_name_is_the_same_in_capitals() -> None:
    content = {"name": "lab", "drives": {"csd-00": {"host": "h.lan"}, "csd-01": {"host": "H.lan"}}}
    with pytest.raises(ValueError, match="is the same place"):
        Inventory.model_validate(content)


def test_port_22_said_and_unsaid_is_one_place() -> None:
    content = {"name": "lab", "drives": {"csd-00": {"host": "a"}, "csd-01": {"host": "a", "port": 22}}}
    with pytest.raises(ValueError, match="is the same place"):
        Inventory.model_validate(content)


@pytest.mark.parametrize("other", [{"host": "SSD.lab"}, {"host": "ssd.lab", "folder": "/srv/other"}])
def test_one_machine_is_one_drive_whatever_its_folder_and_the_case_of_its_name(other: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="one machine is one drive"):
        Inventory.model_validate({"name": "lab", "drives": {"csd-00": {"host": "ssd.lab"}, "csd-01": other}})


@given(FOLDERS, FOLDERS.map("{}/x".format), st.booleans())
def test_records_and_folder_never_lie_in_each_other(folder: str, below: str, swapped: bool) -> None:
    below = folder + below.removeprefix("/opt")
    keys = ("data", "folder") if swapped else ("folder", "data")
    for inner in (folder, below):
        section = dict(zip(keys, (folder, inner), strict=True))
        with pytest.raises(ValueError, match="lies in the other"):
            Inventory.model_validate({"name": "lab", "drives": {"csd-00": section}})
    beside = dict(zip(keys, (folder, f"{folder}-beside"), strict=True))
    assert Inventory.model_validate({"name": "lab", "defaults": beside, "drives": {"csd-00": {}}})


def test_folders_of_the_system_are_refused(subtests: pytest.Subtests) -> None:
    for folder in ["/etc", "/usr", "/usr/bin", "/home", "/root", "/opt", "/proc/x", "/sys/fs", "/dev/shm"]:
        with (
            subtests.test(folder=folder),
            pytest.raises(ValueError, match="belongs to the drive's system; give a folder of its own"),
        ):
            Inventory.model_validate({"name": "lab", "drives": {"csd-00": {"folder": folder}}})
