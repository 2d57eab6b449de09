"""What ends a run of random traffic early, and how the verdicts over its seeds are printed."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, Protocol, Self

from attrs import asdict, frozen

from tests.programs import stoppable


@frozen
class Raised:
    """An engine raised in the middle of a step."""

    step: int
    kind: str
    message: str
    where: str
    """The innermost function of the engine on the stack."""

    @classmethod
    def by(cls, error: Exception, step: int, package: str) -> Self:
        """An *error* that came at *step* out of the engine whose code lies in a folder *package* (``sglang/srt``)."""
        frames = list(traceback.extract_tb(error.__traceback__))
        folder = os.sep.join(["", *package.split("/"), ""])
        inside = [frame for frame in frames if folder in frame.filename and "tests" not in frame.filename]
        frame = (inside or frames)[-1]
        return cls(step, type(error).__name__, str(error), f"{Path(frame.filename).name}:{frame.lineno} {frame.name}")

    def __str__(self) -> str:
        return f"step {self.step}: {self.kind} in {self.where}" + f" ({self.message[:200]})" * bool(self.message)


class Runs(Protocol):
    """A rig that can be asked, when it is at rest, what is missing."""

    def missing(self) -> str:
        """What is missing; empty if all is there."""

    def close(self) -> None:
        """It runs no more."""


@frozen
class End:
    """How a run of random traffic has ended."""

    error: Exception | None = None
    stuck: bool = False
    """Whether the engine has not come to rest."""
    missing: str = ""


def run_to_rest(rig: Runs, run: Callable[[], object], last: Callable[[], object] = lambda: None) -> End:
    """Let *run* drive a rig until it is at rest; whatever has happened, *last* is called then, and the rig is closed."""
    try:
        run()
        return End(missing=rig.missing())
    except TimeoutError:
        return End(stuck=True)
    except Exception as error:
        return End(error)
    finally:
        last()
        rig.close()


class Wrong(Protocol):
    """A read that found other content than it should; it says which."""

    @property
    def step(self) -> int:
        """When."""


@frozen(kw_only=True)
class Verdict:
    """What one seed showed of an engine; each engine adds what only it has. A run ends at the first exception."""

    engine: ClassVar[str]
    pieces: ClassVar[str]
    """What is stored and loaded there."""
    release: str
    world: str
    seed: int
    steps: int
    requests: int
    finished: int
    verified: int
    stored: int
    loaded: int
    raised: Raised | None = None
    corruptions: tuple[Wrong, ...] = ()
    """Counted to the end of the run."""
    wrong_texts: tuple[str, ...] = ()
    stuck: bool = False
    """Whether requests or copies were left that no step brought to an end."""

    @property
    def clean(self) -> bool:
        """Whether nothing at all was wrong."""
        return not self.troubles()

    def troubles(self) -> list[str]:
        """What was wrong, a few words each."""
        found = [] if self.raised is None else [str(self.raised)]
        if self.corruptions:
            found.append(f"{len(self.corruptions)} corrupt, first {self.corruptions[0]}")
        if self.wrong_texts:
            found.append(f"wrong text for {len(self.wrong_texts)} requests")
        return [*found, "stuck"] if self.stuck else found

    def __str__(self) -> str:
        done = f"{self.steps} steps, {self.requests} requests, {self.stored} {self.pieces} stored, {self.loaded} loaded"
        return f"{self.engine} {self.release}, {self.world}, seed {self.seed}: {'; '.join(self.troubles()) or 'clean'} ({done})"


@stoppable
def tell(verdicts: Iterable[Verdict], as_json: bool) -> int:
    """One line a verdict, as soon as it is there. The exit status: 1 if any seed was not clean, 130 after Ctrl-C."""
    status = 0
    for verdict in verdicts:
        print(json.dumps({**asdict(verdict), "clean": verdict.clean}) if as_json else verdict, flush=True)
        status |= not verdict.clean
    return status
