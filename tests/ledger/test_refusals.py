"""What a refusal says: every one of them as a sentence, and those that an engine meets, as the real ledger says them.

Goal: who is refused reads what is in the way, by name, and what to do. Method: `refusals.txt` holds every refusal of the four
machines, and is compared; `make spec` writes it anew: read the lines that have changed before you commit them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blocklife.core._refused import KernelRefusal, Why
from blocklife.core._tables import J_CANCEL, R_ADMIT
from blocklife.errors import MisuseError, RefusedError
from blocklife.ledger import (
    Completion,
    Contract,
    GroupTransfer,
    JobId,
    Jobs,
    Launched,
    Ledger,
    Limits,
    Placement,
    Result,
    Store,
    Worker,
)
from blocklife.ledger import _refusals as refusals
from blocklife.ledger._refusals import Bystanders, Toucher
from blocklife.ledger.jobs import Planned
from blocklife.lifecycle import guard
from blocklife.states import MACHINES
from tests.ledger import refusals as page


def test_page_has_every_refusal_as_it_is_said() -> None:
    """A word that changes is seen here; the page is written anew with one command."""
    told = page.PAGE.read_text(encoding="utf-8").splitlines()

    assert told == list(page.lines()), f"{page.PAGE.name} is out of date: run `make spec`, and read the lines that change"


def test_words_of_refusals_are_whole() -> None:
    """A state, or an event, has words for each of its refusals or for none, and no words are left that nothing can say.

    Without words those of the table are said: the value of the state, and the rows that would help.
    """
    without_row = {
        (f"{machine}.{event}", state)
        for machine, table in MACHINES.items()
        for event in table.events
        for state in table.states
        if not table.events[event].rows_of(state)
    }

    written = {(event, state) for event, by_state in refusals._REMEDIES.items() for state in by_state}
    wanted = {(event, state) for event, state in without_row if event in refusals._REMEDIES and state in refusals._STANDS}
    missing, dead = (
        ", ".join(sorted(f"{event} while {state}" for event, state in each))
        for each in (wanted - written, written - without_row)
    )

    assert not missing, f"blocklife/ledger/_refusals.py: no remedy for {missing} (write it in _REMEDIES)"
    assert not dead, f"blocklife/ledger/_refusals.py: nothing is refused for {dead} (take it out of _REMEDIES)"


def test_every_guard_that_can_refuse_says_what_is_in_the_way() -> None:
    """In the table, too, for machines and recordings that know of no job."""
    can_refuse = {
        row.guard
        for machine, table in MACHINES.items()
        for row in table.rows
        if row.guard is not None and page.refused(table, row.source, row.event)
    }

    assert sorted(each.name for each in can_refuse) == ["fenced", "idle", "lendable", "unpinned"]
    assert all(each.otherwise for each in can_refuse)


@pytest.mark.parametrize("machine", list(MACHINES))
def test_sentences_have_no_gaps(machine: str) -> None:
    """The ledger names no guard, no count of its own, and leaves no blank."""
    said = [line for line in page.lines() if line.startswith(f"{page.THINGS[machine]}: ")]

    assert len(said) > 10
    for line in said:
        words = set(line.replace(":", " ").replace("(", " ").replace(")", " ").replace(",", " ").split())
        assert not words & {"guard", "guards", "refs", "pins", "overdue", "None"}
        assert "{" not in line
        assert line.count("(") == line.count(")") == 1


# --- who is in the way --------------------------------------------------------------------------------------------------


def test_many_names_are_cut() -> None:
    """Four are said; of more, three, and how many there are besides."""
    names = [f"r{number}" for number in range(6)]

    assert Bystanders(requests=tuple(names[:1])).held() == ["request r0 holds it"]
    assert Bystanders(requests=tuple(names[:4])).held() == ["requests r0, r1, r2 and r3 hold it"]
    assert Bystanders(requests=tuple(names)).held() == ["requests r0, r1, r2 and 3 more hold it"]


@pytest.mark.parametrize(("refs", "said"), [(0, []), (1, ["1 request holds it"]), (2, ["2 requests hold it"])])
def test_holders_are_counted_where_nobody_knows_their_names(refs: int, said: list[str]) -> None:
    """An engine may drive blocks whose tables the ledger does not have."""
    assert Bystanders(refs=refs).held() == said


def test_jobs_are_said_by_what_they_do() -> None:
    """One clause for each deed; what ends them is said for all."""
    there = Bystanders(
        (
            Toucher("1.1", writes=False),
            Toucher("1.2", writes=False),
            Toucher("1.3", writes=True, planned=True, load=True),
            Toucher("1.4", writes=True, expired=True),
            Toucher("1.5", writes=True, expired=True),
        )
    )

    assert there.touched() == [
        "jobs 1.1 and 1.2 still read it",
        "job 1.3 will write it",
        "jobs 1.4 and 1.5 are past their deadline and may still write it",
    ]
    assert there.end() == (
        "wait for jobs 1.1, 1.2 and 1.3 to land, and "
        "wait for jobs 1.4 and 1.5 to report, or quiesce them once the device is proven idle"
    )
    assert Bystanders().end() == "wait for its job to land"


@pytest.mark.parametrize("why", list(Why), ids=lambda each: each.name)
def test_every_reason_of_the_kernel_is_said_as_a_sentence(why: Why) -> None:
    """It names the thing, and none of the kernel's own words; nothing falls back to numbers."""
    scene = Scene()
    scene.stored()
    core = scene.ledger._state.core
    rows = {Why.NO_JOB_ROW: J_CANCEL, Why.NO_REQUEST_ROW: R_ADMIT, Why.BELOW_ZERO: 1, Why.TOO_MANY: 1}
    other = rows.get(why, 0)

    said = str(scene.ledger._state.refusals.of(KernelRefusal(why, 1, other, core.rules.acquire, b"key"), "acquire"))

    assert why.name not in said
    assert re.match(r"(block|slot|job|request|key|group|acquire|all|\d+)\b.* \w+", said), said
    assert len(said.split()) > 5, said


