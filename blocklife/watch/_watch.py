"""The watch over one engine: the mirrors that follow it, their recordings, and what it does at a violation."""

from __future__ import annotations

import contextlib
import functools
import shlex
import time
from collections import Counter, deque
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import TextIO, TypeVar

from attrs import asdict

from blocklife.errors import InvariantError, MisuseError
from blocklife.recording import BusyError, Recorder, open_file
from blocklife.watch._listening import Ears
from blocklife.watch._metrics import of_process
from blocklife.watch._mirror import Mirror
from blocklife.watch._options import Options, WatchMode, of_this_process, unusable
from blocklife.watch._records import MirrorSizes
from blocklife.watch._violations import LOGGER, ViolationReporter, WatchError, WatchViolation

TOLD_EVERY = 64
"""How many steps lie between two updates of the metrics."""


class PartWatch:
    """A watch over one part of an *engine*: it reports violations by its options, until it is closed."""

    def __init__(self, engine: str, of: str, options: Options) -> None:
        self.options = options
        self.of = of
        """What it watches, in words."""
        self._metrics = of_process(engine) if options.mode is WatchMode.COUNT else None
        add = None if self._metrics is None else self._metrics.add
        self._reporter = ViolationReporter(options.mode, lambda rule: None if add is None else add(rule, 1))
        self.all_ears: list[Ears] = []
        """Its hooks; they are undone when the watch ends, the latest first."""
        self.ears = self.add_ears()
        self.lost: Exception | None = None
        """The internal error that has stopped the watch, if any."""
        self._is_torn = False
        """Whether something was done by half, as the program was stopped meanwhile."""
        self._is_open = True
        self._at_exit = Finalize(None, self.close, exitpriority=0)

    @property
    def violations(self) -> list[WatchViolation]:
        """The first violations; `counts` has them all."""
        return self._reporter.violations

    @property
    def counts(self) -> Counter[str]:
        """How often each rule was broken."""
        return self._reporter.counts

    @property
    def steps(self) -> int:
        """Steps of the engine so far."""
        raise NotImplementedError

    def report(self) -> dict[str, object]:
        """All violations and counts, as plain values for JSON."""
        return {
            "mode": self.options.mode.name.lower(),
            "steps": self.steps,
            "violations_by_rule": dict(self.counts),
            "violations": [asdict(violation) for violation in self.violations],
        }

    def add_ears(self) -> Ears:
        """Ears on a part of the engine: what is found in its calls is told when the outermost of these is over."""
        self.all_ears.append(Ears(self))
        return self.all_ears[-1]

    # --- what its ears need -------------------------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether an internal error has stopped it."""
        return self.lost is not None

    def minded(self, what: Callable[[], object]) -> None:
        """Do it. An internal error ends the watch, and never stops the engine, unless the watch is strict."""
        try:
            what()
        except Exception as error:
            if isinstance(error, WatchError) or (self.is_lost and self.options.mode is WatchMode.STRICT):
                raise
            if not self.is_lost:
                self._lose(error)
        except BaseException:
            self._is_torn = True
            raise

    def settle(self, *, is_over: bool) -> None:
        """Tell what was found. *is_over*: no heard call is under way in this thread, otherwise something was done about one."""
        raise NotImplementedError

    def _lose(self, error: Exception) -> None:
        """An error in the watch itself: the watch stops, and the engine goes on."""
        self.lost = error
        self.close()
        what = "blocklife watch: stopped by an internal error; the fault is the watch's own, not the engine's"
        if self.options.mode is WatchMode.STRICT:
            raise InvariantError(f"{what} ({error})") from error
        LOGGER.error(what, exc_info=error)

    # --- its end ------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop watching. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            for ears in reversed(self.all_ears):  # one method may be wrapped by several
                ears.undo()
            self._end()
            self._at_exit.cancel()

    def _end(self) -> None:
        """What is to be done when it is closed, and nothing is heard any more."""


