"""A toy engine of somebody else, with dicts and lists: what a driver of another engine looks like, and what is found in it.

It prefills prompts, stores full blocks, and holds a block back while a store reads it. `Early` forgets the last of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blocklife.offload import Mode
from blocklife.testing.scenarios._driver import Driver, EngineSetup, EngineStep, SettledPlan, Unsupported
from blocklife.testing.worlds._device import CopyOrder, Landing, Orders, Pass

SIZE = 4


class Naive(Driver):
    """Full attention, one worker, synchronous, no loads."""

    def start(self, world: EngineSetup) -> None:
        """Only what it can do."""
        if (world.groups, world.scheduling, world.contract, world.workers) != (f"full:{SIZE}", "sync", "hold", 1):
            raise Unsupported("this engine has one group of 4 tokens, one worker, synchronous scheduling and holds blocks back")
        if world.policies.mode is not Mode.EAGER or world.pool != "own":
            raise Unsupported("this engine stores at once, and owns its pool")
        if world.policies.load_within_tokens or world.policies.state_drafts:
            raise Unsupported("this engine loads between two steps, and has no states")
        self.free_blocks = list(range(1, world.blocks + 1))
        self.free_slots = list(range(world.slots))
        self.said: dict[str, str] = {}
        self.state: dict[str, str] = {}
        self.tables: dict[str, list[int]] = {}
        self.jobs: dict[int, tuple[CopyOrder, list[str]]] = {}
        self.over: dict[int, str] = {}
        self.stored: dict[str, int] = {}
        self.waiting_blocks: set[int] = set()
        self.plan = 0
        self.counts = {"duplicate": 0, "unknown": 0, "jobs_made": 0}

    def arrive(self, request: str, prompt: str, tokens: int | None = None, reply: str = "") -> None:
        """It never samples."""
        self.said[request], self.state[request], self.tables[request] = prompt, "WAITING", []

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        """Prefill whole prompts, and store the full blocks of those that were prefilled before."""
        if preempt or (compute and any(compute.values())):
            raise Unsupported("this engine neither preempts nor decodes")
        stores, owners = [], {}
        for name in [each for each, at in self.state.items() if at == "PREFILLED"]:
            blocks, names = self.full(name)
            if names and len(self.free_slots) >= len(names):
                job = self.counts["jobs_made"] = self.counts["jobs_made"] + 1
                slots = tuple(self.free_slots.pop(0) for _ in names)
                order = CopyOrder(job, True, tuple(blocks), slots)
                stores.append(order)
                owners[job] = name
                self.jobs[job] = order, names
            self.state[name] = "RUNNING"
        handed, writes, no_room = list[int](), list[tuple[int, str]](), []
        for name in [each for each, at in self.state.items() if at == "WAITING" and (let_in is None or each in let_in)]:
            said = self.said[name]
            needed = -(-len(said) // SIZE)
            if needed > len(self.free_blocks):
                no_room.append(name)
                continue
            self.tables[name] = [self.free_blocks.pop(0) for _ in range(needed)]
            handed += self.tables[name]
            writes += [(block, f"0:{said[: (at + 1) * SIZE]}") for at, block in enumerate(self.tables[name])]
            self.state[name] = "PREFILLING"
        self.plan += 1
        return EngineStep(
            orders=Orders(self.plan, (), (), tuple(stores), Pass(writes=tuple(writes))),
            handed_out=tuple(handed),
            owners=owners,
            no_room=tuple(no_room),
        )

    def full(self, name: str) -> tuple[list[int], list[str]]:
        """The full blocks of a prompt that are not stored yet, and their names."""
        said = self.said[name]
        found = [(block, f"0:{said[: (at + 1) * SIZE]}") for at, block in enumerate(self.tables[name][: len(said) // SIZE])]
        return [block for block, text in found if text not in self.stored], [
            text for _, text in found if text not in self.stored
        ]

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        """What was prefilled is final; what has landed can be found."""
        for name in [each for each, at in self.state.items() if at == "PREFILLING"]:
            self.state[name] = "PREFILLED"
        for job, _, ok, _ in reports:
            if job not in self.jobs:
                self.counts["duplicate" if job in self.over else "unknown"] += 1
                continue
            order, names = self.jobs.pop(job)
            self.over[job] = "DONE" if ok else "FAILED"
            if ok:
                self.stored |= zip(names, order.target, strict=True)
            self.free_blocks += self.waiting_blocks.intersection(order.source)
            self.waiting_blocks.difference_update(order.source)
        return SettledPlan()

    def finish(self, request: str) -> None:
        """Blocks that a store reads come back when it has landed."""
        busy = {block for order, _ in self.jobs.values() for block in order.source}
        for block in self.tables.pop(request):
            if block in busy and self.is_held(block):
                self.waiting_blocks.add(block)
            else:
                self.free_blocks.append(block)
        del self.state[request]

    abort = finish

    def is_held(self, block: int) -> bool:
        """Whether a block that a store reads stays away."""
        return True

    def table(self, request: str, group: int) -> list[int]:
        """By position."""
        return list(self.tables.get(request, []))

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """It knows no prefix hits on the device."""
        return {}, {slot: text for text, slot in self.stored.items()}

    def request_state(self, request: str) -> str:
        """Three words are enough."""
        state = self.state.get(request, "FINISHED")
        return state if state in ("WAITING", "FINISHED") else "RUNNING"

    def job_state(self, job: int) -> str:
        """Out, or how it ended."""
        return self.over.get(job, "IN_FLIGHT")

    def count(self, what: str) -> int:
        """What it counts."""
        return self.counts[what] if what in self.counts else super().count(what)

    def pending(self) -> bool:
        """A store is out."""
        return bool(self.jobs)


class Early(Naive):
    """The planted bug: a finished request's blocks are free at once, whoever still reads them."""

    def is_held(self, block: int) -> bool:
        """It does not look."""
        return False