# --- the real ledger ----------------------------------------------------------------------------------------------------


class Scene:
    """A ledger of an engine with its own allocator: request a has block 1, sealed, and block 2, in the making."""

    def __init__(self, contract: Contract = Contract.HOLD) -> None:
        limits = Limits(num_blocks=80, num_slots=80, max_jobs=8, max_requests=8)
        self.ledger = ledger = Ledger(limits, contract=contract, own_pool=False, incarnation=1, deadline=10.0)
        for name in ("a", "b"):
            ledger.add_request(name)
        ledger.admit("a")
        self.sealed = ledger.seal(ledger.observe_place("a", [Placement(allocated=[1])])[0], [b"one"])
        self.open = ledger.observe_place("a", [Placement(allocated=[2])])[0]

    def store(self, slot: int = 8, key: bytes = b"one") -> Jobs[Planned]:
        """Plan a store of block 1."""
        return self.ledger.plan_store(Store.of(self.sealed, [slot], [key]))

    def submitted_store(self, now: float = 0.0) -> JobId:
        """The same, and the workers have it."""
        (job,) = self.store().ids
        self.ledger.dispatch(now)
        return job

    def report(self, job: JobId) -> None:
        """The worker has moved all of it."""
        self.ledger.complete(Completion(job, Worker(0), Result.OK))

    def stored(self) -> None:
        """Slot 8 is READY with the content of block 1."""
        self.report(self.submitted_store())

    def load(self) -> JobId:
        """The workers load slot 8 into block 5, which request b holds."""
        (job,) = self.ledger.plan_load(
            "b", GroupTransfer(self.ledger.observe_place("b", [Placement(allocated=[5])])[0], [8])
        ).ids
        self.ledger.dispatch(1.0)
        return job


def allocate_while_read(scene: Scene) -> None:
    scene.submitted_store()
    scene.ledger.observe_free("a", [1])
    scene.ledger.observe_place("b", [Placement(allocated=[1])])


def allocate_while_held_and_read(scene: Scene) -> None:
    scene.submitted_store()
    scene.ledger.observe_place("b", [Placement(taken=[1])])
    scene.ledger.observe_place("b", [Placement(allocated=[3, 1])])


def allocate_before_the_store_is_submitted(scene: Scene) -> None:
    scene.store()
    scene.ledger.observe_free("a", [1])
    scene.ledger.observe_place("b", [Placement(allocated=[1])])


