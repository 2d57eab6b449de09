"""What the programs that run an engine share: how they refuse an argument, where the engine is missing, and how they stop."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, ParamSpec

P = ParamSpec("P")

ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "lmcache": "LMCache"}
"""Their packages, and their names. The programs for one lie in the folder of tests that is called like its package."""


HANGS_S = 600.0
"""Nothing takes so long that does not hang: the limit of all waiting in tests, so that none fails on a slow machine."""


def refused(program: str, text: str) -> NoReturn:
    """One line, and the status of a command that was not understood."""
    print(f"{program}: error: {text}", file=sys.stderr)
    raise SystemExit(2)


def natural(text: str) -> int:
    """A whole number that is not negative."""
    return _whole(text, 0, "is not a whole number from 0 on")


def positive(text: str) -> int:
    """A whole number from 1 on."""
    return _whole(text, 1, "is not a positive whole number")


def _whole(text: str, least: int, wrong: str) -> int:
    with contextlib.suppress(ValueError):
        if (number := int(text)) >= least:
            return number
    raise argparse.ArgumentTypeError(f"{text[:40]!r} {wrong}")


def seeds(text: str) -> list[int]:
    """``3``, ``0-19`` or ``1,4,7-9``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of seeds (write 3, 0-19 or 1,4,7-9)")
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is an empty list of seeds (write 3, 0-19 or 1,4,7-9)")
    return found


def target(text: str) -> Path:
    """A file that can be written, be it there already or not."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written, for its folder is not there")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written (name a file in a folder of yours)")
    return path


@contextlib.contextmanager
def importing(program: str, module: str = "__main__") -> Iterator[None]:
    """While a *program* (``tests.vllm.drive``, say) imports its engine: Ctrl-C ends it as it does later, and where the engine
    is not, one line says how to run it.

    It does nothing where *module*, which imports, is not run but imported itself.
    """
    if module != "__main__":
        yield
        return
    engine = program.split(".")[1]
    if importlib.util.find_spec(engine) is None:
        how = f"python -m tests.{engine}.run --python VERSION -m {program} ..."
        refused(program.split()[0], f"{ENGINES[engine]} is not here ({how})")
    previous = signal.signal(signal.SIGINT, _stopped)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def with_fixed_hashes(module: str) -> None:
    """Begin this process again with fixed hashes, if it has not got them. *module* is the one that is run.

    Engines walk through sets of names: only with fixed hashes do two processes of one seed do the same.
    """
    if "PYTHONHASHSEED" not in os.environ:
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})


def stoppable(main: Callable[P, int]) -> Callable[P, int]:
    """A program that Ctrl-C ends with one word and status 130."""

    @functools.wraps(main)
    def stopping(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return 130

    return stopping


def table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A table of Markdown. What stands below a heading that begins with ``>`` is a figure, and stands on the right."""
    lines = [[head.removeprefix(">") for head in heads], ["---:" if head.startswith(">") else "---" for head in heads], *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _stopped(_signal: int, _frame: FrameType | None) -> None:
    """End at once: an import passes an exception on as it likes, and there is nothing to tidy up yet."""
    os.write(2, b"stopped\n")
    os._exit(130)


def until(holds: Callable[[], object], what: str, within_s: float = HANGS_S) -> None:
    """Wait until another process has come to a state. Raises TimeoutError where it does not within what a hang takes."""
    limit = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > limit:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        time.sleep(0.01)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])
