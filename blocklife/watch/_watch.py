"""The watch over one engine: the mirrors that follow it, the calls that it hears, and what it does at a violation."""

from __future__ import annotations

import shlex
from collections import Counter
from multiprocessing.util import Finalize

from attrs import asdict

from blocklife.errors import InvariantError
from blocklife.watch._calls import CallsThrough
from blocklife.watch._metrics import of_process
from blocklife.watch._mirror import Mirror
from blocklife.watch._options import Options, WatchMode, of_this_process
from blocklife.watch._recordings import OpenRecording
from blocklife.watch._violations import LOGGER, ViolationReporter, WatchViolation

_TOLD_EVERY = 64
"""How many steps lie between two updates of the metrics."""


class Watch:
    """A watch over one engine. An engine's own part gives it mirrors (`add_mirror`) and hooks (`listen`).

    There is a mirror for each connector, or cache, that has slots and jobs of its own.
    """

    def __init__(self, engine: str, of: str, options: Options) -> None:
        self.options = options
        self.of = of
        """What it watches, in words."""
        self._metrics = of_process(engine) if options.mode is WatchMode.COUNT else None
        self._reporter = ViolationReporter(
            options.mode, self._metrics.violated if self._metrics is not None else lambda rule: None
        )
        self._recordings: list[OpenRecording] = []
        self._calls: list[CallsThrough] = []
        self._is_open = True
        self._settled_calls = 0
        self.lost: Exception | None = None
        """The internal error that has stopped the watch, if any."""
        self.left_out: dict[str, str] = {}
        """What of the engine is not followed, each with what it is, or why."""
        self.mirrors: list[Mirror] = []
        self._at_exit = Finalize(None, self.close, exitpriority=0)

    # --- results ------------------------------------------------------------------------------------------------------------

    @property
    def mirror(self) -> Mirror:
        """The first mirror."""
        return self.mirrors[0]

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
        """Steps of the engine so far, by the mirror that has seen most."""
        return max(mirror.steps for mirror in self.mirrors)

    def report(self) -> dict[str, object]:
        """All violations and counts, as plain values for JSON."""
        return {
            "mode": self.options.mode.name.lower(),
            "sample": self.options.sample,
            "steps": self.steps,
            "violations_by_rule": dict(self.counts),
            "violations": [asdict(violation) for violation in self.violations],
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
            tell=self._tell,
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

    def listen(self, calls: CallsThrough) -> None:
        """Take hooks that were made; they are undone when the watch ends, the latest first."""
        self._calls.append(calls)

    def settled(self) -> None:
        """Call it at the end of each step."""
        self._settled_calls += 1
        if self._metrics is not None and self._settled_calls % _TOLD_EVERY == 0:
            self._metrics.tell(id(self), self._counted())

    # --- its life -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop watching, and end the recordings. A second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        for calls in reversed(self._calls):  # one method may be wrapped by several
            calls.undo()
        if self._metrics is not None:
            self._metrics.tell(id(self), self._counted())
            self._metrics.forget(id(self))
        for mirror, recording in zip(self.mirrors, self._recordings, strict=False):
            recording.close(whole=not (mirror.is_torn or mirror.ledger.jobs.live or mirror.ledger.blocks.count_held()))
        self._at_exit.cancel()

    def _tell(self, found: list[WatchViolation]) -> None:
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