def allocate_what_a_load_still_writes(scene: Scene) -> None:
    scene.stored()
    scene.load()
    scene.ledger.preempt("b")
    scene.ledger.observe_place("a", [Placement(allocated=[5])])


def allocate_what_an_overdue_load_may_write(scene: Scene) -> None:
    scene.stored()
    job = scene.load()
    scene.ledger.launched(Launched(job, Worker(0)), 2.0)
    scene.ledger.expire(13.0)
    scene.ledger.observe_place("a", [Placement(allocated=[5])])


def seal_behind_a_fence(scene: Scene) -> None:
    scene.submitted_store()
    scene.ledger.observe_free("a", [1])
    scene.ledger.seal(scene.ledger.observe_place("b", [Placement(allocated=[1])])[0], [b"two"])


def evict_what_a_load_reads(scene: Scene) -> None:
    scene.stored()
    scene.load()
    scene.ledger.evict([8])


def evict_what_is_pinned(scene: Scene) -> None:
    scene.stored()
    scene.ledger.pin("the lookup of b", [8])
    scene.ledger.evict([8])


def evict_what_is_read_and_pinned(scene: Scene) -> None:
    scene.stored()
    scene.load()
    scene.ledger.pin("b", [8])
    scene.ledger.pin("c", [8])
    scene.ledger.evict([8])


def evict_while_a_store_fills_it(scene: Scene) -> None:
    scene.submitted_store()
    scene.ledger.evict([8])


def submit_before_seal(scene: Scene) -> None:
    scene.ledger.submit(scene.ledger.plan_store(Store.of(scene.open, [8], [b"two"])))


def drop_what_is_held(scene: Scene) -> None:
    scene.submitted_store()
    scene.ledger.observe_place("b", [Placement(taken=[1])])
    scene.ledger.drop(scene.sealed.lives)


def store_twice(scene: Scene) -> None:
    scene.submitted_store()
    scene.store(slot=9, key=b"other")


def take_what_is_not_sealed(scene: Scene) -> None:
    scene.ledger.observe_place("b", [Placement(taken=[2])])


def load_twice(scene: Scene) -> None:
    scene.stored()
    scene.load()
    scene.ledger.plan_load("b", GroupTransfer(scene.ledger.observe_place("b", [Placement(allocated=[6])])[0], [8]))


def allocate_many_of_which_one_is_held(scene: Scene) -> None:
    scene.ledger.observe_place("b", [Placement(allocated=[*range(70, 9, -1), 2])])


def evict_many_of_which_one_is_read(scene: Scene) -> None:
    scene.stored()
    scene.load()
    scene.ledger.evict([*range(70, 7, -1)])


def admit_twice(scene: Scene) -> None:
    scene.ledger.admit("a")


def admit_who_loads(scene: Scene) -> None:
    scene.stored()
    scene.load()
    scene.ledger.admit("b")


def cancel_what_is_submitted(scene: Scene) -> None:
    scene.ledger.cancel(Jobs((scene.submitted_store(),)))


HOLD, FENCE = Contract.HOLD, Contract.FENCE

