"""Reads a run directory, also one of a run that was killed half-way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.config.array_file import MAX_DEVICES, ArrayConfig, DeviceGroup, LinkSection
from csd_emu.perfmodel.host_node import link_of
from csd_emu.perfmodel.timeline import Link
from csd_emu.profiles import PROFILES, Profile
from csd_emu.util.config_files import parse_config
from csd_emu.util.node_names import HOST
from csd_emu.util.yaml_files import load_yaml
from firmware_agent.common.atomic_files import read_file, read_lines
from firmware_agent.common.errors import ConfigurationError, CsdError
from host.core.failures import Failure, FailureRecord
from host.core.owned_files import check_owner
from host.core.partition import HeldRecords
from host.core.records import EventRecord, RoundRecord, decode_record
from host.core.summary import Summary, decode_summary
from host.monitoring.report.competing import explain
from host.monitoring.run_directory import (
    ARRAY_FILE,
    HELD,
    JOB_FILE,
    MOST_BYTES,
    MOST_LINE_BYTES,
    RECORDS_FILE,
    SUMMARY_FILE,
    VERSIONS_FILE,
)
from host.policies.selection.selection_report import SelectionReport, read_plan

# Of an array of all servers' devices; and of a device's name.
_MOST_DEVICES, _MOST_NAME = 36 * MAX_DEVICES, 256

_DAMAGED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True)
class RunData:
    """What a run directory says.

    Attributes:
        path: the run directory.
        rounds: in order; of a round that was done again after a resume, the last record.
        events: in order.
        summary: None if the run did not finish.
        array: array.yaml as resolved.
        job: job.yaml as resolved.
        versions: versions.json.
        devices: name -> name of its profile, for the drives of the array.
        profiles: name -> profile, as the run used them.
        notes: what is missing or must be known, in sentences.
        plan: which devices were chosen to train; None if that was not asked for.
        failures: of the user's code.
        held: what records each drive holds; None in an older directory.
    """

    path: Path
    rounds: list[RoundRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    summary: Summary | None = None
    array: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    plan: SelectionReport | None = None
    failures: list[Failure] = field(default_factory=list)
    held: HeldRecords | None = None

    @property
    def host(self) -> Profile | None:
        """The host's profile; None if the directory names one that is not known here."""
        section = self.array.get("host")
        name = section.get("profile") if isinstance(section, Mapping) else None
        return _known(self.profiles, name if isinstance(name, str) else "xeon-4108")

    def drive_profile(self, device: str) -> Profile | None:
        """Return the profile of a drive; None if the directory does not say."""
        return _known(self.profiles, self.devices.get(device, ""))

    def profile_of(self, device: str) -> str:
        """Return the name of the profile of a drive, or of the host that trains beside the drives, for people."""
        if device == HOST:
            return self.host.name if self.host is not None else "unknown"
        return self.devices.get(device, "unknown")

    def link(self) -> Link | None:
        """Return the host's side of the link, by array file and host profile; None without a host profile."""
        host, written = self.host, self.array.get("link")
        if host is None:
            return None
        return link_of(parse_config(dict(written or {}), LinkSection, f"{self.path / 'array.yaml'}: link"), host)


def check_run_directory(path: Path, trusted: bool = False) -> None:
    """Return if `path` is a run directory (see `load_run`)."""
    check_owner(path, trusted=trusted)
    if not (path / RECORDS_FILE).is_file():
        raise ConfigurationError(
            f"{path}: is no run directory: it has no {RECORDS_FILE}; csd-emu run prints its own's path"
        )


def load_run(path: Path, trusted: bool = False) -> RunData:
    """Read the run directory at `path`, which may be another user's if it is `trusted`; nothing in it is run.

    Raises:
        ConfigurationError: it is no run directory, another user's, or a file in it is damaged; the message names file
            and place.
    """
    check_run_directory(path, trusted)
    notes: list[str] = []
    rounds, events, failures = _read_records(path / RECORDS_FILE, notes)
    summary = _read_summary(path / SUMMARY_FILE, notes)
    array, job = _read_yaml(path / ARRAY_FILE, notes), _read_yaml(path / JOB_FILE, notes)
    versions = _read_versions(path / VERSIONS_FILE, notes)
    devices = _list_devices(path / ARRAY_FILE, array)
    if competing := explain(rounds, events, devices):
        notes.append(competing)
    return RunData(
        path=path,
        rounds=rounds,
        events=events,
        summary=summary,
        array=array,
        job=job,
        versions=versions,
        devices=devices,
        profiles=_read_key(path / VERSIONS_FILE, versions, "profiles", dict[str, Profile]) or {},
        notes=notes,
        plan=_read_plan(path, notes),
        failures=failures if summary is None else summary.failures,
        held=_read_key(path / VERSIONS_FILE, versions, HELD, HeldRecords | None),
    )


