"""The recorder: every committed transition as a JSON line, written while it happens.

The first line says what was recorded: ``{"blocklife": "recording", "version": 1, ...}`` with the limits, the contract and the
incarnation of the ledger. Every other line is one transition: ``n`` counts the commits (the places of one batch share it),
``of`` says how many lines the commit has, where it has several, ``plan`` is the number of the latest plan, ``machine`` and
``id`` name the place, ``epoch`` its life (blocks only), ``event``, ``from``, ``to`` and ``guard`` the row that was taken,
``job`` the job in whose name it happened (absent where there was none). The last line, ``{"blocklife": "end", ...}``, says that
nothing is missing. `specs/recording.md` tells the whole format.
"""

from __future__ import annotations

import json
from typing import TextIO

import attrs

from blocklife.ledger import Committed, Ledger
from blocklife.recording.format import VERSION
from blocklife.states import MACHINES


class Recorder:
    """A listener that writes. Errors of the stream (a full disk, say) reach the caller of the verb, after its commit."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = 0
        self._lines = 0
        # The part of a line that only depends on the row is made once: a line costs one format, not one json.dumps.
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
        """Write the head, and listen from now on."""
        head = {
            "blocklife": "recording",
            "version": VERSION,
            "limits": attrs.asdict(ledger.limits),
            "contract": ledger.contract.name.lower(),
            "incarnation": ledger.incarnation,
        }
        self._stream.write(json.dumps(head, separators=(",", ":")) + "\n")
        ledger.listen(self)

    def __call__(self, record: Committed) -> None:
        """Write one committed batch."""
        rows, count = self._rows[record.machine], len(record.ids)
        of = f'"of":{count},' if count > 1 else ""
        head = f'{{"n":{record.sequence},{of}"plan":{record.plan},"machine":"{record.machine}","id":'
        tails = [f',"job":{job}}}\n' if job else "}\n" for job in record.job_of_each()]
        steps = record.steps()
        if record.epochs:
            lines = [
                f'{head}{place},"epoch":{epoch},{rows[row]}{tail}'
                for (place, row), epoch, tail in zip(steps, record.epochs, tails, strict=True)
            ]
        else:
            lines = [f"{head}{place},{rows[row]}{tail}" for (place, row), tail in zip(steps, tails, strict=True)]
        self._stream.writelines(lines)
        self._last = record.sequence
        self._lines += count

    def end(self) -> None:
        """Write the last line: a recording that has it is known to be whole. Nothing may be recorded after it."""
        self._stream.write(f'{{"blocklife":"end","n":{self._last},"lines":{self._lines}}}\n')
