"""Reads files that a command needs as a whole (scenarios, worlds, reports, markup, pages), within bounds.

Rules of this file:

* Input is bounded: no device, no pipe without a writer, no file above the size limit.
* Parsed data has limited depth and no number too large for a column, so that code that walks it needs no limits of its own.
* A file that cannot be read is refused in one line that names the limit and the remedy.

Recordings and workloads are not read here: they may have any size, and their readers limit the length of a line.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from pathlib import Path

from blocklife.errors import MisuseError

TEXT_BYTES_MAX = 1 << 20
"""Largest file that is read as a whole, in bytes; scenarios, worlds and reports are far smaller."""
DEPTH_MAX = 64
"""How deep tables and lists may be nested."""
NUMBER_MAX = (1 << 63) - 1
"""Largest magnitude of an integer: the limit of TOML, and of a column."""
KEY_PARTS_MAX = 32
"""How many parts a dotted key of TOML may have: `tomllib` takes their number squared."""

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_LONG_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_PART}\.[ \t]*){{{KEY_PARTS_MAX}}}", re.MULTILINE)
_WHERE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")


def read_text(path: str | Path, hint: str = "") -> str:
    """The text of a file or pipe. Raises `MisuseError`, which ends with the *hint*.

    A pipe must already have a writer when it is opened; this does not wait for one.
    """
    said = f" ({hint})" if hint else ""
    try:
        data = _read(path)
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        raise MisuseError(f"{path}: it is not text: byte {problem.start + 1} is not UTF-8{said}") from None
    except OSError as problem:
        raise MisuseError(f"{path}: {problem.strerror or problem}{said}") from problem
    except ValueError as problem:  # a zero byte in its name
        raise MisuseError(f"{path!r}: {problem}{said}") from problem


def _read(path: str | Path) -> bytes:
    # without O_NONBLOCK, opening a pipe waits for a writer that may never come
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as stream:
        os.set_blocking(number, True)
        data = stream.read(TEXT_BYTES_MAX + 1)
        if len(data) > TEXT_BYTES_MAX:
            raise MisuseError(f"{path}: it is longer than {TEXT_BYTES_MAX:,} bytes, and is not read (name another file)")
        if not data and stat.S_ISFIFO(os.fstat(number).st_mode):
            raise MisuseError(f"{path}: nothing writes into this pipe (start the writer first, or name a plain file)")
        return data


def parse_toml(text: str, name: str) -> dict[str, object]:
    """Parse a TOML text. Raises `MisuseError`, which begins with *name* and the line."""
    if long := _LONG_KEY.search(text):
        line = text.count("\n", 0, long.end()) + 1
        raise MisuseError(f"{name}:{line}: a key has more than {KEY_PARTS_MAX} parts (write fewer dots)")
    try:
        found: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        where = _WHERE.search(str(problem))
        number = int(where[1]) if where and where[1] else len(text.splitlines()) or 1
        raise MisuseError(f"{name}:{number}: {_WHERE.sub('', str(problem))}") from problem
    except (RecursionError, ValueError) as problem:
        raise MisuseError(f"{name}: {_too_much(problem)}") from None
    if trouble := _trouble(found):
        raise MisuseError(f"{name}: {trouble}")
    return found


def parse_json(text: str) -> object:
    """Parse a JSON text. Raises `ValueError` for any fault."""
    try:
        found: object = json.loads(text)
    except (RecursionError, ValueError) as problem:
        raise ValueError(_too_much(problem)) from None
    if trouble := _trouble(found):
        raise ValueError(trouble)
    return found


_DEEP = f"it is nested too deeply (at most {DEPTH_MAX} levels)"
_LARGE = f"a number in it is too large (at most {NUMBER_MAX})"


def _too_much(problem: RecursionError | ValueError) -> str:
    """The error message for a text that exceeds the limits of Python's parser."""
    if isinstance(problem, RecursionError):
        return _DEEP
    return str(problem) if isinstance(problem, json.JSONDecodeError) else _LARGE


def _trouble(found: object) -> str:
    """Which limit the parsed data exceeds; empty if none."""
    level: list[object] = [found]
    for _ in range(DEPTH_MAX + 1):
        inside: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inside += each.values()
            elif isinstance(each, list):
                inside += each
            elif isinstance(each, int) and not -NUMBER_MAX <= each <= NUMBER_MAX:
                return _LARGE
        if not inside:
            return ""
        level = inside
    return _DEEP
