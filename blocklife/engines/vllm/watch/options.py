"""How to watch, as a caller or the environment says."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping

from attrs import field, frozen

from blocklife.errors import MisuseError


class Mode(enum.Enum):
    """What happens at an illegal step."""

    STRICT = "the call that made it raises"
    COUNT = "it is counted, for metrics"
    LOG = "it is counted, and told in one line of the log"


def _positive(instance: object, attribute: object, value: int) -> None:
    if type(value) is not int or value < 1:
        raise MisuseError(f"sample must be a whole number of at least 1, not {value!r} (one block of so many is followed)")


@frozen(kw_only=True)
class Options:
    """How to watch."""

    mode: Mode = Mode.LOG
    sample: int = field(default=1, validator=_positive)
    """One block of so many is followed."""
    jobs: bool = True
    """Whether there is a ledger behind the watch, which hears of all jobs, so that its tables judge them too, and a state can
    be asked for. No rule needs it, and it costs more than all else. The environment leaves it out, but for a strict watch and a
    recording."""
    record: str = ""
    """Where to write a recording, as `blocklife recording` reads it; ``{pid}`` in it is the process. Empty: nowhere."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options | None:
        """``BLOCKLIFE_WATCH=strict|count|log``, ``BLOCKLIFE_WATCH_SAMPLE=8``, ``BLOCKLIFE_WATCH_RECORD=FILE``; None: no watch.

        Refuses, with MisuseError, what none of them can mean.
        """
        asked = environment.get("BLOCKLIFE_WATCH", "").strip()
        if asked.lower() in ("", "0", "off"):
            return None
        modes = {mode.name.lower(): mode for mode in Mode}
        if asked.lower() not in modes:
            raise MisuseError(f"BLOCKLIFE_WATCH={asked}: it is strict, count or log (or off)")
        sample = environment.get("BLOCKLIFE_WATCH_SAMPLE", "").strip() or "1"
        if not (sample.isascii() and sample.isdecimal()) or not int(sample):
            raise MisuseError(f"BLOCKLIFE_WATCH_SAMPLE={sample}: it is a whole number of at least 1 (one block of so many)")
        mode, record = modes[asked.lower()], environment.get("BLOCKLIFE_WATCH_RECORD", "").strip()
        return cls(mode=mode, sample=int(sample), jobs=mode is Mode.STRICT or bool(record), record=record)
