"""The log as JSON lines: one object per line on standard error, with run, drive and round."""

from __future__ import annotations

import io
import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger(__name__)

VARIABLE = "CSD_LOG"
_OURS = ("csd_emu", "csd_lab", "firmware_agent", "host")
_ERROR_BEGINS = "csd-emu: "  # so does every message with which a command ends
_context: dict[str, Any] = {"run": None, "round": None}


class LogFormat(StrEnum):
    """What standard error is written in."""

    TEXT = "text"
    JSON = "json"


def log_as_json(errors: Console) -> None:
    """From now on write the log, and all that is said on standard error by way of `errors`, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.getLogger().addHandler(handler)
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.INFO)
    logging.captureWarnings(True)
    errors.file = cast(IO[str], _Messages())
    sys.excepthook = _log_exception


def tell(**context: Any) -> None:
    """Name what lines are about from now on: `run`, the name of its directory, and `round`, the last that ended."""
    _context.update(context)


class JsonLines(logging.Formatter):
    """A log record as one line of JSON.

    Keys: ``time`` (UTC), ``level``, ``logger``, ``run``, ``drive``, ``round`` (null where there is none), ``event`` (of
    a run's events only), ``message``, and ``traceback`` where there is one. Control characters are escaped.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "run": _context["run"],
            "drive": getattr(record, "drive", None),
            "round": getattr(record, "round", _context["round"]),
        }
        if event := getattr(record, "event", None):
            line["event"] = event
        line["message"] = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line)


class _Messages(io.TextIOBase):
    """What takes lines that are meant for people, and logs them."""

    def __init__(self) -> None:
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(None, map(str.strip, lines)):
            log.log(logging.ERROR if line.startswith(_ERROR_BEGINS) else logging.INFO, "%s", line)
        return len(text)


def _log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))
