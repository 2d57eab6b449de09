"""What the programs of this folder share: how they refuse an argument, where vLLM is missing, and how they stop."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn


def refused(program: str, text: str) -> NoReturn:
    """One line, and the status of a command that was not understood."""
    print(f"tests.vllm.{program}: error: {text}", file=sys.stderr)
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
    """While a *program* imports vLLM: where vLLM is not, one line says how to run it, and Ctrl-C ends it as it does later.

    It does nothing where *module*, which imports, is not run but imported itself.
    """
    if module != "__main__":
        yield
        return
    if importlib.util.find_spec("vllm") is None:
        refused(program.split()[0], f"vLLM is not here (python -m tests.vllm.run --python VERSION -m tests.vllm.{program} ...)")
    previous = signal.signal(signal.SIGINT, _stopped)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _stopped(_signal: int, _frame: FrameType | None) -> None:
    """End at once: an import passes an exception on as it likes, and there is nothing to tidy up yet."""
    os.write(2, b"stopped\n")
    os._exit(130)
