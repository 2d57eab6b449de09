"""Check a recorded run: find the first illegal line, if any, and what led to it.

`specs/recording.md` describes the format and the checks. A recording comes from ``blocklife replay --record``, from a
`Recorder` on an engine's ledger, or from an engine without this ledger that writes the same lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from attrs import define, field, frozen

from blocklife.errors import MisuseError
from blocklife.recording._format import At, DamagedError, End, Line, Refused, Source, read_head, read_line, respell, tells_time
from blocklife.recording._rules import Checker, Follower
from blocklife.recording._traces import IllegalError

HISTORY = 8
"""How many of the latest steps of a place a report shows."""

Progress = Callable[[int, int], None]
"""Called with the number of bytes read and of transitions checked."""


@frozen
class Illegal:
    """The first line that breaks a rule."""

    line: int
    rule: str
    """``table``, ``epoch``, ``commit``, ``coupling``, ``limits``, or the number of an invariant."""
    message: str
    machine: str
    """The machine of the place; empty if the rule is not about a single place."""
    place: int
    history: tuple[str, ...]
    """The latest steps of the place, this one included, oldest first."""
    places: tuple[str, ...]
    """The places of the line's job with their states, or the job itself."""


@frozen
class CheckVerdict:
    """The result of a check."""

    name: str
    lines: int
    """Lines read, including head and end."""
    events: int
    """Transitions found legal."""
    commits: int
    plans: int
    jobs: int
    complete: bool
    """The recording has the line that marks a complete run."""
    illegal: Illegal | None
    further: int
    """Transitions after the first illegal one whose source is not the state in which the previous line left their place."""
    damage: str | None
    """Where and why the rest could not be read; empty if everything was read."""
    notes: tuple[str, ...]
    interrupted: bool
    seconds: float

    @property
    def clean(self) -> bool:
        """Everything was read, and nothing is wrong."""
        return self.illegal is None and self.damage is None and not self.interrupted

    @property
    def status(self) -> int:
        """The exit status of the command: 1 something illegal, 130 interrupted, 2 damaged, 0 nothing wrong."""
        if self.illegal is not None:
            return 1
        if self.interrupted:
            return 130
        return 2 if self.damage is not None else 0

    def __str__(self) -> str:
        return self.told()

    def told(self, *, damage: bool = True) -> str:
        """The result in words; *damage* False leaves out why the rest could not be read."""
        rate = f", {self.events / self.seconds:,.0f} a second" if self.seconds > 0.05 and self.clean else ""
        told = [f"{self.events:,} transitions in {self.commits:,} commits, {self.plans:,} plans, {self.jobs:,} jobs{rate}"]
        told += [f"note: {note}" for note in self.notes]
        if self.illegal is not None:
            told.append(f"line {self.illegal.line}: {self.illegal.message}")
            told += [f"  {step}" for step in self.illegal.history]
            told += [f"  {place}" for place in self.illegal.places]
        if self.damage is not None and damage:
            told.append(self.damage)
        if self.illegal is not None:
            told.append(f"NOT legal ({self.illegal.rule}); {self.further:,} later transitions do not fit their place")
        elif self.interrupted:
            told.append("interrupted: nothing illegal so far")
        elif self.damage is None:
            told.append("legal: every transition" + ("" if self.complete else " (the recording does not say that it is whole)"))
        else:
            told.append("legal as far as it can be read")
        return "\n".join(told)


def check_file(path: str, *, whole: bool = False, progress: Progress | None = None) -> CheckVerdict:
    """Check the recording in a file; ``-`` is standard input. Raises `MisuseError` if there is none.

    ``whole`` says that the run was recorded to its end, even if the recording does not say so itself.
    """
    with ExitStack() as stack:
        if path == "-":
            if sys.stdin is None:
                raise MisuseError("standard input is closed (name a file)")
            stream: IO[bytes] = sys.stdin.buffer
        else:
            try:
                stream = stack.enter_context(Path(path).open("rb"))
            except OSError as problem:
                raise MisuseError(f"{path}: {problem.strerror or problem}") from problem
        try:
            return check_recording(stream, "standard input" if path == "-" else path, whole=whole, progress=progress)
        except OSError as problem:
            raise MisuseError(f"{path}: {problem.strerror or problem}") from problem


def check_recording(
    stream: IO[bytes], name: str = "recording", *, whole: bool = False, progress: Progress | None = None
) -> CheckVerdict:
    """`check_file` for a stream of bytes. Ctrl-C ends it with the result so far."""
    run = _CheckRun(Source(stream), name, whole)
    started = time.perf_counter()
    interrupted = False
    try:
        run.read(progress)
    except KeyboardInterrupt:
        interrupted = True
    return run.verdict(time.perf_counter() - started, interrupted)