class Watch(PartWatch):
    """A watch over one engine. An engine's own part gives it mirrors (`add_mirror`), and hooks by its `ears`.

    There is a mirror for each connector, or cache, that has slots and jobs of its own. *at_once*: whether the mirrors catch up
    with each call that was heard; otherwise what was found is told when the outermost one is over, and the mirrors catch up at
    a step.
    """

    def __init__(self, engine: str, of: str, options: Options, *, at_once: bool = False) -> None:
        super().__init__(engine, of, options)
        self._at_once = at_once
        self.is_apart: Callable[[], bool] = lambda: False
        """Whether this is not the thread that the mirrors belong to: what was heard in it is told when that one ends a call."""
        self._later: deque[Callable[[], object]] = deque()  # another thread may add to it meanwhile
        self._recordings: list[OpenRecording] = []
        self._settled_calls = 0
        self._told = Counter[str]()
        """What the metrics have been told."""
        self.left_out: dict[str, str] = {}
        """What of the engine is not followed, each with what it is, or why."""
        self.mirrors: list[Mirror] = []

    # --- results ------------------------------------------------------------------------------------------------------------

    @property
    def mirror(self) -> Mirror:
        """The first mirror."""
        return self.mirrors[0]

    @property
    def steps(self) -> int:
        """Steps of the engine so far, by the mirror that has seen most."""
        return max(mirror.steps for mirror in self.mirrors)

    def report(self) -> dict[str, object]:
        """All violations and counts, as plain values for JSON."""
        return {
            **super().report(),
            "sample": self.options.sample,
            **{name: count for name, count in self._counted().items() if name != "steps"},
            "not_followed": dict(self.left_out),
            "lost": None if self.lost is None else str(self.lost),
        }

    def _counted(self) -> dict[str, int]:
        return {
            "steps": sum(mirror.steps for mirror in self.mirrors),
            "jobs": sum(mirror.counts["jobs"] for mirror in self.mirrors),
            "blocks_believed": sum(mirror.counts["believed"] for mirror in self.mirrors),
            "copies_not_followed": sum(mirror.counts["not followed"] for mirror in self.mirrors),
        }

    def _count(self) -> None:
        """Let the metrics have what was counted since the last time."""
        now = self._counted() if self._metrics is not None else {}
        for name, count in now.items():
            if self._metrics is not None and count > self._told[name]:
                self._metrics.add(name, count - self._told[name])
                self._told[name] = count

    # --- what an engine's part gives it -------------------------------------------------------------------------------------

    def add_mirror(self, sizes: MirrorSizes, *, computes: bool = True) -> Mirror:
        """A mirror that tells this watch, with a recording if one is wanted. *computes* is as `Mirror` says."""
        mirror = Mirror(
            sizes,
            tell=self._report,
            minded=self.minded,
            sample=self.options.sample,
            is_told=self.options.jobs or bool(self.options.record),
            computes=computes,
        )
        if self.options.record:
            self._recordings.append(OpenRecording(of_this_process(self.options.record), len(self.mirrors), mirror))
            path = shlex.quote(self._recordings[-1].path).replace("{", "{{").replace("}", "}}")
            mirror.story.draw = f"blocklife recording show {path} --block {{block}}"
        self.mirrors.append(mirror)
        return mirror

    def leave_out(self, what: str, why: str = "") -> None:
        """Say that something of the engine, a kind of memory or of events, is not followed."""
        self.left_out[what] = why
        if self._metrics is not None:
            self._metrics.leave_out(what)

    def violate(self, rule: str, what: str, *, block: int | None = None, request: str | None = None) -> None:
        """Every mirror notes that a rule was broken, to be told when the call is over."""
        for mirror in self.mirrors:
            mirror.story.violate(rule, what, block=block, request=request)

    def later(self, fact: Callable[..., object], *of: object) -> None:
        """Call this, with these arguments, when a call of the thread that the mirrors belong to is over."""
        self._later.append(functools.partial(fact, *of))

    def catch_up(self) -> None:
        """Every mirror checks what has happened so far in the current step."""
        for mirror in self.mirrors:
            mirror.catch_up()

    def settle(self, *, is_over: bool) -> None:
        """Tell what was found, as `Watch` says."""
        if is_over is self._at_once or self.is_apart():
            return
        while self._later:
            self.minded(self._later.popleft())
        for mirror in self.mirrors:
            if self.lost is None and self._at_once and mirror.is_behind:
                mirror.catch_up()
            mirror.notify()

    def step(self) -> None:
        """The engine has scheduled a step, whose copies were noted as they were made: every mirror replays it."""
        for mirror in self.mirrors:
            if not self.is_lost:
                mirror.step()
        self.end_step()

    def end_step(self) -> None:
        """Call it at the end of each step."""
        self._settled_calls += 1
        if self._settled_calls % TOLD_EVERY == 0:
            self._count()

    # --- its life -----------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._count()
        for mirror, recording in zip(self.mirrors, self._recordings, strict=False):
            is_broken_off = self.is_lost or self._is_torn
            recording.close(whole=not (is_broken_off or mirror.ledger.jobs.live or mirror.ledger.blocks.count_held()))

    def _report(self, found: list[WatchViolation]) -> None:
        for recording in self._recordings:
            recording.flush()
        self._reporter(found)


