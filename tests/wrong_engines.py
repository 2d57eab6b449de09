"""Our engine with a bug each: what it tells its workers, hears of them, or claims of itself is wrong.

`tests/testing/test_scenarios.py` shows for each scenario that some of them does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from attrs import evolve

from blocklife.errors import MisuseError
from blocklife.states import Job
from blocklife.testing import EngineSetup, EngineStep, Landing, LookedUp, OurDriver, SettledPlan
from blocklife.testing.scenarios._embedded_driver import _Entries
from blocklife.testing.worlds._tier import Entry


class Wrong(OurDriver):
    """Tells its workers something else, or believes something else of them."""

    def told(self, found: EngineStep) -> EngineStep:
        """What the workers are told of a step."""
        return found

    def heard(self, reports: Sequence[Landing]) -> Sequence[Landing]:
        """The reports as the engine takes them."""
        return reports

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        return self.told(super().step(compute=compute, let_in=let_in, preempt=preempt))

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        return super().settle(self.heard(reports), launched=launched, sampled=sampled)


class Forgetful(Wrong):
    """Does not tell its workers to wait."""

    def told(self, found: EngineStep) -> EngineStep:
        return evolve(found, orders=found.orders._replace(flushes=()))


class Idle(Wrong):
    """Does not tell its workers to copy."""

    def told(self, found: EngineStep) -> EngineStep:
        return evolve(found, orders=found.orders._replace(loads=(), stores=()))


class Gullible(Wrong):
    """Takes every report for a good one."""

    def heard(self, reports: Sequence[Landing]) -> Sequence[Landing]:
        return [each._replace(ok=True) for each in reports]


class Upset(Wrong):
    """Does not expect a report of what it does not know."""

    def heard(self, reports: Sequence[Landing]) -> Sequence[Landing]:
        for each in reports:
            if not self.ledger.jobs.is_out(each.job):
                raise KeyError(each.job)
        return reports


class Hasty(Wrong):
    """Takes one worker's report for that of all."""

    def heard(self, reports: Sequence[Landing]) -> Sequence[Landing]:
        return [each._replace(worker=rank) for each in reports for rank in range(self.world.workers)]


def submitted(driver: OurDriver) -> list[int]:
    """The jobs that the workers have."""
    return [job.number for job in driver.ledger.jobs.alive() if job.state is not Job.PLANNED]


class Careless(OurDriver):
    """Calls the device quiet whenever somebody goes, or time passes."""

    def abort(self, request: str) -> None:
        super().abort(request)
        self.prove_quiet([job.number for job in self.ledger.jobs.alive()])

    def advance(self, steps: int) -> None:
        super().advance(steps)
        if steps > 1:
            self.prove_quiet(submitted(self))


class Stubborn(OurDriver):
    """Forgets nothing, whatever it is told, and finds room in a full host."""

    def reset(self, *, drain: bool) -> None:
        pass

    def renew(self, generation: str) -> None:
        pass

    def crowd_host(self, slots: int) -> bool:
        return True


