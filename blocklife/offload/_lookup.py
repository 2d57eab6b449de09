"""Lookup: the longest prefix that is a hit in all groups.

Rules of this file:

* A pure function of the answers it gets: it knows no ledger, tier or keys, and pins nothing.
* It only finds a length. What the scheduler does with a deferred hit, or a hit on the whole prompt, is not decided here.
* The result does not depend on the order of the scan: it is the longest length in (start, limit] that is a multiple of every
  group's unit and for which everything it reads is a hit; ``start`` if there is none.

What a hit of some length reads: in a full group everything after ``start``; in a sliding group the last ``window`` units, or
with local attention the part in which it ends, as far as they lie after ``start``. What lies before is on the device already.
Of the unit that contains ``start``, only the part after it is read. In a group with layers of a drafter, the unit behind the
hit is its proof: it must be known, though nothing of it is read.

How answers count:

* PENDING is a hit, and the result is deferred if it reads one. Pending units to the right of a gap do not matter, and nothing
  of a proof is read.
* RETRY in a full group is the same, also as a proof. In a sliding group it is a miss; the result is deferred only if it would
  be longer with every RETRY a hit.

Method: if a length is a hit in a full group, so are all shorter ones; so each full group is scanned once, from left to right.
Sliding groups lack this property; each is asked for the longest length up to the current one, the largest window first, until
none shortens it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from math import lcm
from typing import TypeAlias, overload

from attrs import field, frozen
from attrs.validators import optional

from blocklife.errors import MisuseError


class Answer(enum.Enum):
    """What is known about one unit of one group. ``code`` is its number: a scan compares numbers."""

    HIT = "it can be read now"
    MISS = "it is not there"
    PENDING = "it is on its way"
    RETRY = "nobody knows yet; ask again"
    UNKNOWN = "nobody can say; it counts as a miss"

    def __init__(self, _meaning: str) -> None:
        self.code = len(type(self).__members__)


_HIT, _MISS, _PENDING, _RETRY = Answer.HIT.code, Answer.MISS.code, Answer.PENDING.code, Answer.RETRY.code

Ask: TypeAlias = Callable[[int, int, int], Answer]
"""Group, index of the unit, and how many of its trailing blocks would be read; 0 for a proof, which may lie behind the limit.

With fewer blocks to read an answer must not be worse (HIT or PENDING, then RETRY, then MISS), or a hit may be missed.
"""


class Answers:
    """Who answers the questions of a scan; the arguments of `ask` are those of `Ask`, and a subclass knows the answers."""

    def ask(self, group: int, unit: int, blocks: int) -> int:
        """What is known of a unit, as the `Answer.code`."""
        raise NotImplementedError


class ToldAnswers(Answers):
    """The answers of a function."""

    def __init__(self, function: Ask) -> None:
        self._function = function

    def ask(self, group: int, unit: int, blocks: int) -> int:
        """What the function says."""
        return self._function(group, unit, blocks).code


def _whole(instance: object, attribute: object, value: int) -> None:
    name = getattr(attribute, "name", "value")
    if type(value) is not int or value < 0:
        raise MisuseError(f"{name} of a unit must be a whole number of at least 0, not {value!r}")


@frozen
class Unit:
    """One group in the units of a scan: blocks on the device, chunks in the host tier."""

    tokens: int = field(validator=_whole)
    """Tokens of a unit."""
    window: int | None = field(validator=optional(_whole))
    """Number of units before its end that a hit needs; None for all, 0 for none."""
    tail: int = field(validator=_whole)
    """Number of trailing blocks read of the first unit of a window; unused in a full group."""
    size: int = field(validator=_whole)
    """Blocks of a unit."""
    proof: bool = False
    """Whether a hit needs the unit behind it as its proof."""
    part: int = field(default=0, validator=_whole)
    """With local attention the tokens of a part: a hit needs what lies between the beginning of its part and its end, which is
    at most ``window`` units; 0 for other kinds."""
    again: int = field(default=0, validator=_whole)
    """With local attention the tokens of a hit that are computed again: the part is that of the first of them."""

    def __attrs_post_init__(self) -> None:
        if self.size < 1 or self.tokens < 1 or self.tokens % self.size:
            raise MisuseError(f"a unit of {self.tokens} tokens cannot have {self.size} blocks of equal size")
        if self.tail > self.size or (self.tail == 0 and self.window):
            raise MisuseError(f"tail of a unit must be 1 to {self.size}, its size in blocks, not {self.tail}")


class Units(Sequence[Unit]):
    """The groups of a model in the form that lookups use; built once.

    ``all`` are the units, by group; every length is a multiple of ``alignment``; ``full`` are the groups that need the whole
    prefix, ``windows`` the sliding ones, the largest window first.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        if not units:
            raise MisuseError("a lookup needs at least 1 unit, not 0")
        self.all = tuple(units)
        self.alignment = lcm(*[unit.tokens for unit in units])
        self.full = [group for group, unit in enumerate(units) if unit.window is None]
        spans = [
            (unit.window * unit.tokens, group)
            for group, unit in enumerate(units)
            if unit.window is not None and (unit.window or unit.proof)
        ]
        self.windows = [group for _, group in sorted(spans, key=lambda span: -span[0])]

    def __len__(self) -> int:
        return len(self.all)

    @overload
    def __getitem__(self, group: int, /) -> Unit: ...
    @overload
    def __getitem__(self, group: slice, /) -> tuple[Unit, ...]: ...
    def __getitem__(self, group: int | slice, /) -> Unit | tuple[Unit, ...]:
        return self.all[group]