@define(eq=False)
class _CheckRun:
    """One check. Invariant: ``number`` lines were read, and all of them but the head and the end were taken or followed."""

    source: Source
    name: str
    whole: bool
    number: int = 0
    checker: Checker | None = None
    follower: Follower | None = None
    end: End | None = None
    further: int = 0
    events: int = 0
    damage: str | None = None
    illegal: Illegal | None = None
    notes: list[str] = field(factory=list)

    def read(self, progress: Progress | None) -> None:
        """Read it to its end, or to the first line that cannot be read."""
        size = 0
        cut = False
        try:
            for lines, more, cut in self.source.pieces():  # noqa: B007 - read below
                if self.checker is None:
                    self.checker = Checker(read_head(self.name, lines[0]))
                    self.number, lines = 1, lines[1:]
                if self.follower is None:
                    lines = self._take(self.checker, lines)
                if self.follower is not None:
                    self._follow(self.follower, lines)
                size += more
                if progress is not None:
                    progress(size, self.checker.events)
        except DamagedError as problem:
            ends = "it is cut off" if cut and problem.cut else str(problem)
            self.damage = f"line {self.number}: {ends} (everything before it was checked, nothing after it)"
            if self.checker is not None:
                self._count(self.checker)
            return
        if self.checker is None:
            raise MisuseError(f"{self.name}: it is empty (write a recording with blocklife replay --record)")
        self._close(self.checker)

    def _take(self, checker: Checker, lines: list[str]) -> list[str]:
        """Check lines. At the first illegal one, returns those after it."""
        take, before = checker.take, self.number
        number = before
        line = ""
        try:
            for number, line in enumerate(lines, before + 1):  # noqa: B007 - read below
                if (self.end is not None or not take(line)) and line.strip():
                    self._take_other(checker, line)
        except IllegalError as problem:
            self.number = number
            self._blame(checker, problem, line)
            return lines[number - before :]
        except MisuseError as problem:
            raise MisuseError(f"{self.name}: {problem}") from None
        finally:
            self.number = number
        return []

    def _take_other(self, checker: Checker, text: str) -> None:
        """Check a line that is not spelt as the recorder spells it."""
        if self.end is None:
            if tells_time(text):
                return
            spelt = respell(text)
            if spelt and checker.take(spelt):
                return
        line = read_line(text)
        if self.end is not None:
            raise DamagedError("there is something after the end of the recording")
        if isinstance(line, (At, Refused)):
            return  # nothing has changed
        if isinstance(line, End):
            self.end = line
            self.whole = True
            checker.check_whole()
            self._count(checker)
            if (line.n, line.lines) != (checker.n, self.events):
                problem = (
                    f"the end counts {line.n} commits with {line.lines} lines, but there are {checker.n} with {self.events}"
                )
                raise IllegalError("commit", "", 0, problem)
        elif not checker.take(line.spelt()):
            raise checker.explain(line)

    def _follow(self, follower: Follower, lines: list[str]) -> None:
        for text in lines:
            self.number += 1
            if not text.strip():
                continue
            line = read_line(text)
            if isinstance(line, Line) and not follower.fits(line):
                self.further += 1

    def _close(self, checker: Checker) -> None:
        """Checks that are possible only at the end."""
        if self.follower is not None:
            return
        self._count(checker)
        try:
            checker.check_whole()
            if checker.pending:
                raise checker.missing()
            if self.whole:
                checker.check_end()
        except IllegalError as problem:
            if self.whole:
                self._blame(checker, problem, "")
            else:
                self.notes.append(f"it ends in the middle of a step: {problem}")
        out = [job for job in checker.jobs.values() if not job.over]
        if out and not self.whole:
            self.notes.append(f"{len(out)} jobs are still out where it ends")

    def _blame(self, checker: Checker, problem: IllegalError, text: str) -> None:
        """Record the first illegal line, with what led to it."""
        self._count(checker)
        self.follower = Follower(checker)
        history: tuple[str, ...] = ()
        if problem.machine:
            steps = self.source.history(problem.machine, problem.place, self.number, HISTORY)
            history = tuple(f"line {number}, {line}" for number, line in steps)
        try:
            line = read_line(text) if text else None
        except DamagedError:
            line = None
        number = problem.job or (problem.place if problem.machine == "job" else 0)
        if not number and isinstance(line, Line):
            number = line.job or 0
        if isinstance(line, Line):
            self.follower.fits(line)
        places = tuple(checker.tell_job(number)) if number else ()
        self.illegal = Illegal(self.number, problem.rule, str(problem), problem.machine, problem.place, history, places)

    def _count(self, checker: Checker) -> None:
        self.events = checker.total

    def verdict(self, seconds: float, interrupted: bool) -> CheckVerdict:
        """The result."""
        checker = self.checker
        if checker is not None and self.illegal is None:
            self._count(checker)
        return CheckVerdict(
            name=self.name,
            lines=self.number,
            events=self.events,
            commits=checker.n if checker else 0,
            plans=checker.plan if checker else 0,
            jobs=checker.born if checker else 0,
            complete=self.end is not None,
            illegal=self.illegal,
            further=self.further,
            damage=self.damage,
            notes=tuple(self.notes),
            interrupted=interrupted,
            seconds=seconds,
        )