SAID: list[tuple[Contract, Callable[[Scene], None], str]] = [
    (
        *(HOLD, allocate_while_read),
        "block 1: cannot ALLOCATE while IN_FLIGHT: job 1.1 still reads it, and the contract is hold (wait for job 1.1 to land)",
    ),
    (
        *(HOLD, allocate_while_held_and_read),
        "block 1: cannot ALLOCATE while IN_FLIGHT: requests a and b hold it, job 1.1 still reads it, and the contract is hold "
        "(release it first, then wait for job 1.1 to land)",
    ),
    (
        *(FENCE, allocate_while_held_and_read),
        "block 1: cannot ALLOCATE while IN_FLIGHT: requests a and b hold it (release it first)",
    ),
    (
        *(HOLD, allocate_before_the_store_is_submitted),
        "block 1: cannot ALLOCATE while PENDING_STORE: job 1.1 will read it, and the contract is hold "
        "(cancel job 1.1 or wait for it to land)",
    ),
    (
        *(FENCE, allocate_what_a_load_still_writes),
        "block 5: cannot ALLOCATE while STALE: job 1.2 still writes it (wait for job 1.2 to land)",
    ),
    (
        *(HOLD, allocate_what_a_load_still_writes),
        "block 5: cannot ALLOCATE while STALE: job 1.2 still writes it, and the contract is hold (wait for job 1.2 to land)",
    ),
    (
        *(FENCE, allocate_what_an_overdue_load_may_write),
        "block 5: cannot ALLOCATE while QUARANTINED: its content is forgotten, and job 1.2 is past its deadline and may still "
        "write it (wait for job 1.2 to report, or quiesce it once the device is proven idle)",
    ),
    (
        *(FENCE, seal_behind_a_fence),
        "block 1: cannot SEAL while FLUSHED: request b holds it, and job 1.1 still reads it for its previous holder "
        "(settle the plan that waits for job 1.1 first)",
    ),
    (HOLD, evict_what_a_load_reads, "slot 8: cannot EVICT while READY: job 1.2 still reads it (wait for job 1.2 to land)"),
    (
        *(HOLD, evict_what_is_pinned),
        "slot 8: cannot EVICT while READY: the lookup of b has pinned it (let the lookup of b unpin it)",
    ),
    (
        *(HOLD, evict_what_is_read_and_pinned),
        "slot 8: cannot EVICT while READY: job 1.2 still reads it, and b and c have pinned it "
        "(wait for job 1.2 to land, and let b and c unpin it)",
    ),
    (
        HOLD,
        evict_while_a_store_fills_it,
        "slot 8: cannot EVICT while WRITING: job 1.1 still writes it (wait for job 1.1 to land)",
    ),
    (
        *(HOLD, submit_before_seal),
        "block 2: cannot SUBMIT while PLEDGED: request a holds it, its content is not final, and job 1.1 will read it "
        "(seal it first)",
    ),
    (HOLD, drop_what_is_held, "block 1: cannot DROP while IN_FLIGHT: requests a and b hold it (release it first)"),
    (
        *(HOLD, store_twice),
        "block 1: cannot PLAN_STORE while IN_FLIGHT: its content is final, and job 1.1 still reads it "
        "(one store at a time reads a block: wait for job 1.1 to land)",
    ),
    (
        *(HOLD, take_what_is_not_sealed),
        "block 2: cannot ACQUIRE while ALLOCATED: request a holds it, and its content is not final (seal it first)",
    ),
    (
        *(HOLD, load_twice),
        "request b: cannot PLAN_LOAD while LOADING: it waits for job 1.2, which loads its blocks "
        "(a request has one load at a time: wait for job 1.2 to land)",
    ),
    (
        *(HOLD, allocate_many_of_which_one_is_held),
        "block 2: cannot ALLOCATE while ALLOCATED: request a holds it, and its content is not final (release it first)",
    ),
    (HOLD, evict_many_of_which_one_is_read, "slot 70: cannot EVICT while EMPTY: nothing is in it (there is nothing to evict)"),
    (HOLD, admit_twice, "request a: cannot ADMIT while RUNNING: it is in the batch (admit it only once)"),
    (
        *(HOLD, admit_who_loads),
        "request b: cannot ADMIT while LOADING: it waits for job 1.2, which loads its blocks (it runs once job 1.2 has landed)",
    ),
    (
        *(HOLD, cancel_what_is_submitted),
        "job 1.1: cannot CANCEL while IN_FLIGHT: the workers have it (abandon it, and wait for it to land)",
    ),
]


@pytest.mark.parametrize(
    ("contract", "act", "message"), SAID, ids=[f"{act.__name__}-{contract.name.lower()}" for contract, act, _ in SAID]
)
def test_ledger_says_who_is_in_the_way(contract: Contract, act: Callable[[Scene], None], message: str) -> None:
    """By name, with the remedy; and its parts are there for programs."""
    with pytest.raises(RefusedError) as caught:
        act(Scene(contract))

    problem = caught.value
    assert str(problem) == message
    assert (
        message == f"{problem.thing}: cannot {problem.event.upper()} while {problem.state}: {problem.reason} ({problem.remedy})"
    )


def test_contract_quotes_what_the_ledger_says() -> None:
    """The sentences on the page of the engine's contract are among those above, word for word."""
    page_of_contract = (Path(__file__).parents[2] / "specs" / "engine-contract.md").read_text(encoding="utf-8")
    quoted = [line.strip() for line in page_of_contract.splitlines() if line.startswith("    ") and ": cannot " in line]

    assert len(quoted) == 3
    assert set(quoted) <= {message for _, _, message in SAID}


