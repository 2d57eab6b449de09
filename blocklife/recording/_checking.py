"""Check a recorded run: find the first illegal line, if any, and what led to it.

`specs/recording.md` describes the format and the checks. A recording comes from ``blocklife replay --record``, from a
`Recorder` on an engine's ledger, or from an engine without this ledger that writes the same lines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import IO

from attrs import define, field, frozen

from blocklife.errors import MisuseError
from blocklife.recording._format import At, DamagedError, End, Line, Refused
from blocklife.recording._lives import Filler, Lives
from blocklife.recording._reader import RecordedMove
from blocklife.recording._reading import Progress, Recording, open_recording
from blocklife.recording._rules import Checker, IllegalError

HISTORY = 8
"""How many of the latest steps of a place a report shows."""


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
    with open_recording(path) as recording:
        return _check(recording, progress, whole=whole)


def check_recording(
    stream: IO[bytes], name: str = "recording", *, whole: bool = False, progress: Progress | None = None
) -> CheckVerdict:
    """`check_file` for a stream of bytes. Ctrl-C ends it with the result so far."""
    return _check(Recording.of(stream, name), progress, whole=whole)


def _check(recording: Recording, progress: Progress | None, *, whole: bool) -> CheckVerdict:
    run = _CheckRun(recording, Checker(recording.head), whole)
    started = time.perf_counter()
    interrupted = False
    try:
        run.read(recording.all_lines(progress and (lambda size, _: progress(size, run.checker.events))))
    except KeyboardInterrupt:
        interrupted = True
    return run.verdict(time.perf_counter() - started, interrupted=interrupted)


def check_lives(recording: Recording, progress: Progress | None = None) -> tuple[CheckVerdict, Lives]:
    """Check a recording and read its lives, both at once. Raises `MisuseError` for a line that cannot be read."""
    checker = Checker(recording.head)
    filler = Filler(Lives(recording.name, recording.head), checker.reader)
    run = _CheckRun(recording, checker, whole=False, filler=filler)
    run.read(recording.whole_lines(progress))
    return run.verdict(0.0, interrupted=False), filler.close(recording)


@define(eq=False)
class _CheckRun:
    """One check. Invariant: every line that was read was checked, or comes after the first illegal one."""

    recording: Recording
    checker: Checker
    whole: bool
    filler: Filler | None = None
    """What makes lives of the lines meanwhile."""
    further: int = 0
    damage: str | None = None
    illegal: Illegal | None = None
    notes: list[str] = field(factory=list)

    def read(self, lines: Iterator[Line | At | Refused | End]) -> None:
        """Read it to its end, or to the first line that cannot be read."""
        try:
            for line in lines:
                if self.illegal is None:
                    self._read(line)
                elif isinstance(line, Line):
                    self.further += not self._follow(line)
                if self.filler is not None and isinstance(line, At | Refused):
                    self.filler.read(self.recording.number, line)
        except DamagedError as problem:
            self.damage = f"line {self.recording.number}: {problem} (everything before it was checked, nothing after it)"
            return
        if self.illegal is None:
            self._close()

    def _read(self, line: Line | At | Refused | End) -> None:
        checker = self.checker
        try:
            if isinstance(line, Line):
                self._keep(checker.read(self.recording.number, line))
            elif isinstance(line, End):
                self.whole = True
                checker.check_whole()
                if (line.n, line.lines) != (checker.n, checker.events):
                    problem = f"the end counts {line.n} commits with {line.lines} lines, but there are "
                    raise IllegalError("commit", "", 0, f"{problem}{checker.n} with {checker.events}")
        except IllegalError as problem:
            self._blame(problem, line)
        except MisuseError as problem:
            raise MisuseError(f"{self.recording.name}: {problem}") from None

    def _follow(self, line: Line) -> bool:
        """Take a line without checking it. Whether it is a row from the state in which the line before left its place."""
        return self._keep(self.checker.reader.read(self.recording.number, line)).fits

    def _keep(self, move: RecordedMove) -> RecordedMove:
        if self.filler is not None:
            self.filler.keep(self.recording.number, move)
        return move

    def _close(self) -> None:
        """Checks that are possible only at the end."""
        checker, reader = self.checker, self.checker.reader
        try:
            checker.check_whole()
            if reader.pending or reader.wanted:
                raise checker.missing()
            if self.whole:
                checker.check_end()
        except IllegalError as problem:
            if self.whole:
                self._blame(problem, None)
            else:
                self.notes.append(f"it ends in the middle of a step: {problem}")
        out = [job for job in reader.jobs.values() if not job.over]
        if out and not self.whole:
            self.notes.append(f"{len(out)} jobs are still out where it ends")

    def _blame(self, problem: IllegalError, line: Line | At | Refused | End | None) -> None:
        """Record the first illegal line, with what led to it."""
        recording, number = self.recording, self.recording.number
        steps = recording.source.history(problem.machine, problem.place, number, HISTORY) if problem.machine else []
        job = problem.job or (problem.place if problem.machine == "job" else 0)
        if isinstance(line, Line):
            job = job or line.job or 0
        self.illegal = Illegal(
            number,
            problem.rule,
            str(problem),
            problem.machine,
            problem.place,
            tuple(f"line {each}, {step}" for each, step in steps),
            (self.checker.describe_job(job),) if job else (),
        )
        if isinstance(line, Line):
            self._follow(line)

    def verdict(self, seconds: float, *, interrupted: bool) -> CheckVerdict:
        """The result."""
        checker = self.checker
        return CheckVerdict(
            name=self.recording.name,
            lines=self.recording.number,
            events=checker.events,
            commits=checker.n,
            plans=checker.plan,
            jobs=checker.born,
            complete=self.recording.end is not None,
            illegal=self.illegal,
            further=self.further,
            damage=self.damage,
            notes=tuple(self.notes),
            interrupted=interrupted,
            seconds=seconds,
        )
