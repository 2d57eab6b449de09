"""The options of the watch, from a caller or from the environment."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from attrs import field, frozen

from blocklife.errors import MisuseError

ReadT = TypeVar("ReadT")

PID = "{pid}"
"""Placeholder for the process id in the path of a recording."""
SAMPLE_MAX = (1 << 31) - 1
"""The largest sample: one block of as many as a ledger can have."""


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


def _sampled(instance: object, attribute: object, value: object) -> None:
    if type(value) is not int or not 1 <= value <= SAMPLE_MAX:
        is_huge = isinstance(value, int) and value.bit_length() > 64  # Python prints no number of thousands of digits
        given = "one of more than 64 bits" if is_huge else repr(value)
        raise MisuseError(
            f"sample must be a whole number from 1 to {SAMPLE_MAX}, not {given} (one block of so many is followed)"
        )


@frozen(kw_only=True)
class Options:
    """The options of a watch."""

    mode: WatchMode = field(default=WatchMode.LOG, validator=_is_mode)
    sample: int = field(default=1, validator=_sampled)
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
        mode = setting("BLOCKLIFE_WATCH", _mode, environment)
        if mode is None:
            return None
        sample = setting("BLOCKLIFE_WATCH_SAMPLE", _sample, environment)
        record = setting("BLOCKLIFE_WATCH_RECORD", _record, environment)
        return cls(mode=mode, sample=sample, jobs=mode is WatchMode.STRICT or bool(record), record=record)


def setting(name: str, read: Callable[[str], ReadT], environment: Mapping[str, str] = os.environ) -> ReadT:
    """What a variable of the environment asks for; *read* gets an empty text where it is not set.

    A `ValueError` of *read* says what is wrong with the text; it becomes a MisuseError that names the variable and its value.
    """
    text = environment.get(name, "").strip()
    try:
        return read(text)
    except ValueError as problem:
        raise MisuseError(f"{name}={text}: {problem}") from None


def _mode(text: str) -> WatchMode | None:
    modes = {mode.name.lower(): mode for mode in WatchMode}
    if text.lower() in ("", "0", "off"):
        return None
    if text.lower() not in modes:
        raise ValueError("it is strict, count or log (or off)")
    return modes[text.lower()]


def _sample(text: str) -> int:
    text = text or "1"
    is_plain = text.isascii() and text.isdecimal() and len(text) <= len(str(SAMPLE_MAX))
    if not is_plain or not 1 <= int(text) <= SAMPLE_MAX:
        raise ValueError(f"it is a whole number from 1 to {SAMPLE_MAX} (one block of so many)")
    return int(text)


def _record(text: str) -> str:
    # Folders that depend on the process are checked only by the process that opens the file; other processes need none.
    if text and PID not in os.path.dirname(text) and (why := unusable(of_this_process(text))):
        raise ValueError(why)
    return text


def of_this_process(record: str) -> str:
    """The path of a recording in this process."""
    return record.replace(PID, str(os.getpid()))


def unusable(path: str) -> str:
    """Why no file can be written there, with the remedy; empty if nothing is known to prevent it. Creates nothing."""
    folder = os.path.dirname(path) or os.curdir
    if not os.path.isdir(folder):
        return f"there is no folder {folder} (make it, or name another)"
    return "it is a folder (name a file in it)" if os.path.isdir(path) else ""
