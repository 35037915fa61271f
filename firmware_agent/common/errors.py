"""The error tree of csd-emu.

    CsdError                     anything csd-emu itself reports; the command line exits with `exit_code`
    ├── ConfigurationError       the user's input is wrong; nothing was started (exit code 2)
    │   ├── UnitError            a quantity has the wrong unit or cannot be read
    │   ├── ModelError           a model cannot be found or built
    │   │   └── OptimiserFailed  an optimiser of the user's own failed in a drive
    │   ├── DataError            a data set cannot be found or read
    │   ├── CalibrationError     a calibration table is damaged, does not fit, or is missing
    │   ├── CheckpointError      a checkpoint is damaged, of another job or of another version
    │   └── PluginError          a strategy or tuner of the user's own cannot be found, made or used
    ├── UserCodeFailed           code of the user's failed while a run went on
    │   ├── ModelFailed          the model, on the host
    │   └── PluginFailed         a strategy or tuner of the user's own
    ├── EnvironmentUnfit         the machine lacks something: QEMU, libvirt, disk space, a free port (exit code 2)
    │   └── ImageError           an ARM image cannot be built, or a stored one is damaged
    ├── ShardError               a shard or identity archive does not match its manifest
    ├── ProtocolError            a frame that the wire's rules do not allow
    ├── Diverged                 weights, gradients or losses are no finite numbers any more, or explode
    ├── AgentRefused             the host turned an agent away: identity, incarnation or version
    └── DeviceError              a device did not do what it should
        ├── BootTimeout          a device was not ready before its deadline
        ├── DeviceLost           a device died or its stream ended
        ├── DeviceFailed         a device reports that its task failed
        │   └── DeviceCodeFailed for the user's code: it is a UserCodeFailed too
        ├── ContributionRefused  what a device sent was not believed (see `host.training.screening`)
        ├── DriveUnreachable     a real drive cannot be reached over SSH, or no longer
        │   └── HostKeyRefused   its host key is unknown, or another than the known one
        ├── DriveUnfit           a real drive lacks something that the agent needs, or refuses a command
        └── InstallFailed        an installation on a real drive was not finished; what ran before still runs

A message names the thing, the cause and the remedy.
"""

from __future__ import annotations

MOST_CHARACTERS = 1000


def user_errors() -> tuple[type[BaseException], ...]:
    """Return what the user's code may raise: anything but Ctrl-C. It must not end the program as if all were well.

    Asked for when something is raised: the user's own kind of error, or a library's, may exist only since.
    """
    return tuple(kind for kind in BaseException.__subclasses__() if kind is not KeyboardInterrupt)


def shorten(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text that a peer had a part in, or its beginning and how many characters were left out."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} characters more)"


class CsdError(Exception):
    """Root of every error that csd-emu raises on purpose."""

    exit_code = 1


class ConfigurationError(CsdError):
    """Raised when the user's input is wrong; nothing was started."""

    exit_code = 2


class UnitError(ConfigurationError):
    """Raised when a quantity has the wrong unit or cannot be read."""


class ModelError(ConfigurationError):
    """Raised when a model cannot be found or built."""


class OptimiserFailed(ModelError):
    """Raised in a drive when an optimiser of the user's own failed in a step."""


class DataError(ConfigurationError):
    """Raised when a data set cannot be found or read."""


class CalibrationError(ConfigurationError):
    """Raised when a calibration table is damaged, does not fit, or is missing."""


class CheckpointError(ConfigurationError):
    """Raised when a checkpoint is damaged, of another job or of another version."""


class PluginError(ConfigurationError):
    """Raised when a strategy or tuner of the user's own cannot be found, made or used."""


class RunCancelled(CsdError):
    """Raised when a run was cancelled by whoever had submitted it."""


class UserCodeFailed(CsdError):
    """Raised when code of the user's failed while a run went on.

    Attributes:
        code: what it is: ``model``, ``data set``, ``strategy``, ``optimizer``, ``metric NAME``.
        error: type and message of what it raised; empty if it raised nothing.
        traceback: of that, folded (see `firmware_agent.common.folded_traceback`); empty where the error was raised
            here, and is the cause of this one.
    """

    def __init__(self, message: str, code: str = "model", error: str = "", traceback: str = "") -> None:
        """Name what failed."""
        super().__init__(message)
        self.code, self.error, self.traceback = code, error, traceback


class ModelFailed(UserCodeFailed):
    """Raised when the user's model failed on the host."""


class PluginFailed(UserCodeFailed):
    """Raised when a strategy or tuner of the user's own failed while a run went on."""


class EnvironmentUnfit(CsdError):
    """Raised when the machine lacks something that the command needs."""

    exit_code = 2


class ImageError(EnvironmentUnfit):
    """Raised when an ARM image cannot be built, or a stored one is damaged."""


class ShardError(CsdError):
    """Raised when a shard or identity archive does not match its manifest."""

    exit_code = 2


class ProtocolError(CsdError):
    """Raised when a frame breaks the rules of the wire; of a long message, which may quote the frame, the beginning."""

    def __init__(self, message: str) -> None:
        """Take what is wrong with the frame."""
        super().__init__(shorten(message))


class Diverged(CsdError):
    """Raised when a training diverges on all devices."""


class AgentRefused(CsdError):
    """Raised when the host turns an agent away: identity, incarnation or version."""


class DeviceError(CsdError):
    """Raised when a device did not do what it should."""


class BootTimeout(DeviceError):
    """Raised when a device was not ready before its deadline."""


class DeviceLost(DeviceError):
    """Raised when a device died or its stream ended."""


class DeviceSilent(DeviceLost):
    """Raised when a device sent or took nothing until a deadline."""


class DeviceFailed(DeviceError):
    """Raised when a device reports that its task failed."""


class ContributionRefused(DeviceError):
    """Raised when what a device sent was not believed; `diverging` says that a training that diverges looks so."""

    def __init__(self, message: str, diverging: bool = False) -> None:
        """Tell why."""
        super().__init__(message)
        self.diverging = diverging


class DeviceCodeFailed(DeviceFailed, UserCodeFailed):
    """Raised when a device reports that its task failed for the user's code."""


class DriveUnreachable(DeviceError):
    """Raised when a real drive cannot be reached over SSH, or no longer."""


class HostKeyRefused(DriveUnreachable):
    """Raised when a real drive's host key is unknown, or another than the known one."""


class DriveUnfit(DeviceError):
    """Raised when a real drive lacks something that the agent needs, or refuses a command."""


class InstallFailed(DeviceError):
    """Raised when an installation on a real drive was not finished; what ran before still runs."""


class HealthLogRefused(DeviceError):
    """Raised when a health log of a drive is damaged, another one, or of a version that is not known."""
