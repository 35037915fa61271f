"""An engine, a fleet that listens for its devices, and the files that a device is started with."""

import secrets
import shutil
import time
from pathlib import Path

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import DevicePlan, Engine, Handle, Surroundings
from csd_emu.util.deadline import Deadline
from firmware_agent.common.archive import list_archive
from firmware_agent.common.handover import IDENTITY_FILE
from firmware_agent.common.identity import Identity, write_identity
from host.config.job_file import DEFAULT_DATA
from host.core.datasets import load_dataset
from host.fleet.admission import ExpectedDevice
from host.fleet.certificates import Authority, HostKeys
from host.fleet.fleet import Fleet
from host.fleet.shards import ShardRecord, write_shards

READY_SECONDS = 240.0


class Laboratory:
    """One array's devices on one engine; everything that an `up` fixes beforehand, one piece at a time."""

    def __init__(self, engine: Engine, config: ArrayConfig, folder: Path) -> None:
        self.engine, self.config, self._folder = engine, config, folder
        self._authority = Authority(config.name)
        self.devices = config.list_nodes()
        # A host that trains needs public records.
        data = DEFAULT_DATA.model_copy(update={"private": 0.5}) if config.host.trains else DEFAULT_DATA
        self._records: list[ShardRecord] = write_shards(
            self.devices, data, 0, folder / "devices", load_dataset(data.source, 0)
        )

    def fleet(self) -> Fleet:
        keys = HostKeys(self._authority.ca_pem, self._authority.issue_host())
        pairs = zip(self.devices, self._records, strict=True)
        return Fleet({device.name: ExpectedDevice(1, record.manifest_sha256) for device, record in pairs}, keys, 0)

    def around(self, number: int) -> Surroundings:
        return self.engine.surroundings(self.devices[number])

    def plan(self, number: int, port: int, incarnation: int = 1) -> DevicePlan:
        """Write the identity of a device that will dial `port` on the host's loopback interface."""
        device, record = self.devices[number], self._records[number]
        credential = self._authority.issue_device(device.name)
        identity = Identity(
            array=self.config.name,
            device=device.name,
            incarnation=incarnation,
            host_address=f"{self.around(number).host_address}:{port}",
            clock=self.around(number).clock,
            unix_seconds=time.time(),
            entropy=secrets.token_bytes(64),
            ca_pem=self._authority.ca_pem,
            certificate_pem=credential.certificate_pem,
            key_pem=credential.key_pem,
        )
        folder = record.path.parent
        write_identity(folder / IDENTITY_FILE, identity)
        return DevicePlan(self.config.name, "contract", device, folder, record.path, folder / IDENTITY_FILE)

    def corrupt_shard(self, number: int) -> None:
        """Flip one bit of an image."""
        path = self._records[number].path
        member = list_archive(path)["image.npy"]
        with open(path, "r+b") as stream:
            stream.seek(member.offset + member.size // 2)
            byte = stream.read(1)[0]
            stream.seek(-1, 1)
            stream.write(bytes([byte ^ 1]))

    async def ready(self, handle: Handle, fleet: Fleet) -> None:
        await self.engine.wait_ready(handle, fleet.joined(handle.plan.device.name), Deadline(READY_SECONDS))

    def clear(self) -> None:
        self.engine.sweep(self.config.name)
        shutil.rmtree(self._folder / "devices", ignore_errors=True)