class Yielding(OurDriver):
    """Does nothing instead of refusing."""

    def free(self, request: str, blocks: Sequence[int]) -> None:
        with suppress(MisuseError):
            super().free(request, blocks)

    def unpin(self, holder: str, contents: Sequence[str]) -> None:
        with suppress(MisuseError):
            super().unpin(holder, contents)

    def cancel(self, job: int) -> None:
        with suppress(MisuseError):
            super().cancel(job)

    def submit(self, job: int) -> None:
        with suppress(MisuseError):
            super().submit(job)

    def agree(self, ranks: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
        return ranks[0] if ranks else {}

    def plan_store(self, request: str, blocks: Sequence[int], contents: Sequence[str]) -> int:
        return super().plan_store(request, blocks, contents) if blocks else 1


class Rash(OurDriver):
    """Gives back at once what a plan still writes, and counts on content that nobody asked for."""

    def finish(self, request: str) -> None:
        if self.request_state(request) == "RUNNING":
            self.preempt(request)
        super().finish(request)

    def abort(self, request: str) -> None:
        super().abort(request)
        self.ledger.pin("nobody", [0])


class OneEvent(Wrong):
    """Takes one report for that of every copy that is out."""

    def heard(self, reports: Sequence[Landing]) -> Sequence[Landing]:
        return [each._replace(job=job) for each in reports for job in submitted(self)]


class Certain(OurDriver):
    """Takes a token for computed once it is known, and a chunk for whole once a part of it is there."""

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        blocks, places = super().claims()
        size = self.world.blocks_per_chunk
        whole = {slot * size + at: "0:whole" for slot in {place // size for place in places} for at in range(size)}
        known = {
            block: f"0:{self.engine.texts[name][: (at + 1) * 4]}"
            for name in self.ledger.requests
            for at, block in enumerate(self.table(name, 0))
            if block and size == 1
        }
        return {**blocks, **known}, {**whole, **places}


class Clinging(OurDriver):
    """Lets a request go on whose step is out, though it was preempted."""

    def preempt(self, request: str) -> None:
        if not self.scheduler.plans_out:
            super().preempt(request)


class Unproven(OurDriver):
    """Lets hits of a drafter's groups end with the last block that is there."""

    def start(self, world: EngineSetup) -> None:
        super().start(evolve(world, groups=world.groups.replace("+drafter", "")))


class Uniform(OurDriver):
    """Takes the blocks of every group for as large as those of the first."""

    def start(self, world: EngineSetup) -> None:
        first, *others = world.groups.split(",")
        size = first.split(":")[1]
        super().start(evolve(world, groups=",".join([first, *(f"{each.split(':')[0]}:{size}" for each in others)])))


class Unaligned(OurDriver):
    """Lets a hit end wherever one of its groups has a block's end."""

    def start(self, world: EngineSetup) -> None:
        super().start(world)
        self.scheduler._search._host_units.alignment = 1


class Deaf(OurDriver):
    """Does not hold what another owner reads."""

    def lend(self, request: str) -> Mapping[int, str]:
        found = super().lend(request)
        super().give_back(request)
        return found

    def give_back(self, request: str) -> None:
        pass


class Advertising(Wrong):
    """Counts blocks that are stored as one as if each of them could be hit alone."""

    def told(self, found: EngineStep) -> EngineStep:
        told = set(self.claims()[1].values())
        hits = {
            name: LookedUp(4 * sum(f"0:{self.engine.texts[name][: 4 * at]}" in told for at in range(1, 5)))
            for name in found.hits
        }
        return evolve(found, hits=hits)


class Deepest(OurDriver):
    """Begins where the deepest state is, whatever the attention before it has."""

    def start(self, world: EngineSetup) -> None:
        super().start(world)
        self.scheduler._search._device_units.full.clear()


class Thrifty(OurDriver):
    """Stores only what it knows the name of when it plans: the prompt."""

    def start(self, world: EngineSetup) -> None:
        super().start(evolve(world, policies=evolve(world.policies, prompt_only=True)))


class PrefixBlind(OurDriver):
    """Names a block by its own tokens, whatever stands before it."""

    def start(self, world: EngineSetup) -> None:
        super().start(world)
        know = self.engine.know

        def know_blindly(name: str, text: str, prompt: int) -> None:
            know(name, text, prompt)
            sizes = self.engine.geometry.block_tokens
            self.engine._keys[name] = lambda group, start, stop: [
                f"{group}:{text[at * sizes[group] : (at + 1) * sizes[group]]}".encode() for at in range(start, stop)
            ]

        setattr(self.engine, "know", know_blindly)  # noqa: B010 - a method


class Remembering(OurDriver):
    """Believes that a block still has what it had before somebody else got it."""

    def start(self, world: EngineSetup) -> None:
        super().start(world)
        self.had: dict[int, str] = {}

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        blocks, places = super().claims()
        self.had |= blocks
        return self.had, places


class Overbooked(Wrong):
    """Lets who finds no room compute in the first block of somebody else."""

    def told(self, found: EngineStep) -> EngineStep:
        taken = [self.table(name, 0)[0] for name in self.ledger.requests if self.table(name, 0)][: len(found.no_room)]
        reads, writes = found.orders.forward
        wrong = [(block, f"0:{self.engine.texts[name][:4]}") for block, name in zip(taken, found.no_room, strict=False)]
        forward = found.orders.forward._replace(reads=reads, writes=(*writes, *wrong))
        return evolve(found, orders=found.orders._replace(forward=forward), handed_out=(*found.handed_out, *taken))


class Transposed(Wrong):
    """Takes the first group of a copy for the second, where both have the same shape."""

    def told(self, found: EngineStep) -> EngineStep:
        stores = tuple(
            order._replace(source=(*order.source[order.sizes[0] :], *order.source[: order.sizes[0]]))
            if len(set(order.sizes)) == 1
            else order
            for order in found.orders.stores
        )
        return evolve(found, orders=found.orders._replace(stores=stores))


class Blind(Wrong):
    """Takes what has come from the store below for all that it asked for."""

    def heard(self, reports: Sequence[Landing]) -> Sequence[Landing]:
        return [each._replace(missing=()) for each in reports]


class OneSpace(OurDriver):
    """Asks the store below under the same names, whatever the weights are."""

    def start(self, world: EngineSetup) -> None:
        super().start(world)
        if self._index is not None:
            ask, self.passes.entries = self._index.ask, _Spaceless(world.below)
            setattr(self._index, "ask", lambda _, contents: ask(b"", contents))  # noqa: B010 - a method


class _Spaceless(_Entries):
    def __getitem__(self, entry: Entry) -> int:
        return super().__getitem__((b"", *entry[1:]))


class Waiting(Wrong):
    """Does not hear of a copy that has failed."""

    def heard(self, reports: Sequence[Landing]) -> Sequence[Landing]:
        return [each for each in reports if each.ok]


class Impatient(OurDriver):
    """Ends a lease as soon as it is given."""

    def lease(self, request: str, steps: int) -> Mapping[int, str]:
        found = super().lease(request, steps) if request not in self._lapsed else {}
        self.give_back(request)
        self._lapsed.add(request)
        return found


class Forgiving(OurDriver):
    """Takes back by number what an owner gives back, whoever has it by now."""

    def lease(self, request: str, steps: int) -> Mapping[int, str]:
        self.leased_out = super().lease(request, steps)
        return self.leased_out

    def give_back(self, request: str) -> None:
        super().give_back(request)
        for name in self.scheduler.requests.running():
            held = [at for at, block in enumerate(self.table(name, 0)) if block in self.leased_out]
            self.ledger.release(name, held)


class Unfenced(OurDriver):
    """Does not hold the source of a copy on the device."""

    def copy_block(self, request: str, source: int, target: int) -> None:
        super().copy_block(request, source, target)
        self.ledger.finish(self._block_copies[-1].holder)
        self._block_copies[-1] = evolve(self._block_copies[-1], holder="")

    def _end_copies(self, plan: int) -> None:
        self._copying.pop(plan, None)


class Sparing(Wrong):
    """Copies a block once, however many want a copy."""

    def told(self, found: EngineStep) -> EngineStep:
        return evolve(found, orders=found.orders._replace(block_copies=found.orders.block_copies[:1]))


class Misread(Wrong):
    """Counts states in blocks of the attention for who has loaded one, and so looks behind the end of its table."""

    loaded: tuple[str, ...] = ()

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        found = super().settle(reports, launched=launched, sampled=sampled)
        self.loaded += found.loaded
        return found

    def told(self, found: EngineStep) -> EngineStep:
        if not self.loaded:
            return found
        forward = found.orders.forward
        reads = tuple((0 if str(content).startswith("1:") else block, content) for block, content in forward.reads)
        return evolve(found, orders=found.orders._replace(forward=forward._replace(reads=reads)))


class Scratch(OurDriver):
    """Takes the state that a request has for the one at the last end of a block before it."""

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        blocks, places = super().claims()
        for name in self.scheduler.requests.running():
            whole = self.scheduler.requests.progress(name).computed // 4 * 4
            if whole:
                blocks = {**blocks, self.table(name, 1)[-1]: f"1:{self.engine.texts[name][:whole]}"}
        return blocks, places


class Untold(OurDriver):
    """Tells its workers nothing of who was preempted or is over."""

    def _tell_rows(self) -> None:
        before = self._rows
        super()._tell_rows()
        self._rows = {**before, **self._rows}


class Appending(OurDriver):
    """Tells its workers the table of a request that comes back as if it were more of the old one."""

    def start(self, world: EngineSetup) -> None:
        super().start(world)
        self.gone: dict[str, list[list[int]]] = {}

    def _tell_rows(self) -> None:
        before = self._rows
        super()._tell_rows()
        self.gone |= {name: rows for name, rows in before.items() if name not in self._rows}
        for name in set(self.gone) & set(self._rows):
            self._rows[name] = [old + new for old, new in zip(self.gone[name], self._rows[name], strict=True)]
