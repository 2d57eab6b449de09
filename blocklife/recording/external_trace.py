"""A Chrome trace of another program, such as ``torch.profiler`` exports, to which events can be added.

Rules of this file:

* Its text is copied as it is, in pieces; whatever its size, only what stands before its events is kept in memory.
* The text is not validated: only where the events begin, what its time zero is, and that it is not cut off.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attrs import define

from blocklife.errors import MisuseError
from blocklife.recording.format import CHUNK_BYTES

HEAD_MAX = 64 << 20
"""How far into a trace its list of events is looked for."""
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\]:,"]|[^\s{}\[\]:,"]+', re.DOTALL)


@define(eq=False)
class ExternalTrace:
    """An open trace whose text was read up to its events."""

    name: str
    head: str
    """The text up to the beginning of its list of events."""
    base_ns: int
    """Its time zero, in nanoseconds."""
    _text: str
    _stream: IO[str]

    @property
    def more(self) -> bool:
        """Whether it has events."""
        return not self._text.lstrip().startswith("]")

    def rest(self) -> Iterator[str]:
        """The text behind the head, in pieces."""
        text, last = self._text, ""
        while text:
            yield text
            last = text.rstrip()[-1:] or last
            text = _read(self.name, self._stream, CHUNK_BYTES)
        if last not in ("}", "]"):
            raise MisuseError(f"{self.name}: it is cut off (export the profile again)")


@contextmanager
def open_external_trace(path: str) -> Iterator[ExternalTrace]:
    """Open a trace file, plain or gzipped, such as ``torch.profiler`` exports. Raises `MisuseError` if it is no trace."""
    try:
        with Path(path).open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        stream = gzip.open(path, "rt", encoding="utf-8") if zipped else Path(path).open(encoding="utf-8")  # noqa: SIM115
    except OSError as problem:
        raise MisuseError(f"{path}: {problem.strerror or problem}") from problem
    with stream:
        text, size = "", CHUNK_BYTES
        while True:
            more = _read(path, stream, size)
            text += more
            if (found := _events_of(text)) is not None and text[found[0] :].strip():
                break
            if not more or len(text) > HEAD_MAX:
                raise MisuseError(f"{path}: it is no Chrome trace (no list of traceEvents in it)")
            size = len(text)
        yield ExternalTrace(path, text[: found[0]] + "\n", found[1], text[found[0] :], stream)


def _read(path: str, stream: IO[str], size: int) -> str:
    try:
        return stream.read(size)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as problem:
        raise MisuseError(f"{path}: it cannot be read ({problem})") from problem


def _events_of(text: str) -> tuple[int, int] | None:
    """Where the list of events begins, and the time zero; None where *text* ends before that."""
    depth, base, key, last = 0, 0, "", ""
    for token in _TOKEN.finditer(text):
        said = token[0]
        if said == '"':  # a string that does not end here
            return None
        if said == "[" and (depth == 0 or (depth == 1 and key == "traceEvents")):
            return token.end(), base
        if said in "{[":
            depth += 1
        elif said in "}]":
            depth -= 1
        elif said == ":" and depth == 1:
            key = last.strip('"')
        elif depth == 1 and key == "baseTimeNanoseconds" and said.isdecimal():
            base = int(said)
        last = said
    return None
