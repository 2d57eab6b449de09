"""The format of a recording: its head, its lines in their canonical spelling, and reading a file in large pieces.

Rules of this file:

* Nothing here checks what is legal. A line that cannot be read is *damaged*; whether a readable line is legal is checked
  elsewhere.
* A line of another writer may have its keys in any order, with any white space; it takes longer to read.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, NamedTuple, TypeVar

from attrs import field, frozen

from blocklife.errors import MisuseError
from blocklife.ledger import Contract
from blocklife.states import MACHINES, ends_life

VERSION = 3
"""Version of the format; `read_head` refuses any other."""

CHUNK_BYTES = 1 << 20
NUMBER_MAX = (1 << 62) - 1
"""Larger numbers do not fit a column, and do not occur."""
LINE_BYTES_MAX = 1 << 16
"""The limit of a line's length; no legal line is as long."""
WINDOW_BYTES = 32 << 20
"""How much of a pipe, which cannot be read twice, is kept for the history of a place."""

_NUMBER = r"(0|[1-9]\d{0,17})"
_NAME = r'"(?:[ !#-\[\]-~]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
"""A text as the recorder writes it: ASCII."""
_LINE = re.compile(
    rf'\{{"n":{_NUMBER},(?:"of":{_NUMBER},)?"plan":{_NUMBER},"machine":"(\w+)","id":{_NUMBER}(?:,"epoch":{_NUMBER})?,'
    rf'"event":"(\w+)","from":"(\w+)","to":"(\w+)"(?:,"guard":"(\w+)")?(?:,"job":{_NUMBER})?(?:,"name":({_NAME}))?\}}',
    re.ASCII,
)
"""A line as the recorder writes it: several times faster to read than JSON in general."""
NAME_SHOWN = 48
"""Characters of a name that are displayed; names equal up to here are distinguished by their rows."""
_KEYS = ("num_blocks", "num_slots", "max_jobs", "max_requests", "num_workers")


Value = TypeVar("Value")


class DamagedError(Exception):
    """A line that cannot be read; the message says what is wrong with it.

    ``cut`` says that it may be the beginning of a readable line.
    """

    def __init__(self, problem: str, *, cut: bool = False) -> None:
        super().__init__(problem)
        self.cut = cut


@frozen
class Head:
    """The fields of the first line that a check needs."""

    num_blocks: int
    num_slots: int
    max_jobs: int
    max_requests: int
    num_workers: int
    fence: bool

    def ids(self, machine: str) -> range:
        """The places that a machine may have."""
        sizes = {"block": (1, self.num_blocks), "slot": (0, self.num_slots), "request": (0, self.max_requests)}
        return range(*sizes.get(machine, (1, 1 << 63)))


@frozen
class End:
    """The last line: the recording is complete."""

    n: int
    lines: int


@frozen
class At:
    """A line with a time: the steps from here on happened at ``ns`` nanoseconds, by a monotonic clock."""

    ns: int


@frozen
class Refused:
    """A line for a refused event; nothing has changed."""

    plan: int
    machine: str
    id: int
    event: str
    state: str
    """The state of the place."""
    name: str | None = None
    """The name of the request."""

    def __str__(self) -> str:
        return f"plan {self.plan}: {self.machine} {self.id} is {self.state}, and {self.event} is refused"


def read_head(name: str, line: str) -> Head:
    """Read the first line. Raises `MisuseError` if this is not a recording, or not one that can be checked."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or said.get("blocklife") != "recording":
        raise MisuseError(f"{name}: its first line is not the head of a recording (write one with blocklife replay --record)")
    if said.get("version") != VERSION or type(said["version"]) is not int:
        raise MisuseError(f"{name}: it is of version {_said(said.get('version'))}, but only {VERSION} is read (record again)")
    limits = said.get("limits")
    if not isinstance(limits, dict):
        raise MisuseError(f"{name}: its head has no limits (write those of the ledger)")
    for key in _KEYS:
        if type(limits.get(key)) is not int or limits[key] < 1:
            raise MisuseError(f"{name}: {key} of its limits must be a whole number of at least 1, not {_said(limits.get(key))}")
    contracts = [contract.name.lower() for contract in Contract]
    if said.get("contract") not in contracts:
        raise MisuseError(f"{name}: its contract must be {' or '.join(contracts)}, not {_said(said.get('contract'))}")
    return Head(fence=said["contract"] == Contract.FENCE.name.lower(), **{key: limits[key] for key in _KEYS})


def _said(value: object) -> str:
    """A value of a line, shortened; a nested value may be too deep to be written out."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value)[:40]


# --- lines -------------------------------------------------------------------------------------------------------------


