"""The format of a recording: its head, its lines in their canonical spelling, and reading a file in large pieces.

Rules of this file:

* Nothing here checks what is legal. A line that cannot be read is *damaged*; whether a readable line is legal is checked
  elsewhere.
* Only one spelling is checked, the recorder's own. A line of another writer is converted first, so its keys may be in any
  order, with any white space.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import IO

from attrs import field, frozen

from blocklife.errors import MisuseError
from blocklife.ledger import Contract

VERSION = 3
"""Version of the format; `read_head` refuses any other."""

CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 1 << 16
"""The limit of a line's length; no legal line is as long."""
WINDOW_BYTES = 32 << 20
"""How much of a pipe, which cannot be read twice, is kept for the history of a place."""

_NUMBER = r"(0|[1-9]\d{0,18})"
_NAME = r'"(?:[ !#-\[\]-~]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
"""A text as the recorder writes it: ASCII."""
NAMED = re.compile(_NAME + r"\}", re.ASCII)
"""How a line ends after the key of its name."""
_AT = re.compile(rf'\{{"blocklife":"at","ns":{_NUMBER}\}}', re.ASCII)
_LINE = re.compile(
    rf'\{{"n":{_NUMBER},(?:"of":{_NUMBER},)?"plan":{_NUMBER},"machine":"(\w+)","id":{_NUMBER}(?:,"epoch":{_NUMBER})?,'
    rf'"event":"(\w+)","from":"(\w+)","to":"(\w+)"(?:,"guard":"(\w+)")?(?:,"job":{_NUMBER})?(?:,"name":({_NAME}))?\}}',
    re.ASCII,
)
"""A line as the recorder writes it: several times faster to read than JSON in general."""
NAME_SHOWN = 48
"""Characters of a name that are displayed; names equal up to here are distinguished by their rows."""
_KEYS = ("num_blocks", "num_slots", "max_jobs", "max_requests", "num_workers")


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


@frozen
class Line:
    """One transition, as it was written."""

    n: int
    of: int | None
    plan: int
    machine: str
    id: int
    epoch: int | None
    event: str
    source: str
    target: str
    guard: str | None
    job: int | None
    name: str | None = None
    """The name of the request, if the line has it; clients choose it."""

    def spelt(self) -> str:
        """The line as the recorder writes it."""
        of = "" if self.of is None else f'"of":{self.of},'
        epoch = "" if self.epoch is None else f',"epoch":{self.epoch}'
        job = "" if self.job is None else f',"job":{self.job}'
        name = "" if self.name is None else f',"name":{json.dumps(self.name)}'
        row = spell_row(self.event, self.source, self.target, self.guard)
        return (
            f'{{"n":{self.n},{of}"plan":{self.plan},"machine":"{self.machine}","id":{self.id}{epoch},"event":{row}{job}{name}}}'
        )

    def __str__(self) -> str:
        condition = "" if self.guard is None else f" [{self.guard}]"
        job = "" if self.job is None else f" (job {self.job})"
        return f"plan {self.plan}: {self.source} --{self.event}{condition}--> {self.target}{job}"


def show_name(name: str) -> str:
    """A name that any terminal or page can show: unprintable characters become question marks, and a long name is cut."""
    plain = "".join(each if each.isprintable() else "?" for each in name[: NAME_SHOWN + 1])
    return plain if len(plain) <= NAME_SHOWN else plain[: NAME_SHOWN - 1] + "…"


def spell_row(event: str, source: str, target: str, guard: str | None) -> str:
    """The row of a line as the recorder writes it, from after the key of the event."""
    return f'"{event}","from":"{source}","to":"{target}"' + ("" if guard is None else f',"guard":"{guard}"')


def read_line(line: str) -> Line | At | Refused | End:
    """Read a line of any writer; raises `DamagedError`. Unknown keys are ignored."""
    found = _LINE.fullmatch(line)
    if found is not None:
        n, of, plan, machine, place, epoch, event, source, target, guard, job, name = found.groups()
        return Line(
            int(n),
            None if of is None else int(of),
            int(plan),
            machine,
            int(place),
            None if epoch is None else int(epoch),
            event,
            source,
            target,
            guard,
            None if job is None else int(job),
            None if name is None or machine != "request" else json.loads(name) or None,
        )
    return _read_any(line)


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
    return Line(
        _whole(said, "n"),
        None if said.get("of") is None else _whole(said, "of"),
        _whole(said, "plan"),
        _word(said, "machine"),
        _whole(said, "id"),
        None if said.get("epoch") is None else _whole(said, "epoch"),
        _word(said, "event"),
        _word(said, "from"),
        _word(said, "to"),
        None if said.get("guard") is None else _word(said, "guard"),
        None if said.get("job") is None else _whole(said, "job"),
        _name(said),
    )


def tells_time(line: str) -> bool:
    """Whether this is an `At` as the recorder writes it: a fast check, since each commit may have one."""
    return _AT.fullmatch(line) is not None


def respell(line: str) -> str:
    """A line converted to the recorder's spelling by a fast path; for anything unusual, the result is empty or not valid."""
    try:
        said = json.loads(line)
        n, plan, place, epoch, job, of = said["n"], said["plan"], said["id"], said.get("epoch"), said.get("job"), said.get("of")
        guard = said.get("guard")
        row = f'"event":"{said["event"]}","from":"{said["from"]}","to":"{said["to"]}"'
        machine = said["machine"]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ""
    if not (type(n) is type(plan) is type(place) is int and line.isascii()):
        return ""
    if type(epoch) is int:
        row = f'"epoch":{epoch},{row}'
    elif epoch is not None:
        return ""
    if guard is not None:
        row = f'{row},"guard":"{guard}"'
    if type(job) is int:
        row = f'{row},"job":{job}'
    elif job is not None:
        return ""
    if of is None:
        return f'{{"n":{n},"plan":{plan},"machine":"{machine}","id":{place},{row}}}'
    return f'{{"n":{n},"of":{of},"plan":{plan},"machine":"{machine}","id":{place},{row}}}' if type(of) is int else ""


def _whole(said: Mapping[str, object], key: str) -> int:
    value = said.get(key)
    if type(value) is not int or value < 0:
        raise DamagedError(f"{key} must be a whole number, not {_said(value)}" if key in said else f"it has no {key}")
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


def number_of(text: str) -> int | None:
    """The number that *text* spells; None if that is not its canonical spelling."""
    return int(text) if text.isdecimal() and text.isascii() and (text[0] != "0" or text == "0") and len(text) < 20 else None


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
                if isinstance(line, Line) and line.id == place and line.machine == machine:
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
