"""The other process of a check that needs two: ``python -m blocklife.testing.tiers._second ADDRESS TOKEN``."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TextIO

from blocklife.testing.tiers._checks import PROCESS_BYTES, PROCESS_PAGES
from blocklife.testing.tiers._trial import Given, Trial, key_of
from blocklife.tiers import Page, open_store

_AT_MOST_S = 120.0
"""A process whose store hangs does not outlive its check for longer."""


def main(address: str, token: str) -> None:
    """Do the other process's part, each step after a line from the first; what goes wrong is said in one line."""
    timer = threading.Timer(_AT_MOST_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what the store prints is no answer
        try:
            _put_and_get(address, token, answers)
        except (Exception, SystemExit) as problem:
            _say(f"{type(problem).__name__}: {problem}".splitlines()[0], answers)


def _put_and_get(address: str, token: str, answers: TextIO) -> None:
    given = Given(lambda: open_store(address), address, None, token)
    trial = Trial(given, "second", given.make())
    mine, theirs = ([key_of(token, (who, number)) for number in range(PROCESS_PAGES)] for who in ("child", "parent"))
    pages = [trial.full_page(key, PROCESS_BYTES) for key in mine]
    _say("opened", answers)
    sys.stdin.readline()
    for page in pages:
        trial.must_put([page])
    _say("put", answers)
    sys.stdin.readline()
    trial.must_get([Page(key, 0, PROCESS_BYTES) for key in theirs])
    _say("got", answers)
    trial.store.close()


def _say(word: str, answers: TextIO) -> None:
    answers.write(f"{word}\n")
    answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:3])
