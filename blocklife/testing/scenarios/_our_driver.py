"""The driver of blocklife itself: the real ledger, host tier and scheduler behind the interface `driver.Driver`.

Its engine is that of the worlds; all else is what every engine on the scheduler has (`EmbeddedDriver`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from blocklife import __version__
from blocklife.errors import MisuseError
from blocklife.ledger import (
    Contract,
)
from blocklife.offload import BelowPolicies, Settled
from blocklife.testing.scenarios._driver import (
    EngineSetup,
    EngineStep,
    SettledPlan,
)
from blocklife.testing.scenarios._embedded_driver import SAID, EmbeddedDriver
from blocklife.testing.worlds._device import Landing
from blocklife.testing.worlds._engine import Engine, Settings, Stepped


class _ScenarioEngine(Engine):
    """The engine of the worlds, with the settings that it lacks, and a drafter."""

    def __init__(self, world: EngineSetup) -> None:
        super().__init__(
            Settings(
                groups=world.groups,
                blocks_per_chunk=world.blocks_per_chunk,
                num_blocks=world.blocks,
                num_slots=world.slots,
                max_jobs=world.jobs,
                num_workers=world.workers,
                max_requests=128,
                contract=Contract[world.contract.upper()],
                asynchronous=world.scheduling == "async",
                deadline=float(world.deadline),
                replacement=world.replacement,
                step_tokens=world.step_tokens or None,
                policies=world.policies,
                below=BelowPolicies(max_wait=1e6) if world.below else None,
            ),
            own_pool=world.pool == "own",
            state_drafts=world.policies.state_drafts,
        )
        self._ahead = [False for _ in self._ahead]  # a stage compares what stands in a place, and nothing behind it
        self._guesses: dict[str, str] = {}
        """What is guessed for the next step, by request."""
        self._accepted: dict[int, dict[str, int]] = {}
        """What plans that are out will sample for requests with guesses, by plan."""

    def guess(self, name: str, guess: str) -> None:
        """The next step computes these letters behind the known ones of a running request."""
        found = self.scheduler.requests.progress(name)
        if name not in self.running() or found.in_flight:
            raise MisuseError(f"request {name}: it has a plan out, or does not run (guess when its step has settled)")
        self._guesses[name] = guess

    def step(
        self,
        tokens: Mapping[str, int] | None = None,
        *,
        admit: Collection[str] | Mapping[str, int] | None = None,
        preempt: Collection[str] = (),
    ) -> Stepped:
        """A step; what it samples behind guesses is known when its forward pass is."""
        known = {name: self.scheduler.requests.progress(name).known for name in self._guesses}
        found = super().step(tokens, admit=admit, preempt=preempt)
        self._accepted[found.orders.plan] = {
            name: 1 + self._right_of(name, count)
            for name, count in known.items()
            if name in self.texts and name in self.running() and self._end(name) >= count
        }
        self._guesses.clear()
        return found

    def settle(
        self,
        reports: Iterable[Landing] = (),
        *,
        launched: Iterable[tuple[int, int]] = (),
        sampled: Mapping[str, int] | None = None,
    ) -> Settled:
        """Settle the oldest plan; a request with guesses gets those that are right, and one letter more."""
        accepted = self._accepted.pop(self.scheduler.plans_out[0], {})
        running = {name: count for name, count in accepted.items() if name in self.running()}
        return super().settle(reports, launched=launched, sampled={**running, **(sampled or {})})

    def _right_of(self, name: str, known: int) -> int:
        """How many of the guesses that the step computes are right."""
        guess, text = self._guesses[name][: self._end(name) - known], self.texts[name][known:]
        return next((at for at, (one, other) in enumerate(zip(guess, text, strict=False)) if one != other), len(guess))

    def _want(self, name: str, begin: int) -> int:
        if name not in self._guesses:
            return super()._want(name, begin)
        return self.scheduler.requests.progress(name).known + len(self._guesses[name]) - begin

    def _guessed(self, name: str, end: int) -> str:
        if name not in self._guesses:
            return super()._guessed(name, end)
        return (self.texts[name][: self.scheduler.requests.progress(name).known] + self._guesses[name])[:end]


class OurDriver(EmbeddedDriver):
    """blocklife itself."""

    engine_name = "blocklife"
    version = __version__

    def start(self, world: EngineSetup) -> None:
        self.engine = _ScenarioEngine(world)
        self._begin(world, self.engine)
        self._index = self.engine.index
        self._sayers: dict[str, int] = {}

    def arrive(self, request: str, prompt: str, tokens: int | None = None, reply: str = "") -> None:
        """Add a request. Without a reply it samples letters of its own."""
        number = self._sayers.setdefault(request, len(self._sayers))
        own = chr(ord("A") + number) if number < 26 else chr(0x100 + number)
        text = (prompt + (reply or own * SAID))[:tokens]
        self.engine.add(request, text, len(prompt))

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        if let_in is not None and any(let_in.values()):
            let_in = {name: count or self._all_of(name) for name, count in let_in.items()}
            found = self.engine.step(compute, admit=let_in, preempt=preempt)
        else:
            found = self.engine.step(compute, admit=None if let_in is None else list(let_in), preempt=preempt)
        return self._told(found.orders, found.handed_out, found.hits, (*found.short, *found.refused))

    def _all_of(self, request: str) -> int:
        known = self.scheduler.requests.progress(request).known
        return known - self.scheduler.lookup(request, known).compute_from

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        plan = self.scheduler.plans_out[0]
        found = self.engine.settle(reports, launched=launched, sampled=sampled)
        self._end_copies(plan)
        return SettledPlan(loaded=found.loaded, failed=found.failed, ended=found.ended)

    def draft(self, request: str, guess: str) -> None:
        self.engine.guess(request, guess)

    def advance(self, steps: int) -> None:
        super().advance(steps)
        self.engine.now = self.now
