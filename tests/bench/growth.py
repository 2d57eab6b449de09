"""How much more an operation costs when there is four times as much of what is beside it.

Each operation is made at a size and at four times that size, in turns, in the processor's time. *Its work* says how much more
there is to do then: four times as much where it names four times as many things, no more where it only passes them. A factor
above its work is a cost that grows worse than what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from blocklife.ledger import Batch, Checking, Completion, Ledger, Limits, Result, Worker
from blocklife.ledger.jobs import GroupTransfer, Jobs, Sealed, Store
from blocklife.offload import BelowIndex, BelowPolicies, Geometry, HostTier, OffloadScheduler, Policies
from blocklife.offload._lookup import Answer
from blocklife.offload._stores import Chunk
from blocklife.states import Slot
from tests.bench import Figure, Scale, microseconds

MORE = 4
_BLOCK = 4
_RUNNING = 50
_ACTS = 12
"""How often an operation is made in one world."""

Act = Callable[[], object]


@frozen
class Operation:
    """One operation, and how to bring about a world of some size in which to make it."""

    name: str
    things: str
    """What there is more of."""
    size: int
    world: Callable[[int], Act]
    """Gives the operation; it can be made `_ACTS` times, and does as much each time."""
    work: int = 1
    """How much more it has to do where there is four times as much."""


class Empty:
    """A store below that has nothing, and says so at once."""

    is_up = True

    def ask(self, _space: bytes, contents: Sequence[tuple[int, bytes]]) -> list[Answer]:
        return [Answer.MISS] * len(contents)

    def discard(self, _space: bytes, _contents: Sequence[tuple[int, bytes]]) -> None: ...

    def note_put(self, _space: bytes, _contents: Sequence[tuple[int, bytes]]) -> None: ...

    def new_space(self) -> bytes:
        return b"new"


class World:
    """A scheduler and its ledger."""

    def __init__(
        self,
        *,
        requests: int = 8,
        blocks: int,
        slots: int,
        jobs: int = 16,
        policy: str = "lru",
        job_blocks: int = 1,
        below: BelowIndex | None = None,
    ) -> None:
        limits = Limits(num_blocks=blocks + 1, num_slots=slots, max_requests=requests, max_jobs=jobs)
        self.ledger = Ledger(limits, checking=Checking.OFF, deadline=1e9)
        self.tier = HostTier(self.ledger, policy, max_events=0)
        self.offload = OffloadScheduler(
            self.ledger,
            self.tier,
            Geometry.parse(f"full:{_BLOCK}"),
            Policies(plans_ahead=_ACTS, max_job_blocks=job_blocks),
            below=below,
            below_policies=None if below is None else BelowPolicies(max_slots=4, job_slots=4),
        )

    def add(self, name: str, blocks: int = 1) -> int:
        """Add a request whose prompt fills some blocks and begins another. Returns its tokens."""
        tokens = blocks * _BLOCK + 1
        self.offload.add_request(name, lambda _, start, stop: _keys(name, start, stop), prompt_tokens=tokens)
        return tokens

    def run(self, name: str, blocks: int = 1) -> None:
        """Add a request that computes its prompt in this step."""
        tokens = self.add(name, blocks)
        self.offload.admit(name, self.offload.lookup(name, tokens), tokens)

    def step(self, *, lands: bool = False) -> None:
        """A plan, and its settling; with *lands* all of its copies have landed."""
        plan = self.offload.build_plan(0.0)
        jobs = plan.submitted
        landed = [Completion(job, Worker(0), Result.OK) for job in jobs] if lands else []
        self.offload.settle(plan.number, 0.0, completions=landed)

    def sealed(self, keys: list[bytes]) -> Batch[Sealed]:
        """Blocks of one request with this content."""
        self.ledger.add_request("filler")
        return self.ledger.seal(self.ledger.allocate("filler", len(keys)), keys)

    def fill(self, keys: list[bytes]) -> None:
        """Bring content to the host tier; the device forgets it."""
        slots = self.tier.reserve([(0, key) for key in keys]) or []
        for slot in slots:
            self.offload._stores.suffix[slot] = 1
        final = self.sealed(keys)
        self.ledger.plan_store(Store.of(final, slots, keys))
        self.step(lands=True)
        self.ledger.finish("filler")
        self.ledger.drop(final.lives)

    def copying(self, count: int) -> None:
        """Submit so many stores of one block each."""
        keys = _keys("filler", 0, count)
        final = self.sealed(keys)
        for at, key in enumerate(keys):
            self.ledger.plan_store(Store.of(Batch(final.lives[at : at + 1]), [at], [key], owner="filler"))
        self.ledger.settle(self.ledger.dispatch(0.0).number, 0.0)


def _keys(name: str, start: int, stop: int) -> list[bytes]:
    return [f"{name} {at}".encode() for at in range(start, stop)]


# --- the operations -----------------------------------------------------------------------------------------------------


def _no_room(policy: str) -> Callable[[int], Act]:
    def world(size: int) -> Act:
        made = World(blocks=size + 8, slots=size, policy=policy)
        made.fill(_keys("filler", 0, size))
        made.ledger.pin("somebody", made.ledger.slots.where(Slot.READY))
        made.run("waits", 2)
        return made.step

    return world


def _preempted(size: int) -> Act:
    made = World(requests=size, blocks=2 * size, slots=size, jobs=size)
    names = [f"r{at}" for at in range(size)]
    for name in names:
        made.run(name)
    made.step()
    made.step()  # now the workers have the stores

    def act() -> None:
        made.offload._state.preempted.update(dict.fromkeys(names))
        made.offload.build_plan(0.0)  # a plan that settles would end the jobs that it waits for

    return act


def _behind_fence(size: int) -> Act:
    made = World(blocks=size, slots=size, jobs=size)
    made.copying(size)
    made.ledger.finish("filler")
    made.ledger.add_request("next")
    return lambda: made.ledger.allocate("next", 1)


def _submitted(size: int) -> Act:
    made = World(blocks=size, slots=size, jobs=size)
    made.copying(size)
    return made.ledger.jobs.submitted


def _running(size: int) -> Act:
    made = World(requests=size, blocks=2 * _RUNNING, slots=8)
    for at in range(size):
        made.add(f"r{at}")
    for at in range(0, size, size // _RUNNING):
        made.offload.admit(f"r{at}", made.offload.lookup(f"r{at}", _BLOCK + 1), _BLOCK + 1)
    made.step()
    return made.offload.requests.running


def _loading(size: int) -> Act:
    made = World(requests=size + 1, blocks=size, slots=size, jobs=size + 1)
    names = [f"r{at}" for at in range(size)]
    made.fill([key for name in names for key in _keys(name, 0, 1)])
    for name in names:
        made.offload.admit(name, made.offload.lookup(name, made.add(name)), 0)
    made.step()
    return made.step


def _in_line(size: int) -> Act:
    made = World(blocks=size, slots=size, jobs=4)
    keys = _keys("filler", 0, size)
    final = made.sealed(keys)
    lives = [int(life) for life in final.lives]
    made.offload._stores.offer(
        [Chunk(f"r{at}", 0, key, [life]) for at, (key, life) in enumerate(zip(keys, lives, strict=True))]
    )
    made.step()
    return made.step


def _prompt(size: int) -> Act:
    """Somebody computes a prompt, and all of it is stored by one job, which is planned before the content is final."""
    made = World(blocks=size + 1, slots=size, job_blocks=size)
    names = iter([f"r{at}" for at in range(100)])

    def act() -> None:
        name = next(names)
        made.run(name, size)
        made.step()
        made.offload.finish(name)
        made.step(lands=True)

    return act


def _to_demote(size: int) -> Act:
    made = World(blocks=size, slots=size, below=Empty())
    made.fill(_keys("filler", 0, size))
    return lambda: made.step(lands=True)


def _round_trip(size: int) -> Act:
    """As many stores, one job each: planned, submitted, waited for, and told of."""
    ledger = World(blocks=size, slots=size, jobs=size).ledger
    ledger.add_request("a")
    names = [number.to_bytes(4, "little") for number in range(size)]
    lives = ledger.seal(ledger.allocate("a", size), names).lives
    slots = list(range(size))

    def act() -> None:
        transfers = [
            GroupTransfer(Batch[Sealed]([life]), [slot], [key]) for life, slot, key in zip(lives, slots, names, strict=True)
        ]
        ledger.plan_store(*[Store("a", [each]) for each in transfers])
        first = ledger.dispatch(0.0)
        jobs = [each.job for each in first.stores]
        ledger.flush(Jobs(tuple(jobs)), "all of them")
        second = ledger.dispatch(0.0)
        ledger.settle(first.number, 0.0)
        ledger.settle(second.number, 0.0, completions=[Completion(job, Worker(0), Result.OK) for job in jobs])
        ledger.evict(slots)

    return act


OPERATIONS = (
    Operation("stores there and back", "jobs", 500, _round_trip, work=MORE),
    Operation("a step, a store waits, all slots pinned, lru", "slots", 5_000, _no_room("lru")),
    Operation("a step, a store waits, all slots pinned, arc", "slots", 5_000, _no_room("arc")),
    Operation("build_plan after preemptions", "requests with jobs", 250, _preempted, work=MORE),
    Operation("allocate one block behind a fence", "jobs", 1_000, _behind_fence),
    Operation("submitted()", "jobs", 1_000, _submitted, work=MORE),
    Operation(f"running(), {_RUNNING} run", "waiting requests", 1_000, _running),
    Operation("an empty step", "loading requests", 200, _loading),
    Operation("an empty step, no room for a job", "owners in line", 5_000, _in_line),
    Operation("a prompt that one job stores", "blocks", 1_000, _prompt, work=MORE),
    Operation("a step that demotes four slots", "slots to be demoted", 5_000, _to_demote),
)


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite: the cost at four times the size beside that at the size, and the factor beside the work."""
    figures = []
    for operation in OPERATIONS:
        size = operation.size if scale.full else 2 * _RUNNING
        larger = MORE * size
        acts = {"small": operation.world(size), "large": operation.world(larger)}
        cost = microseconds(acts, _ACTS if scale.full else 2)
        figures.append(
            Figure(
                name=f"{operation.name}: {larger:,} {operation.things}",
                ours=cost["large"],
                unit="us",
                peer_name=f"{size:,} {operation.things}",
                peer=cost["small"],
            )
        )
        figures.append(
            Figure(
                name=f"{operation.name}: factor",
                ours=cost["large"] / cost["small"],
                unit=f"times, for {MORE} times as many",
                peer_name="its work",
                peer=float(operation.work),
                target=f"at most {operation.work}, and some",
            )
        )
    return figures
