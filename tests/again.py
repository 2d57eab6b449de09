"""``python -m tests.again COMMAND ...``: run tests; one that fails is run once more alone, and is *flaky* if it passes then.

The command is pytest, or what becomes pytest and hands on what stands behind it (``python -m tests.vllm.run --ours 0.33.0``).
A flaky test does not refuse the build. It is told of at the end, and belongs into ``tests/flaky.toml``, with its cause, until
it is mended. Nothing is run again that did not fail by itself: a crash, a file that cannot be imported, a run that was cut
short. More than five failures are no accident.

Ended by Ctrl-C, a polite signal or the death of its parent, it ends the run and all processes of that.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.behind.shelf import ON_PATH, PROJECT
from tests.plugins.again_notes import NOTES, ONLY, SHARED, die_with_parent
from tests.programs import refused

PROGRAM = "tests.again"
LISTED = PROJECT / "tests" / "flaky.toml"
MOST = 5
"""So many tests may be listed, and so many are run again."""
REMEDY = f"add it, with its cause, to tests/{LISTED.name}, and mend it"
TOLD = "BLOCKLIFE_FLAKY"
"""The environment variable that names a file to which flaky tests are added, for whoever runs several commands."""
FAILED = 1
"""pytest's status of a run in which tests have failed."""
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def read_listed(file: Path = LISTED) -> dict[str, str]:
    """The causes of the tests that are known to be flaky. ValueError says what is wrong with the list."""
    causes = tomllib.loads(file.read_text(encoding="utf-8"))
    if bad := [each for each, cause in causes.items() if "::" not in each or not isinstance(cause, str) or not cause.strip()]:
        raise ValueError(f'{bad[0]} is no test with its cause ("FILE::TEST" = "CAUSE")')
    if len(causes) > MOST:
        raise ValueError(f"{len(causes)} tests are listed, of at most {MOST}: mend one")
    return causes


@dataclass(frozen=True)
class Ran:
    """One run: its status, which tests have failed and passed, and what else went wrong; None if it did not come to its end."""

    status: int
    failed: Sequence[str] = ()
    passed: Sequence[str] = ()
    beside: Sequence[str] | None = None

    @property
    def reason(self) -> str:
        """Why nothing of it is run again, if so."""
        if self.beside is None:
            return "the run was killed"
        if self.beside:
            return self.beside[0]
        if not self.failed:
            return "no test has failed by itself"
        return f"{len(self.failed)} tests have failed" if len(self.failed) > MOST else ""


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes], shares_terminal: bool) -> Iterator[None]:
    """While a run is under way: whoever ends us ends it, as Ctrl-C does, so that it can clean up. Nothing of it is left."""
    asked: list[int] = []

    def end(number: int, frame: object) -> None:
        if not asked and not (shares_terminal and number == signal.SIGINT):  # the terminal has told it, too
            process.send_signal(signal.SIGINT)
        asked.append(number)

    before = {each: signal.signal(each, end) for each in ENDS}
    try:
        yield
        process.wait()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if not shares_terminal:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if asked:
        raise SystemExit(128 + asked[0])


def run(words: Sequence[str], around: Mapping[str, str], only: Sequence[str] = ()) -> Ran:
    """Run the command; *only* these tests, one after another in one process, if any are named."""
    shares_terminal = sys.stdin.isatty()
    with tempfile.TemporaryDirectory() as scratch:
        notes = Path(scratch, "notes.json")
        environ = {**around, NOTES: str(notes), SHARED: scratch}
        environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [around.get("PYTHONPATH")]), *ON_PATH])
        more = ["-p", "again_notes"]
        if only:
            environ[ONLY] = json.dumps(list(only))
            more += ["-n", "0"]
        sys.stdout.flush()
        group = None if shares_terminal else 0  # of its own, unless it may want to read from the terminal
        with subprocess.Popen([*words, *more], env=environ, process_group=group) as process, ended(process, shares_terminal):
            pass
        written = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
    status = process.returncode
    return Ran(128 - status if status < 0 else status, **written)


def tell(flaky: Sequence[str], listed: Mapping[str, str], around: Mapping[str, str]) -> None:
    """What is flaky, on the last lines that are said."""
    lines = []
    for each in flaky:
        known = f"listed: {listed[each]}" if each in listed else f"NOT LISTED: {REMEDY}"
        lines.append(f"flaky: {each} failed, and passed alone ({known})")
    print(*lines, sep="\n", flush=True)
    if TOLD in around:
        with Path(around[TOLD]).open("a", encoding="utf-8") as file:
            print(*lines, sep="\n", file=file)


def main(arguments: Sequence[str] | None = None, around: Mapping[str, str] = os.environ) -> int:
    """The status of the run, and 0 where all that failed passed alone."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        refused(PROGRAM, "name the command that runs the tests (python -m pytest ...)")
    try:
        listed = read_listed()
    except ValueError as error:  # a file that is no TOML, too
        refused(PROGRAM, f"{LISTED}: {error}")
    first = run(words, around)
    if first.status != FAILED:
        return first.status
    if first.reason:
        print(f"nothing is run again: {first.reason}", flush=True)
        return FAILED
    print(f"again, alone: {', '.join(first.failed)}", flush=True)
    second = run(words, around, only=first.failed)
    if flaky := [each for each in first.failed if each in second.passed and each not in second.failed]:
        tell(flaky, listed, around)
    return 0 if flaky == list(first.failed) and not second.beside else second.status or FAILED


if __name__ == "__main__":
    die_with_parent(signal.SIGTERM)
    sys.exit(main())