JOINS = {
    ("block", "plan_store"): "store",
    ("block", "plan_load"): "load",
    ("slot", "pin"): "demote",
    ("slot", "reserve"): "promote",
}
"""The steps that reserve a place for a job, with the kind of the job if it is the first."""
_NAMED = {
    "block": frozenset({"plan_store", "plan_load", "submit", "cancel", "land", "expire"}),
    "slot": frozenset({"reserve", "cancel", "land", "expire"}),
    "request": frozenset({"plan_load", "loaded"}),
}
"""Events that happen in the name of a job, besides those of jobs. The others never do, except for these:"""
_EITHER = frozenset({("slot", "pin"), ("slot", "unpin"), ("slot", "drop")})


@frozen(cache_hash=True)
class StepKind:
    """A row as recorded. ``row`` is its number in the table; 0 if the table has no such row."""

    machine: str
    event: str
    source: str
    target: str
    guard: str | None
    row: int
    ends: bool = field(init=False, eq=False)
    """Whether it ends the life of a block."""
    names_job: bool | None = field(init=False, eq=False)
    """Whether its lines must name a job; None if they may."""
    joins: str = field(init=False, eq=False)
    """What kind of job it reserves a place for, if that is the first of the job; empty if it reserves none."""

    @ends.default
    def _ends(self) -> bool:
        return self.machine == "block" and self.row > 0 and ends_life(MACHINES["block"].row(self.row))

    @names_job.default
    def _names_job(self) -> bool | None:
        step = self.machine, self.event
        return None if step in _EITHER else self.machine == "job" or self.event in _NAMED.get(self.machine, ())

    @joins.default
    def _joins(self) -> str:
        return JOINS.get((self.machine, self.event), "")

    def __str__(self) -> str:
        condition = "" if self.guard is None else f" [{self.guard}]"
        return f"{self.source} --{self.event}{condition}--> {self.target}"


def _table_kinds() -> Iterator[StepKind]:
    for name, table in MACHINES.items():
        for row in table.rows:
            yield StepKind(name, row.event, row.source.name, row.target.name, row.guard.name if row.guard else None, row.index)


_KINDS = {(each.machine, each.event, each.source, each.target, each.guard): each for each in _table_kinds()}


class Line(NamedTuple):
    """One transition, as it was written."""

    n: int
    of: int | None
    plan: int
    id: int
    epoch: int | None
    kind: StepKind
    job: int | None
    name: str | None = None
    """The name of the request, if the line has it; clients choose it."""

    def __str__(self) -> str:
        job = "" if self.job is None else f" (job {self.job})"
        return f"plan {self.plan}: {self.kind}{job}"


def show_name(name: str) -> str:
    """A name that any terminal or page can show: unprintable characters become question marks, and a long name is cut."""
    plain = "".join(each if each.isprintable() else "?" for each in name[: NAME_SHOWN + 1])
    return plain if len(plain) <= NAME_SHOWN else plain[: NAME_SHOWN - 1] + "…"


def ranges(numbers: Iterable[int], most: int | None = None) -> str:
    """Numbers in order, with neighbours taken together: ``1-3, 7``; after *most* of these the others are counted."""
    found: list[list[int]] = []
    for each in sorted(numbers):
        if found and each == found[-1][1] + 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    said = [str(low) if low == high else f"{low}-{high}" for low, high in found[:most]]
    rest = 0 if most is None else sum(high - low + 1 for low, high in found[most:])
    return ", ".join(said) + (f" and {rest} more" if rest else "")


def read_line(line: str) -> Line | At | Refused | End:
    """Read a line of any writer; raises `DamagedError`. Unknown keys are ignored."""
    found = _LINE.fullmatch(line)
    if found is None:
        return _read_any(line)
    n, of, plan, machine, place, epoch, event, source, target, guard, job, name = found.groups()
    return Line(
        int(n),
        None if of is None else int(of),
        int(plan),
        int(place),
        None if epoch is None else int(epoch),
        _KINDS.get((machine, event, source, target, guard)) or StepKind(machine, event, source, target, guard, 0),
        None if job is None else int(job),
        None if name is None or machine != "request" else json.loads(name) or None,
    )