def _read_plan(path: Path, notes: list[str]) -> SelectionReport | None:
    try:
        return read_plan(path)
    except CsdError as error:
        notes.append(f"What was planned is left out: {error}.")
        return None


def _read_bytes(path: Path) -> bytes:
    try:
        return read_file(path, MOST_BYTES)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error}); look at its permissions") from error


def _read_records(path: Path, notes: list[str]) -> tuple[list[RoundRecord], list[EventRecord], list[Failure]]:
    rounds: list[RoundRecord] = []
    events: list[EventRecord] = []
    failures: list[Failure] = []
    number = 0
    try:
        for line in read_lines(path, MOST_LINE_BYTES):
            number += 1
            if not line.endswith(b"\n"):
                notes.append(
                    f"The last line of {path.name} was cut short and left out: the run ended while it was written."
                )
                break
            if isinstance(record := decode_record(line), EventRecord):
                events.append(record)
            elif isinstance(record, FailureRecord):
                failures.append(record.failure)
            else:
                # After a resume rounds are done again: what came after the checkpoint does not count.
                rounds = [kept for kept in rounds if kept.round < record.round] + [record]
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error}); look at its permissions and size") from error
    except ValueError as error:
        raise ConfigurationError(
            f"{path}: line {number} is no record ({error}); the file is damaged: remove the line to report the rest"
        ) from error
    return rounds, events, failures


def _read_yaml(path: Path, notes: list[str]) -> dict[str, Any]:
    if not _exists(path, notes):
        return {}
    try:
        content = load_yaml(path)
    except ConfigurationError as error:
        told = str(error).removeprefix(f"{path}: ")
        raise ConfigurationError(f"{path}: is damaged: {told}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path}: is damaged: it must be a mapping of keys to values")
    return content


def _read_versions(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        return msgspec.json.decode(_read_bytes(path), type=dict[str, Any]) if _exists(path, notes) else {}
    except _DAMAGED as error:
        raise ConfigurationError(f"{path}: is damaged ({error}); remove it to report without it") from error


def _exists(path: Path, notes: list[str]) -> bool:
    if not path.exists():
        notes.append(f"There is no {path.name}: the run ended before it was written.")
    return path.exists()


def _read_summary(path: Path, notes: list[str]) -> Summary | None:
    if not path.exists():
        notes.append("The run did not finish: what is shown is what there was until it ended.")
        return None
    try:
        return decode_summary(_read_bytes(path))
    except _DAMAGED as error:
        notes.append(f"{path.name} is damaged and was left out ({error}).")
        return None


def _list_devices(path: Path, array: Mapping[str, Any]) -> dict[str, str]:
    """Return device -> profile. The file is not checked against profiles of this machine: it may be another's."""
    try:
        groups = [DeviceGroup.model_construct(**group) for group in array.get("devices", [])]
        names = [str(name) for group in groups for name in (group.name, *(group.drives or ()))]
        for damage, found in {
            "a group has no profile": any(group.profile is None for group in groups),  # a run writes down every drive's
            "more devices than any servers have": (
                sum(len(group.drives or ()) or max(0, int(group.count)) for group in groups) > _MOST_DEVICES
            ),
            f"a name has more than {_MOST_NAME} characters": any(len(name) > _MOST_NAME for name in names),
        }.items():
            if found:
                raise ValueError(damage)
        listed = ArrayConfig.model_construct(devices=groups).list_devices()
    except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise ConfigurationError(f"{path}: devices: is damaged ({error})") from error
    return {device.name: device.profile for device in listed}


def _read_key(path: Path, versions: Mapping[str, Any], key: str, kind: Any) -> Any:
    """Return what versions.json has under a key, as an object of this kind; None if it has no such key."""
    try:
        return msgspec.convert(versions[key], kind) if key in versions else None
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path}: {key}: is damaged ({error}); remove it to report without it") from error


def _known(profiles: Mapping[str, Profile], name: str) -> Profile | None:
    return profiles.get(name) or PROFILES.get(name)