def test_nobody_releases_what_another_holds() -> None:
    """That is no matter of a table: the ledger knows who holds what."""
    with pytest.raises(MisuseError, match=r"^block 1: request b does not hold it \(only its holder may free it\)$"):
        Scene().ledger.observe_free("b", [1])


def test_what_goes_well_asks_for_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for names is paid by who is refused, and by nobody else."""
    asked = []
    for name in ("of_block", "of_slot", "of_job", "of_request"):
        monkeypatch.setattr(refusals.Refusals, name, lambda *_: asked.append(1))
    scene = Scene()
    scene.stored()
    scene.load()
    scene.ledger.finish("a")
    scene.ledger.finish("b")

    assert asked == []


# --- tables that have grown ---------------------------------------------------------------------------------------------

_GROWN = (
    ('    QUARANTINED = "its life is over, but a copy past', '    LEASED = "held, and lent to an export"\n{}'),
    ("        Block.QUARANTINED: Nature(", "        Block.LEASED: Nature(Tone.USE, Trait.ALIVE, Trait.HELD),\n{}"),
    ("    @edge(Block.ALLOCATED, to=Block.SEALED)\n", "    @edge(Block.SEALED, to=Block.LEASED)\n{lease}\n{}"),
    ("    @edge(Block.SEALED, to=Block.CACHED)\n", "{}    @edge(Block.LEASED, to=Block.CACHED)\n"),
)
"""One state of the block and one event more: where each change of `states.py` goes, and what comes there."""
_LEASE = '    def lease(self) -> None:\n        """An export reads it."""\n'
_ASKS = """
from blocklife.errors import RefusedError
from blocklife.ledger import Ledger, Limits
from blocklife.ledger import _refusals as refusals
from blocklife.states import MACHINES, Block

for machine, table in MACHINES.items():
    for event in table.events:
        for state in table.states:
            if (event == "lease" or state.name == "LEASED") and not table.events[event].rows_of(state):
                for there in (refusals.Bystanders(), refusals.Bystanders(requests=("a",))):
                    print(event, state.name, *refusals.sentence(machine, state, event, {}, there), sep=" | ")
ledger = Ledger(Limits(num_blocks=4, num_slots=1))
ledger.add_request("a")
opened = ledger.allocate("a", 1)
ledger._state.core.blocks.state[1] = MACHINES["block"].index[Block.LEASED]
try:
    ledger.seal(opened, [b"k"])
except RefusedError as refused:
    print(refused)
"""


def test_state_and_event_without_words_are_refused_in_those_of_the_table(tmp_path: Path) -> None:
    """Who adds a state need not know of refusals: its value says what is in the way, its rows what would help."""
    package = tmp_path / "blocklife"
    shutil.copytree(Path(refusals.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / "states.py").read_text(encoding="utf-8")
    for before, after in _GROWN:
        assert text.count(before) == 1
        text = text.replace(before, after.format(before, lease=_LEASE) if "{lease}" in after else after.format(before))
    (package / "states.py").write_text(text, encoding="utf-8")
    answer = subprocess.run(
        [sys.executable, "-c", _ASKS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    *said, refused = answer.stdout.splitlines()

    remedy = "(it is allowed while ALLOCATED or PLEDGED)"
    assert refused == f"block 1: cannot SEAL while LEASED: held, and lent to an export {remedy}"
    assert "submit | LEASED | held, and lent to an export | it is allowed while LOADING or PENDING_STORE" in said
    assert "lease | FREED | nobody holds it, and it has no content | it is allowed while SEALED" in said
    assert len(said) == 2 * (len(MACHINES["block"].events) + len(MACHINES["block"].states) - 1)
    assert not [line for line in said if "{" in line or "" in [part.strip() for part in line.split("|")]]


def test_guard_that_asks_for_something_unknown_blames_nothing() -> None:
    """A refusal is worded with what is known of the payload, and never fails itself."""

    @guard
    def paid(refs: int, paid: bool) -> bool:
        return paid & (refs == 0)

    assert refusals.blamed(paid, {"refs": 0}) == []
    assert refusals.blamed(paid, {"refs": 1, "paid": False}) == []
