"""The options of the watch, from a caller or from the environment."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen

from blocklife.errors import MisuseError


class RecordError(MisuseError):
    """The requested recording cannot be opened. The plug-in skips what cannot be watched, but raises this error."""


PID = "{pid}"
"""Placeholder for the process id in the path of a recording."""


class WatchMode(enum.Enum):
    """What happens at a violation."""

    STRICT = "the call that made it raises"
    COUNT = "it is counted, for metrics"
    LOG = "it is counted, and logged in one line"


def _is_mode(instance: object, attribute: object, value: object) -> None:
    if not isinstance(value, WatchMode):
        raise MisuseError(f"mode must be WatchMode.STRICT, COUNT or LOG, not {value!r} (import WatchMode with Options)")


def _is_flag(instance: object, attribute: object, value: object) -> None:
    if not isinstance(value, bool):
        raise MisuseError(f"jobs must be True or False, not {value!r} (True keeps a ledger behind the watch)")


def _spelt(record: str | Path | None) -> str:
    if record is not None and not isinstance(record, str | Path):
        raise MisuseError(f"record must be a path, as str or Path, not {record!r} (None or an empty one: no recording)")
    return str(record or "")


def _positive(instance: object, attribute: object, value: int) -> None:
    if type(value) is not int or value < 1:
        raise MisuseError(f"sample must be a whole number of at least 1, not {value!r} (one block of so many is followed)")


@frozen(kw_only=True)
class Options:
    """The options of a watch."""

    mode: WatchMode = field(default=WatchMode.LOG, validator=_is_mode)
    sample: int = field(default=1, validator=_positive)
    """One block in this many is followed."""
    jobs: bool = field(default=True, validator=_is_flag)
    """Whether a ledger follows all jobs, so that its tables check them, too, and states can be queried. No rule needs it, and
    it costs more than all the rest. From the environment it is on only for a strict watch and for a recording."""
    record: str = field(default="", converter=_spelt)
    """Path of a recording for `blocklife recording`; ``{pid}`` in it stands for the process id. Where another engine of the
    process is writing there already, ``.2`` or ``.3`` is appended. Empty: no recording."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options | None:
        """``BLOCKLIFE_WATCH=strict|count|log``, ``BLOCKLIFE_WATCH_SAMPLE=8``, ``BLOCKLIFE_WATCH_RECORD=FILE``; None: no watch.

        Raises MisuseError for other values.
        """
        asked = environment.get("BLOCKLIFE_WATCH", "").strip()
        if asked.lower() in ("", "0", "off"):
            return None
        modes = {mode.name.lower(): mode for mode in WatchMode}
        if asked.lower() not in modes:
            raise MisuseError(f"BLOCKLIFE_WATCH={asked}: it is strict, count or log (or off)")
        sample = environment.get("BLOCKLIFE_WATCH_SAMPLE", "").strip() or "1"
        if not (sample.isascii() and sample.isdecimal()) or not int(sample):
            raise MisuseError(f"BLOCKLIFE_WATCH_SAMPLE={sample}: it is a whole number of at least 1 (one block of so many)")
        mode, record = modes[asked.lower()], environment.get("BLOCKLIFE_WATCH_RECORD", "").strip()
        # Folders that depend on the process are checked only by the process that opens the file; other processes need none.
        if record and PID not in os.path.dirname(record) and (why := unusable(of_this_process(record))):
            raise MisuseError(f"BLOCKLIFE_WATCH_RECORD={record}: {why}")
        return cls(mode=mode, sample=int(sample), jobs=mode is WatchMode.STRICT or bool(record), record=record)


def of_this_process(record: str) -> str:
    """The path of a recording in this process."""
    return record.replace(PID, str(os.getpid()))


def unusable(path: str) -> str:
    """Why no file can be written there, with the remedy; empty if nothing is known to prevent it. Creates nothing."""
    folder = os.path.dirname(path) or os.curdir
    if not os.path.isdir(folder):
        return f"there is no folder {folder} (make it, or name another)"
    return "it is a folder (name a file in it)" if os.path.isdir(path) else ""