@frozen
class Found:
    """The result of a lookup."""

    length: int
    """Length of the hit in tokens, including those before ``start``; equal to ``start`` for a miss."""
    deferred: bool
    """Whether it depends on content that is still being copied, or may be longer soon."""
    rounds: int
    """Number of passes over the sliding groups."""


class _Run:
    """The last length that is a hit in a sliding group, and the kinds of answers among the units it reads."""

    def __init__(self, length: int, pending: bool, retry: bool) -> None:
        self.length, self.pending, self.retry = length, pending, retry


class _Runs:
    """The latest run of each sliding group."""

    def __init__(self) -> None:
        self.by_group: dict[int, _Run] = {}

    def agrees(self, group: int, length: int) -> bool:
        """Whether a group was asked last about exactly this length, and has it."""
        run = self.by_group.get(group)
        return run is not None and run.length == length

    def all_agree(self, groups: Sequence[int], length: int) -> bool:
        """Whether all of these do."""
        for group in groups:  # noqa: SIM110 - a generator costs more than the loop
            if not self.agrees(group, length):
                return False
        return True

    def read_pending(self) -> bool:
        """Whether a run reads content that is on its way."""
        return True in [run.pending for run in self.by_group.values()]

    def read_retry(self) -> bool:
        """Whether a run reads content of which nobody knows yet."""
        return True in [run.retry for run in self.by_group.values()]

    def reset_retries(self) -> None:
        """Ask the groups of those runs again."""
        self.by_group = {group: run for group, run in self.by_group.items() if not run.retry}


def common_length(units: Sequence[Unit], start: int, limit: int, ask: Ask | Answers, *, max_rounds: int = 16) -> Found:
    """The longest length in (*start*, *limit*] tokens that is a hit in all groups; *start* if there is none.

    *start* is the length of the hit on the device; units that end there or before are not looked up. If the groups still
    disagree after *max_rounds* passes over the sliding ones, the result is a miss, and is not deferred.
    Raises MisuseError for a call without units, without rounds, or with a negative start.
    """
    if start < 0 or max_rounds < 1:
        name, value, least = ("start", start, 0) if start < 0 else ("max_rounds", max_rounds, 1)
        raise MisuseError(f"a lookup needs {name} of at least {least}, not {value}")
    shape = units if type(units) is Units else Units(units)
    answers = ask if isinstance(ask, Answers) else ToldAnswers(ask)
    scan, windows = _Scan(shape.all, start, shape.alignment, answers), shape.windows
    length = doubtful = limit - limit % shape.alignment
    for group in shape.full:
        length, doubt = scan.prefix(group, length)
        doubtful = min(doubtful, doubt)
    runs = _Runs()
    rounds = 0
    while length > start and windows:
        if not runs.all_agree(windows, length):
            if rounds == max_rounds:
                return Found(start, False, rounds)
            rounds += 1
            for group in windows:
                # A group that agreed on exactly this length is not asked again.
                if length > start and not runs.agrees(group, length):
                    run = runs.by_group[group] = scan.suffix(group, length)
                    length = run.length
        elif scan.hopeful and runs.read_retry():
            # With every RETRY as a hit, this length may be found later. Now count only what is there.
            scan.hopeful = False
            runs.reset_retries()
        else:
            return Found(length, not scan.hopeful or doubtful < length or runs.read_pending(), rounds)
    if length > start:
        return Found(length, doubtful < length, rounds)
    return Found(start, not scan.hopeful, rounds)


