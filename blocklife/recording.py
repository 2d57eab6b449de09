"""A recording: every committed transition as a JSON line, written while it happens.

The first line says what was recorded: ``{"blocklife": "recording", "version": 1, ...}`` with the limits, the contract and the
incarnation of the ledger. Every other line is one transition: ``n`` counts the commits (the places of one batch share it),
``plan`` is the number of the latest plan, ``machine`` and ``id`` name the place, ``epoch`` its life (blocks only), ``event``,
``from``, ``to`` and ``guard`` the row that was taken, ``job`` the job in whose name it happened (absent where there was none).
"""

from __future__ import annotations

import json
from typing import TextIO

import attrs

from blocklife.ledger import Committed, Ledger
from blocklife.states import MACHINES

VERSION = 1


class Recorder:
    """A listener that writes. Errors of the stream (a full disk, say) reach the caller of the verb, after its commit."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
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
        rows = self._rows[record.machine]
        head = f'{{"n":{record.sequence},"plan":{record.plan},"machine":"{record.machine}","id":'
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
