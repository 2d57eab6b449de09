"""The watch over one engine: the mirrors that follow it, their recordings, and what it does at a violation."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections import Counter
from multiprocessing.util import Finalize
from typing import TextIO

from attrs import asdict

from blocklife.errors import InvariantError, MisuseError
from blocklife.recording import BusyError, Recorder, open_file
from blocklife.watch._listening import CallsThrough
from blocklife.watch._metrics import of_process
from blocklife.watch._mirror import Mirror
from blocklife.watch._options import Options, WatchMode, of_this_process, unusable
from blocklife.watch._violations import LOGGER, ViolationReporter, WatchViolation

_TOLD_EVERY = 64
"""How many steps lie between two updates of the metrics."""


class PartWatch:
    """A watch over one part of an *engine*: it reports violations by its options, until it is closed."""

    def __init__(self, engine: str, of: str, options: Options) -> None:
        self.options = options
        self.of = of
        """What it watches, in words."""
        self._metrics = of_process(engine) if options.mode is WatchMode.COUNT else None
        self._reporter = ViolationReporter(
            options.mode, self._metrics.violated if self._metrics is not None else lambda rule: None
        )
        self._calls: list[CallsThrough] = []
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

    def listen(self, calls: CallsThrough) -> None:
        """Take hooks that were made; they are undone when the watch ends, the latest first."""
        self._calls.append(calls)

    def close(self) -> None:
        """Stop watching. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            for calls in reversed(self._calls):  # one method may be wrapped by several
                calls.undo()
            self._end()
            self._at_exit.cancel()

    def _end(self) -> None:
        """What is to be done when it is closed, and nothing is heard any more."""


class Watch(PartWatch):
    """A watch over one engine. An engine's own part gives it mirrors (`add_mirror`) and hooks (`listen`).

    There is a mirror for each connector, or cache, that has slots and jobs of its own.
    """

    def __init__(self, engine: str, of: str, options: Options) -> None:
        super().__init__(engine, of, options)
        self._recordings: list[OpenRecording] = []
        self._settled_calls = 0
        self.lost: Exception | None = None
        """The internal error that has stopped the watch, if any."""
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

    # --- what an engine's part gives it -------------------------------------------------------------------------------------

    def add_mirror(
        self,
        num_blocks: int,
        *,
        num_groups: int = 1,
        num_workers: int = 1,
        num_slots: int = 0,
        blocks_per_slot: int = 1,
        computes: bool = True,
    ) -> Mirror:
        """A mirror that tells this watch, with a recording if one is wanted. See `Mirror` for the sizes."""
        mirror = Mirror(
            num_blocks,
            num_groups=num_groups,
            num_workers=num_workers,
            num_slots=num_slots,
            blocks_per_slot=blocks_per_slot,
            tell=self._report,
            lost=self._lose,
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

    def end_step(self) -> None:
        """Call it at the end of each step."""
        self._settled_calls += 1
        if self._metrics is not None and self._settled_calls % _TOLD_EVERY == 0:
            self._metrics.record(id(self), self._counted())

    # --- its life -----------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._metrics is not None:
            self._metrics.record(id(self), self._counted())
            self._metrics.release(id(self))
        for mirror, recording in zip(self.mirrors, self._recordings, strict=False):
            recording.close(whole=not (mirror.is_torn or mirror.ledger.jobs.live or mirror.ledger.blocks.count_held()))

    def _report(self, found: list[WatchViolation]) -> None:
        for recording in self._recordings:
            recording.flush()
        self._reporter(found)

    def _lose(self, error: Exception) -> None:
        """An error in the watch itself: the watch stops, and the engine goes on."""
        self.lost = error
        self.close()
        what = "blocklife watch: stopped by an internal error; the fault is the watch's own, not the engine's"
        if self.options.mode is WatchMode.STRICT:
            raise InvariantError(f"{what} ({error})") from error
        LOGGER.error(what, exc_info=error)


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
