"""Reads a recording from its first line to its last, for drawings and statistics.

Rules of this file:

* Whether a step was legal is checked by `_checking`, not here. A line that cannot be read, or is cut off, is refused, so that
  half a run is never drawn as a whole one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attrs import define, field

from blocklife.errors import MisuseError
from blocklife.recording._format import At, DamagedError, End, Head, Line, Refused, Source, read_head, read_line

NUMBER_MAX = (1 << 62) - 1
"""Larger numbers do not fit a column, and do not occur."""

Progress = Callable[[int, int], None]
"""Called with the number of bytes and of lines read."""


@define(eq=False)
class Recording:
    """A recording whose head has been read; `lines` can be called once."""

    name: str
    head: Head
    _pieces: Iterator[tuple[list[str], int, bool]]
    _first: tuple[list[str], int, bool]
    end: End | None = field(default=None, init=False)
    """Its last line, once `lines` was read to the end; None if the mark of a complete run is missing."""

    def lines(self, progress: Progress | None = None) -> Iterator[tuple[int, Line | At | Refused]]:
        """Every line with its number, except the head and the end. Raises `MisuseError` for a line that cannot be read."""
        number, size = 1, 0
        commit = missing = 0
        for texts, more, cut in self._all():
            for text in texts[1:] if texts is self._first[0] else texts:
                number += 1
                if not text.strip():
                    continue
                line = self._read(number, text, cut=cut)
                if isinstance(line, Line):
                    if line.n != commit:
                        commit, missing = line.n, line.of or 0
                    missing -= 1
                if isinstance(line, End):
                    self.end = line
                else:
                    yield number, line
            size += more
            if progress is not None:
                progress(size, number)
        if missing > 0:
            raise MisuseError(
                f"{self.name}: line {number}: it ends in commit {commit}, of which {missing} lines are missing "
                "(record it again to its end)"
            )

    def _all(self) -> Iterator[tuple[list[str], int, bool]]:
        yield self._first
        yield from self._pieces

    def _read(self, number: int, text: str, *, cut: bool) -> Line | At | Refused | End:
        try:
            if self.end is not None:
                raise DamagedError("there is something after the end of the recording")
            line = read_line(text)
            if _largest(line) > NUMBER_MAX:
                raise DamagedError(f"a number in it is larger than {NUMBER_MAX}")
            return line
        except DamagedError as problem:
            said = "it is cut off here (record it again to its end)" if cut and problem.cut else str(problem)
            raise MisuseError(f"{self.name}: line {number}: {said}") from None


def _largest(line: Line | At | Refused | End) -> int:
    """The largest of its numbers."""
    if isinstance(line, Line):
        return max(line.n, line.of or 0, line.plan, line.id, line.epoch or 0, line.job or 0)
    if isinstance(line, At):
        return line.ns
    return max(line.plan, line.id) if isinstance(line, Refused) else 0


@contextmanager
def open_recording(path: str, name: str = "") -> Iterator[Recording]:
    """Open the recording in a file; ``-`` is standard input. Raises `MisuseError` if it cannot be read.

    *name* is the name in messages, if it is not the path.
    """
    if path == "-":
        if sys.stdin is None:
            raise MisuseError("standard input is closed (name a file)")
        yield _opened("standard input", sys.stdin.buffer)
        return
    try:
        stream = Path(path).open("rb")  # noqa: SIM115 - only errors of opening are caught here, not those of the reader
    except OSError as problem:
        raise MisuseError(f"{path}: {problem.strerror or problem}") from problem
    with stream:
        yield _opened(name or path, stream)


def _opened(name: str, stream: IO[bytes]) -> Recording:
    pieces = _readable(name, Source(stream).pieces())
    first = next(pieces, None)
    if first is None:
        raise MisuseError(f"{name}: it is empty (write a recording with blocklife replay --record)")
    head = read_head(name, first[0][0])
    if max(head.num_blocks, head.num_slots, head.max_jobs, head.max_requests, head.num_workers) > NUMBER_MAX:
        raise MisuseError(f"{name}: a limit of its head is larger than {NUMBER_MAX}")
    return Recording(name, head, pieces, first)


def _readable(name: str, pieces: Iterator[tuple[list[str], int, bool]]) -> Iterator[tuple[list[str], int, bool]]:
    try:
        yield from pieces
    except OSError as problem:
        raise MisuseError(f"{name}: {problem.strerror or problem}") from problem