class _Scan:
    """The scan of one lookup. Lengths and positions are in tokens; lengths are multiples of ``alignment``.

    ``hopeful``: whether RETRY counts as a hit in a sliding group.
    """

    def __init__(self, units: tuple[Unit, ...], start: int, alignment: int, answers: Answers) -> None:
        self.units, self.start, self.alignment, self.answers, self.hopeful = units, start, alignment, answers, True

    def blocks_behind(self, unit: Unit) -> int:
        """How many blocks of the unit that contains ``start`` lie after it, the block that contains it included."""
        tokens, size = unit.tokens, unit.size
        return -(-(tokens - self.start % tokens) // (tokens // size))

    def prefix(self, group: int, length: int) -> tuple[int, int]:
        """The longest hit up to *length* in a full group, and where its first unit begins that is PENDING or RETRY."""
        unit, answers, doubtful = self.units[group], self.answers, length
        tokens, size = unit.tokens, unit.size
        blocks = self.blocks_behind(unit) if self.start else size
        for index in range(self.start // tokens, length // tokens):
            answer = answers.ask(group, index, blocks)
            blocks = size  # only the first unit can begin before the start
            if answer != _HIT:
                if answer == _MISS:
                    length = index * tokens
                    length -= length % self.alignment
                    break
                doubtful = min(doubtful, index * tokens)
                if answer == _RETRY and unit.proof and index * tokens > self.start and answers.ask(group, index, 0) == _RETRY:
                    doubtful = min(doubtful, index * tokens - 1)  # it is in doubt as a proof, too
        return self.proven(group, length, doubtful) if unit.proof else (length, doubtful)

    def proven(self, group: int, length: int, doubtful: int) -> tuple[int, int]:
        """The same in a group with a drafter: the longest of these lengths with a proof. A unit that is read is one as well."""
        tokens = self.units[group].tokens
        while length > self.start:
            answer = self.answers.ask(group, length // tokens, 0)
            if answer != _MISS:
                return length, min(doubtful, length - 1) if answer == _RETRY else doubtful
            length -= self.alignment
        return length, doubtful

    def of_part(self, unit: Unit, length: int) -> tuple[int, int]:
        """The units of a part up to *length* in local attention, and how many blocks of the first of them belong to it."""
        first = (length - unit.again) // unit.part * unit.part // (unit.tokens // unit.size)
        blocks = length // unit.tokens * unit.size - first
        window = -(-blocks // unit.size)
        return window, blocks - (window - 1) * unit.size

    def suffix(self, group: int, length: int) -> _Run:
        """The longest hit up to *length* in a sliding group. No unit is looked up twice, except as a proof."""
        unit, start = self.units[group], self.start
        tokens, size, window, tail = unit.tokens, unit.size, unit.window or 0, unit.tail
        first = start // tokens
        while length > start:
            end, pending, retry = length // tokens, False, False
            if unit.part:
                window, tail = self.of_part(unit, length)
            if unit.proof:
                answer = self.answers.ask(group, end, 0)
                if answer == _MISS or (answer == _RETRY and not self.hopeful):
                    length -= self.alignment
                    continue
                retry = answer == _RETRY
            least = max(end - window, first)
            for index in range(end - 1, least - 1, -1):
                blocks = tail if index == end - window else size
                if index == first:
                    blocks = min(blocks, self.blocks_behind(unit))
                answer = self.answers.ask(group, index, blocks)
                if answer == _MISS or (answer == _RETRY and not self.hopeful):
                    # Every length in between reads this unit, and at least as many of its blocks.
                    length = index * tokens - index * tokens % self.alignment
                    break
                pending = pending or answer == _PENDING
                retry = retry or answer == _RETRY
            else:
                return _Run(length, pending, retry)
        return _Run(length, False, False)
