"""The recorder: every committed transition as a JSON line, written while it happens.

The first line says what was recorded: ``{"blocklife": "recording", "version": 3, ...}`` with the limits, the contract and the
incarnation of the ledger. Every other line is one transition: ``n`` counts the commits (the places of one batch share it),
``of`` says how many lines the commit has, if it has several, ``plan`` is the number of the latest plan, ``machine`` and
``id`` name the place, ``epoch`` its life (blocks only), ``event``, ``from``, ``to`` and ``guard`` the row that was taken,
``job`` the job in whose name it happened (absent if there was none), ``name`` the name of a request. A refused event gets a
line of another kind, and with a clock so does the time. The last line, ``{"blocklife": "end", ...}``, marks a complete run.
`specs/recording.md` describes the whole format.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable, Sequence
from typing import TextIO

import attrs

from blocklife.errors import MisuseError
from blocklife.ledger import Ledger, LedgerTransition, Refusal
from blocklife.lifecycle import Subscription
from blocklife.recording._format import VERSION
from blocklife.states import MACHINES

_LOGGER = logging.getLogger("blocklife.recording")
NAME_MAX = 200
"""The most characters of a name that are written; clients may choose names."""


class BusyError(MisuseError):
    """Another recording is being written to this file, which was not touched."""


def open_file(path: str) -> TextIO:
    """An empty file for one recording, locked until it is closed or its process ends.

    Raises `BusyError` if another recording is being written to it, and `OSError` or ValueError as `open` does. Pipes, devices
    and files on a file system without locks are not locked.
    """
    stream = open(path, "w", encoding="utf-8", opener=_keeping)  # noqa: SIM115 - it is the caller's
    try:
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            _lock(stream, path)
            stream.truncate()
    except BaseException:
        stream.close()
        raise
    return stream


def _keeping(path: str, flags: int) -> int:
    """Opens a file for writing without truncating it before it is locked."""
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


def _lock(stream: TextIO, path: str) -> None:
    """Lock a file. The system removes the lock with the process, so a crashed writer leaves no lock."""
    try:
        import fcntl
    except ImportError:  # a system without these locks
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyError(f"{path}: another recording is being written there (record to another file, or wait)") from None
    except OSError:  # a file system without them
        return


class Recorder:
    """A hook that writes a recording. An error of the stream (for example a full disk) ends the recording and nothing else: it
    is logged, kept in `problem`, and raised by `check` and `end`.

    *clock* returns nanoseconds and never goes back, as `time.monotonic_ns` does. With a clock, a line with the time comes
    before the next transition whenever the clock has advanced.

    *names* returns the outside name of a request, if the ledger uses another one.
    """

    def __init__(
        self, stream: TextIO, clock: Callable[[], int] | None = None, names: Callable[[str], str] | None = None
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._names = names
        self._now = -1
        self._last = 0
        self._lines = 0
        self._subscriptions: list[Subscription[LedgerTransition] | Subscription[Refusal]] = []
        self.problem: Exception | None = None
        """What ended the recording before its end."""
        # The part of a line that depends only on the row is made once: a line costs one format, not one json.dumps.
        self._rows = {
            name: [
                "",
                *(
                    f'"event":"{row.event}","from":"{row.source.name}","to":"{row.target.name}"'
                    + (f',"guard":"{row.guard.name}"' if row.guard else "")
                    for row in table.rows
                ),
            ]
            for name, table in MACHINES.items()
        }

    def begin(self, ledger: Ledger) -> None:
        """Write the head, and listen from now on. Raises an error of the stream."""
        head = {
            "blocklife": "recording",
            "version": VERSION,
            "limits": attrs.asdict(ledger.limits),
            "contract": ledger.contract.name.lower(),
            "incarnation": ledger.incarnation,
        }
        self._stream.write(json.dumps(head, separators=(",", ":")) + "\n")
        self._subscriptions = [ledger.on(hook=self), ledger.on_refusal(self.refused)]

    def __call__(self, record: LedgerTransition) -> None:
        """Write one committed batch."""
        rows, count = self._rows[record.machine], len(record)
        of = f'"of":{count},' if count > 1 else ""
        head = f'{{"n":{record.sequence},{of}"plan":{record.plan},"machine":"{record.machine}","id":'
        close = self._spell_name(record.request) + "}\n" if record.machine == "request" else "}\n"
        tails = [f',"job":{job}{close}' if job else close for job in record.job_of_each()]
        steps = record.steps()
        if record.epochs:
            lines = [
                f'{head}{place},"epoch":{epoch},{rows[row]}{tail}'
                for (place, row), epoch, tail in zip(steps, record.epochs, tails, strict=True)
            ]
        else:
            lines = [f"{head}{place},{rows[row]}{tail}" for (place, row), tail in zip(steps, tails, strict=True)]
        if self._write(lines):
            self._last = record.sequence
            self._lines += count

    def refused(self, refusal: Refusal) -> None:
        """Write a refused event."""
        self._write(
            [
                f'{{"blocklife":"refused","plan":{refusal.plan},"machine":"{refusal.machine}","id":{refusal.place},'
                f'"event":"{refusal.event}","from":"{refusal.state}"{self._spell_name(refusal.name)}}}\n'
            ]
        )

    def _spell_name(self, name: str) -> str:
        """The last key of a line about a request; empty if it has no name."""
        known = self._names(name) if self._names is not None and name else name
        if not known:
            return ""
        return f',"name":{json.dumps(known if len(known) <= NAME_MAX else known[: NAME_MAX - 1] + "…")}'

    def _write(self, lines: Sequence[str]) -> bool:
        """Write some lines, and before them the time if a clock has advanced; False if the recording is over."""
        if self.problem is not None:
            return False
        try:
            if self._clock is not None and (now := self._clock()) > self._now:
                self._now = now
                self._stream.write(f'{{"blocklife":"at","ns":{now}}}\n')
            self._stream.writelines(lines)
        except Exception as problem:
            self.problem = problem
            for each in self._subscriptions:
                each.remove()
            _LOGGER.error("the recording has ended before the run: %s; what was written of it stays", problem)
            return False
        return True

    def check(self) -> None:
        """Raise what ended the recording before its end."""
        if self.problem is not None:
            raise self.problem

    def end(self) -> None:
        """Write the last line, which marks a complete run. Nothing may be recorded after it. Raises an error of the stream."""
        self.check()
        self._stream.write(f'{{"blocklife":"end","n":{self._last},"lines":{self._lines}}}\n')
