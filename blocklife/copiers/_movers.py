"""Which mover takes which copy: a table by the number of runs and by their mean length, and its form in JSON.

*Rules of this file.* It measures nothing and imports no torch: a configuration is read before there is a device. A table that
names what does not exist is refused, with its place; nothing in it is ignored.

*Theory.* The times of two movers cross somewhere between two points of a table, and they depend on ratios: twice the runs,
half the length. So a transfer goes by the point that is nearest on a scale of ratios, and one beyond the table by its edge.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise

from attrs import field, fields, frozen

from blocklife.errors import MisuseError
from blocklife.files import parse_json, read_text
from blocklife.ledger.records import Direction

MOVERS = ("batch", "kernel", "slices")
"""All movers. Where the mover of a point does not work, the first of these that does takes its runs."""

REMEDY = "give what 'blocklife doctor --movers FILE' wrote, or leave movers out: then a probe decides"

Row = tuple[str, ...]


def _numbers(given: object) -> tuple[int, ...]:
    """Whole numbers from 1 on, each larger than the one before. Refuses: ValueError for anything else."""
    if not isinstance(given, list | tuple) or not given or not all(type(each) is int and each > 0 for each in given):
        raise ValueError(f"must be whole numbers above 0, and not {given!r}")
    if any(one >= other for one, other in pairwise(given)):
        raise ValueError(f"must ascend, and not be {given!r}")
    return tuple(given)


def _rows(given: object) -> tuple[Row, ...]:
    """Rows of names of movers. Refuses: ValueError for anything else."""
    if not isinstance(given, list | tuple) or not all(isinstance(row, list | tuple) for row in given):
        raise ValueError(f"must be rows with the names of movers, and not {given!r}")
    for name in (name for row in given for name in row):
        if name not in MOVERS:
            raise ValueError(f"names a mover {name!r}, and there are {', '.join(MOVERS)}")
    return tuple(tuple(row) for row in given)


@frozen(kw_only=True)
class MoverTable:
    """The mover of a transfer with so many runs (one row for each number) of so many bytes on average (one column for each).

    Refuses: MisuseError for numbers that do not ascend, rows that do not fit them, and a mover that does not exist.
    """

    num_runs: tuple[int, ...] = field(metadata={"read": _numbers})
    run_bytes: tuple[int, ...] = field(metadata={"read": _numbers})
    load: tuple[Row, ...] = field(metadata={"read": _rows})
    store: tuple[Row, ...] = field(metadata={"read": _rows})

    def __attrs_post_init__(self) -> None:
        for name, rows in (("load", self.load), ("store", self.store)):
            if [len(row) for row in rows] != [len(self.run_bytes)] * len(self.num_runs):
                raise MisuseError(
                    f"mover table: {name} must have {len(self.num_runs)} rows of {len(self.run_bytes)} movers each ({REMEDY})"
                )

    def mover(self, direction: Direction, num_runs: int, num_bytes: int) -> str:
        """Who moves a transfer of so many runs, with so many bytes in all; it may not work on this machine."""
        row, column = _nearest(self.num_runs, num_runs), _nearest(self.run_bytes, num_bytes / max(num_runs, 1))
        return (self.store if direction is Direction.STORE else self.load)[row][column]

    def as_json(self) -> dict[str, object]:
        """The same as JSON data, which `read_movers` takes."""
        columns = {each.name: getattr(self, each.name) for each in fields(MoverTable)}
        return {name: [[*row] if isinstance(row, tuple) else row for row in column] for name, column in columns.items()}

    def lines(self) -> Iterator[str]:
        """The same for people: a line for each number of runs and direction."""
        yield "runs of           " + " ".join(f"{f'{size / 1024:g} KiB':<8}" for size in self.run_bytes).rstrip()
        for direction, rows in (("load", self.load), ("store", self.store)):
            for count, row in zip(self.num_runs, rows, strict=True):
                yield f"{direction:<5} {count:>6,} runs " + " ".join(f"{name:<8}" for name in row).rstrip()


def _nearest(points: tuple[int, ...], value: float) -> int:
    """The nearest of these by ratio; of two equally near ones the larger."""
    return bisect_right([one * other for one, other in pairwise(points)], value * value)


def read_movers(key: str, value: object) -> MoverTable:
    """A table out of a configuration: as JSON data, or the path of a file with them.

    Refuses: MisuseError, with the *key* that it stands under, for a file that cannot be read and for what is no such table.
    """
    where, given = key, value
    if isinstance(value, str):
        where = f"{key}: {value}"
        try:
            given = parse_json(read_text(value))
        except (MisuseError, ValueError) as problem:
            raise MisuseError(f"{where} cannot be read: {problem} ({REMEDY})") from problem
    readers = {each.name: each.metadata["read"] for each in fields(MoverTable)}
    if not isinstance(given, Mapping) or given.keys() != readers.keys():
        raise MisuseError(f"{where} must be an object with {', '.join(readers)} and nothing else ({REMEDY})")
    found = {}
    for name, read in readers.items():
        try:
            found[name] = read(given[name])
        except ValueError as problem:
            raise MisuseError(f"{where}: {name} {problem} ({REMEDY})") from problem
    try:
        return MoverTable(**found)
    except MisuseError as problem:
        raise MisuseError(f"{where}: {problem}") from problem


_ENGINE: Row = ("batch",) * 5

USUAL = MoverTable(
    num_runs=(8, 64, 512),
    run_bytes=tuple(4096 << power for power in range(5)),
    load=(_ENGINE, *[("kernel",) * 4 + ("batch",)] * 2),
    store=(_ENGINE, *[("kernel",) * 2 + ("batch",) * 3] * 2),
)
"""The points at which a probe measures; and what is taken where it could not measure, as one H100 would have it: alone, its
kernel loads runs of 32 KiB 1.3 times as fast as a batch and runs of 16 KiB ten times, and stores runs of 8 KiB four times as
fast and runs of 16 KiB twice (specs/measurements.md)."""