def _read_any(line: str) -> Line | At | Refused | End:
    """`read_line`, by its keys."""
    try:
        if len(line.encode("utf-8", "surrogateescape")) > LINE_BYTES_MAX:
            raise DamagedError(f"it is longer than {LINE_BYTES_MAX:,} bytes, and no line of a recording is")
        said = json.loads(line)
        line.encode()
    except UnicodeEncodeError:
        raise DamagedError("it holds bytes that are not UTF-8") from None
    except (ValueError, RecursionError):
        raise DamagedError("it is not JSON", cut=True) from None
    if not isinstance(said, dict):
        raise DamagedError("it is not a JSON object")
    if said.get("blocklife") == "end":
        return End(_whole(said, "n"), _whole(said, "lines"))
    if said.get("blocklife") == "at":
        return At(_whole(said, "ns"))
    if said.get("blocklife") == "refused":
        place = _word(said, "machine"), _whole(said, "id")
        return Refused(_whole(said, "plan"), *place, _word(said, "event"), _word(said, "from"), _name(said))
    if "blocklife" in said:
        raise DamagedError("there is a second head; one file holds one recording")
    n, of, plan = _whole(said, "n"), _maybe(_whole, said, "of"), _whole(said, "plan")
    machine, number, epoch = _word(said, "machine"), _whole(said, "id"), _maybe(_whole, said, "epoch")
    event, source, target, guard = _word(said, "event"), _word(said, "from"), _word(said, "to"), _maybe(_word, said, "guard")
    row = machine, event, source, target, guard
    kind = _KINDS.get(row) or StepKind(*row, 0)
    return Line(n, of, plan, number, epoch, kind, _maybe(_whole, said, "job"), _name(said))


def _maybe(read: Callable[[Mapping[str, object], str], Value], said: Mapping[str, object], key: str) -> Value | None:
    """What is read of a key that may be missing, or null."""
    return None if said.get(key) is None else read(said, key)


def _whole(said: Mapping[str, object], key: str) -> int:
    value = said.get(key)
    if type(value) is not int or value < 0:
        raise DamagedError(f"{key} must be a whole number, not {_said(value)}" if key in said else f"it has no {key}")
    if value > NUMBER_MAX:
        raise DamagedError(f"a number in it is larger than {NUMBER_MAX}")
    return value


def _word(said: Mapping[str, object], key: str) -> str:
    value = said.get(key)
    if type(value) is not str:
        raise DamagedError(f"{key} must be a word, not {_said(value)}" if key in said else f"it has no {key}")
    return value


def _name(said: Mapping[str, object]) -> str | None:
    """The name of a request; only lines of requests have one, and with other machines the key is ignored."""
    name = said.get("name")
    return name if isinstance(name, str) and name and said.get("machine") == "request" else None


# --- files -------------------------------------------------------------------------------------------------------------


@frozen(eq=False)
class Source:
    """A stream of lines, numbered from 1, whose earlier lines can be read again."""

    stream: IO[bytes]
    _window: deque[tuple[int, list[str], int]] = field(factory=deque, init=False)

    def pieces(self) -> Iterator[tuple[list[str], int, bool]]:
        """Some whole lines, their size in bytes, and whether the last of them is cut off by the end of the stream."""
        keep = not self._again()
        kept, number = 0, 1
        for lines, size, cut in _pieces(self.stream):
            if keep:
                self._window.append((number, lines, size))
                kept += size
                while kept > WINDOW_BYTES and len(self._window) > 1:
                    kept -= self._window.popleft()[2]
            yield lines, size, cut
            number += len(lines)

    def until(self, last: int) -> Iterator[tuple[int, str]]:
        """The lines up to number *last* that can still be read; of a pipe only the latest ones are kept."""
        if self._again():
            self.stream.seek(0)
            number = 0
            for lines, _, _ in _pieces(self.stream):
                for line in lines:
                    number += 1
                    if number > last:
                        return
                    yield number, line
            return
        for first, lines, _ in self._window:
            yield from ((number, line) for number, line in enumerate(lines, first) if number <= last)

    def history(self, machine: str, place: int, last: int, count: int) -> list[tuple[int, Line]]:
        """The latest lines about one place up to number *last*, oldest first."""
        found: deque[tuple[int, Line]] = deque(maxlen=count)
        name, spelt = f'"{machine}"', str(place)
        for number, text in self.until(last):
            if spelt in text and name in text:
                try:
                    line = read_line(text)
                except DamagedError:
                    continue
                if isinstance(line, Line) and line.id == place and line.kind.machine == machine:
                    found.append((number, line))
        return list(found)

    def _again(self) -> bool:
        return self.stream.seekable()


def _pieces(stream: IO[bytes]) -> Iterator[tuple[list[str], int, bool]]:
    rest = b""
    while chunk := stream.read(CHUNK_BYTES):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            yield _text(whole).split("\n"), len(chunk), False
        elif len(rest) > LINE_BYTES_MAX:  # no legal line is so long: do not look for its end
            yield [_text(rest[: LINE_BYTES_MAX + 1])], len(chunk), False
            return
    if rest:
        yield [_text(rest)], 0, True


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
