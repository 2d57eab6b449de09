"""The rules as the kernel asks them: a look-up for each event of blocks and slots, and the effects of each coupling.

Rules of this file:

* Only data: `_tables.py` makes it from `states.py`, and nobody else. What is written here in place is written for all kernels.
"""

from __future__ import annotations

from array import array


class PlaceMove:
    """One event of blocks or slots as a verb takes it: its look-up, and how the counts of each place change with it.

    ``table`` gives the row by ``state << 4 | counts``, where each count of the place (refs, pins, writes, overdue) is one bit,
    set if it is not zero. Guards see the counts as they will be; ``seen_refs`` is 0 where they ask about a life that ends.
    ``ours`` is asked instead for places that are in the life that the caller means. ``looks`` has a bit for each count that is
    looked at. ``code`` is the number of the event in the journal; ``situation`` (`_tables.Situation`) holds for all places.
    """

    def __init__(
        self,
        machine: str,
        event: str,
        code: int,
        situation: int,
        table: bytearray,
        ours: bytearray,
        looks: int,
        refs: int,
        seen_refs: int,
        pins: int,
        writes: int,
        overdue: int,
    ) -> None:
        self.machine, self.event, self.code, self.situation = machine, event, code, situation
        self.of_slots = machine == "slot"
        self.table, self.ours, self.looks = table, ours, looks
        self.refs, self.seen_refs, self.pins, self.writes, self.overdue = refs, seen_refs, pins, writes, overdue


class Rules:
    """Everything that `states.py` says, as bytes.

    ``block_target``, ``block_meaning`` by row, ``block_trait`` by state; of slots, jobs and requests alike. ``job_rows`` and
    ``request_rows`` give the row by ``event << 6 | state << 2 | facts``. ``effects`` has up to eight effects of a job's step
    from ``((cause * 4 + direction) * 16 + state) * 8`` on; ``life_ends``, ``handed_out`` (by ``state * 8``), ``gives_up`` and
    ``resets`` those of the other couplings. ``moves`` has a move for each effect on blocks or slots that is the same for all
    jobs; ``land`` those of a landing block, by ``load * 4 + overdue * 2 + ok``, ``filled`` of a landing slot, by ``ok``.
    """

    def __init__(self) -> None:
        empty = bytearray()
        none = array("H")
        self.block_target, self.block_meaning, self.block_trait = empty, empty, none
        self.slot_target, self.slot_meaning, self.slot_trait = empty, empty, none
        self.job_target, self.job_rows, self.job_trait = empty, empty, none
        self.request_target, self.request_rows, self.request_trait = empty, empty, none
        self.effects, self.life_ends, self.handed_out, self.gives_up, self.resets = empty, empty, empty, empty, empty
        nothing = PlaceMove("", "", 0, 0, empty, empty, 0, 0, 0, 0, 0, 0)
        self.acquire, self.release, self.seal, self.drop = nothing, nothing, nothing, nothing
        self.evict, self.pin, self.unpin, self.forget = nothing, nothing, nothing, nothing
        self.moves: list[PlaceMove] = []
        self.land: list[PlaceMove] = []
        self.filled: list[PlaceMove] = []
        self.hand_out: list[PlaceMove] = []
