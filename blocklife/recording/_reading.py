"""Reads a recording from its first line to its last.

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
from blocklife.recording._format import (
    NUMBER_MAX,
    At,
    DamagedError,
    End,
    Head,
    Line,
    Refused,
    Source,
    read_head,
    read_line,
)

Progress = Callable[[int, int], None]
"""Called with the number of bytes and of lines read."""


@define(eq=False)
class Recording:
    """A recording whose head has been read; its lines can be read once."""

    name: str
    head: Head
    source: Source
    _pieces: Iterator[tuple[list[str], int, bool]]
    _first: tuple[list[str], int, bool]
    number: int = field(default=1, init=False)
    """The line that was read last."""
    end: End | None = field(default=None, init=False)
    """Its last line, once it was read to the end; None if the mark of a complete run is missing."""

    @classmethod
    def of(cls, stream: IO[bytes], name: str) -> Recording:
        """Read the head of a recording. Raises `MisuseError` if there is none."""
        source = Source(stream)
        pieces = _readable(name, source.pieces())
        first = next(pieces, None)
        if first is None:
            raise MisuseError(f"{name}: it is empty (write a recording with blocklife replay --record)")
        head = read_head(name, first[0][0])
        if max(head.num_blocks, head.num_slots, head.max_jobs, head.max_requests, head.num_workers) > NUMBER_MAX:
            raise MisuseError(f"{name}: a limit of its head is larger than {NUMBER_MAX}")
        return cls(name, head, source, pieces, first)

    def lines(self, progress: Progress | None = None) -> Iterator[tuple[int, Line | At | Refused]]:
        """Every line with its number, except the head and the end. Raises `MisuseError` for a line that cannot be read."""
        for line in self.whole_lines(progress):
            if not isinstance(line, End):
                yield self.number, line

    def whole_lines(self, progress: Progress | None = None) -> Iterator[Line | At | Refused | End]:
        """`lines`, with the end; `number` is that of the latest."""
        commit = missing = 0
        try:
            for line in self.all_lines(progress):
                if isinstance(line, Line):
                    if line.n != commit:
                        commit, missing = line.n, line.of or 0
                    missing -= 1
                yield line
        except DamagedError as problem:
            said = f"{problem} here (record it again to its end)" if problem.cut else str(problem)
            raise MisuseError(f"{self.name}: line {self.number}: {said}") from None
        if missing > 0:
            raise MisuseError(
                f"{self.name}: line {self.number}: it ends in commit {commit}, of which {missing} lines are missing "
                "(record it again to its end)"
            )

    def all_lines(self, progress: Progress | None = None) -> Iterator[Line | At | Refused | End]:
        """`whole_lines` for who reports what cannot be read himself: raises `DamagedError`, and may end within a commit."""
        size = 0
        piece: tuple[list[str], int, bool] | None = self._first
        while piece is not None:
            texts, more, cut = piece
            for text in texts[1:] if piece is self._first else texts:
                self.number += 1
                if not text.strip():
                    continue
                line = self._read(text, cut=cut)
                if isinstance(line, End):
                    self.end = line
                yield line
            size += more
            if progress is not None:
                progress(size, self.number)
            piece = next(self._pieces, None)

    def _read(self, text: str, *, cut: bool) -> Line | At | Refused | End:
        try:
            line = read_line(text)
        except DamagedError as problem:
            if cut and problem.cut:
                raise DamagedError("it is cut off", cut=True) from None
            raise DamagedError(str(problem)) from None
        if self.end is not None:
            raise DamagedError("there is something after the end of the recording")
        return line


@contextmanager
def open_recording(path: str, name: str = "") -> Iterator[Recording]:
    """Open the recording in a file; ``-`` is standard input. Raises `MisuseError` if it cannot be read.

    *name* is the name in messages, if it is not the path.
    """
    if path == "-":
        if sys.stdin is None:
            raise MisuseError("standard input is closed (name a file)")
        yield Recording.of(sys.stdin.buffer, "standard input")
        return
    try:
        stream = Path(path).open("rb")  # noqa: SIM115 - only errors of opening are caught here, not those of the reader
    except OSError as problem:
        raise MisuseError(f"{path}: {problem.strerror or problem}") from problem
    with stream:
        yield Recording.of(stream, name or path)


def _readable(name: str, pieces: Iterator[tuple[list[str], int, bool]]) -> Iterator[tuple[list[str], int, bool]]:
    try:
        yield from pieces
    except OSError as problem:
        raise MisuseError(f"{name}: {problem.strerror or problem}") from problem