_ATTRIBUTE = "_blocklife_watch"


W = TypeVar("W", bound=PartWatch)


def attached(watched: object, options: Options | None, kind: type[W], make: Callable[[Options], W]) -> W:
    """The watch of this *kind* over *watched*, made with *options* if there is none.

    Raises MisuseError for options that are none, and for options other than those in force: a caller that asks for a strict
    watch must not get one that only counts.
    """
    if options is not None and not isinstance(options, Options):
        raise MisuseError(
            f"watch: options must be made with Options, not {options!r} (pass Options(mode=WatchMode.STRICT), or nothing)"
        )
    found = attached_to(watched, kind)
    if found is None:
        found = make(options or Options())
        setattr(watched, _ATTRIBUTE, found)
    elif options is not None and options != found.options:
        raise MisuseError(f"watch: this {type(watched).__name__} is watched with other options already (detach it first)")
    return found


def attached_to(watched: object, kind: type[W]) -> W | None:
    """The watch of this *kind* over *watched*, if there is one."""
    # not getattr: an object that answers for another one would show the other's watch
    found = getattr(watched, "__dict__", {}).get(_ATTRIBUTE)
    return found if isinstance(found, kind) else None


def detach(watched: object) -> None:
    """Stop watching, if it is watched."""
    found: PartWatch | None = getattr(watched, "__dict__", {}).get(_ATTRIBUTE)
    if found is not None:
        found.close()
        delattr(watched, _ATTRIBUTE)


_FILES_MAX = 64
"""How many file names are tried for a recording."""


class OpenRecording:
    """A recording being written, of one ledger, in a file of its own.

    The file of the first ledger is *path*, that of the next one has ``.2`` appended, and so on; if another engine of this
    process writes to that file, the next number is taken.
    """

    def __init__(self, path: str, number: int, mirror: Mirror) -> None:
        self.path, self._stream = _opened(path, number)
        self._recorder = Recorder(self._stream, time.monotonic_ns, mirror.name_of)
        self._recorder.begin(mirror.ledger)

    def flush(self) -> None:
        """Flush to the file. A write error is reported when the recording is closed."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def close(self, *, whole: bool) -> None:
        """End the recording. The mark of a complete run is written only if it is complete (*whole*)."""
        try:
            if whole:
                self._recorder.end()
            self._stream.close()
        except OSError as error:
            LOGGER.error("blocklife watch: the recording %s could not be written to its end (%s)", self.path, error)


def _opened(path: str, number: int) -> tuple[str, TextIO]:
    """Open the file of a recording. Raises `MisuseError`, with path and remedy, if it cannot be opened."""
    why = ""
    for at in range(number, number + _FILES_MAX):
        name = f"{path}.{at + 1}" if at else path
        why = unusable(name)
        try:
            if not why:
                stream = open_file(name)
                if at > number:
                    LOGGER.warning("blocklife watch: the recording goes to %s, since another one is written to %s", name, path)
                return name, stream
        except BusyError:
            why = f"{_FILES_MAX} recordings are being written there (name another file)"
            continue
        except OSError as error:
            why = f"it cannot be written: {error.strerror or error} (name a file that can be)"
        except ValueError as error:
            why = f"it cannot be written: {error} (name a file that can be)"
        break
    raise MisuseError(f"record (BLOCKLIFE_WATCH_RECORD)={path}: {why}")
