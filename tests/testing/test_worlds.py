"""The pinned worlds hold, have exactly as many states and steps as is written down, and together take every row of every table.

Method: every small world is explored to its last state, once; what it counted and which rows the real code took is asked
afterwards. Those with more states are marked slow. Where a count differs the message has the line to write.
"""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import attrs
import numpy as np
import pytest
from attrs import evolve
from numpy.typing import NDArray

from blocklife.copiers import Sharing
from blocklife.core._progress import TokenProgress
from blocklife.errors import MisuseError
from blocklife.knobs import Plain, knobs
from blocklife.ledger import Contract
from blocklife.ledger._rows import RowVerbs
from blocklife.offload import Demote, FullHit, LastStep, Mamba, Mode, Policies, SlidingWindow
from blocklife.offload._asking import Asking
from blocklife.offload._lookup import Answer, Unit, _Scan
from blocklife.offload._offers import Offers
from blocklife.offload._search import Search
from blocklife.offload._state import Tracked
from blocklife.offload.records import Hit, TailKeys
from blocklife.policies import BUILT_IN
from blocklife.scheduler_states import SCHEDULER_MACHINES
from blocklife.states import MACHINES
from blocklife.testing import Action, Counterexample, Faults, Verdict, World, WorldSettings, explore, pinned_world
from blocklife.testing.worlds._actions import FAULT_DOCS
from blocklife.testing.worlds._device import CopyOrder
from blocklife.testing.worlds._engine import USUAL, Engine, Settings
from blocklife.testing.worlds._format import (
    PYTHON_IMPORTS,
    UNSAID,
    WORDS,
    as_python,
    make_world,
    read_world,
    said,
    words_of,
)
from blocklife.testing.worlds._pinned import WORLDS, Counts, Pinned
from tests.planting import without
from tests.sparing import once

PAGE = Path(__file__).parents[2] / "specs" / "testing.md"
SMALL = [each for each in WORLDS if not each.large]
QUICK = [each for each in SMALL if each.counts.states <= 3_200]
"""Those that every run explores."""

BY_THE_ENGINE_NEVER = frozenset(
    {
        "block LOADING --release [is_overdue]--> QUARANTINED",
        "block LOADING --land [own_overdue]--> QUARANTINED",
        "block LOADING --land [own_pinned]--> STALE",
        "block QUARANTINED --land [is_overdue]--> QUARANTINED",
        "block QUARANTINED --land [pinned]--> STALE",
        "block LOADING --expire--> LOADING",
        "block QUARANTINED --expire--> QUARANTINED",
        "block PENDING_STORE --drop [idle]--> FREED",
        "lookup DEFERRED --defer--> DEFERRED",
        "lookup FOUND --defer--> DEFERRED",
        "lookup FOUND --find--> FOUND",
        "lookup FOUND --clear--> UNASKED",
        "ending STAYS --finish [computes]--> FINISHING",
        "ending FINISHING --finish [computes]--> FINISHING",
        "ending FINISHING --abort [computes]--> ABORTING",
        "ending FINISHING --finish--> OVER",
        "ending ABORTING --abort [computes]--> ABORTING",
        "ending ABORTING --finish [computes]--> FINISHING",
    }
)
"""Rows of blocks that the scheduler never needs, and engines that call the ledger themselves do (`test_ledger_world.py` takes
all), and rows of lookups and ends that the engine of these worlds has no reason for (`test_stays.py` takes all)."""


class Seen(NamedTuple):
    """What an exploration has found."""

    counts: Counts
    verdict: Verdict
    complete: bool
    counterexamples: tuple[Counterexample[Action], ...]
    taken: frozenset[str]
    overdue: int
    """Requests that went on without content on its way."""


@cache
def seen(name: str) -> Seen:
    """A pinned world, explored once however many tests and processes ask."""
    return once(f"world-{name}", lambda: explored(name))


def explored(name: str) -> Seen:
    """A pinned world, explored now."""
    world = World(pinned_world(name).settings)
    found = explore(world, processes=1)
    taken = frozenset(f"{machine} {row}" for machine, rows in world.coverage().items() for row, times in rows.items() if times)
    counts = Counts(found.states, found.edges, found.depth)
    print(f"{name}: {found.states} states, {found.states_per_second:.0f} a second")
    overdue = world.engine.scheduler.statistics().overdue_requests
    return Seen(counts, found.verdict, found.complete, tuple(found.counterexamples), taken, overdue)


def judge(pinned: Pinned) -> None:
    """It holds, and its counts are those that are written down; somebody waits in vain where waits have an end, only there."""
    found = seen(pinned.name)

    assert found.counterexamples == ()
    assert (found.verdict, found.complete) == (Verdict.HOLDS, True)
    assert bool(found.overdue) is (pinned.settings.engine.policies.pending_wait < inf)
    states, edges, depth = found.counts
    assert pinned.counts == found.counts, f"write below [{pinned.name}]: counts = [{states:_}, {edges:_}, {depth}]"


@pytest.mark.parametrize("pinned", QUICK, ids=lambda each: each.name)
def test_small_world_holds_with_its_pinned_counts(pinned: Pinned) -> None:
    """Every state of it was visited; who changes a rule changes a number here."""
    judge(pinned)


@pytest.mark.slow
@pytest.mark.parametrize("pinned", [each for each in WORLDS if each not in QUICK], ids=lambda each: each.name)
def test_large_world_holds_with_its_pinned_counts(pinned: Pinned) -> None:
    """The same, where it takes longer."""
    judge(pinned)


@pytest.mark.parametrize(("groups", "blocks"), [("full:1+drafter", 4), ("full:1,swa:1:2+drafter", 8)])
def test_guesses_hold_behind_loads_within_a_step(groups: str, blocks: int) -> None:
    """Requests with a drafter come one by one, so that the device forgets; loads within a step fail, and are repeated."""
    engine = Settings(groups=groups, drafts=1, num_blocks=blocks, num_slots=2 * blocks, max_requests=1)
    engine = evolve(engine, policies=evolve(USUAL, load_within_tokens=2))
    world = World(WorldSettings(engine=engine, requests=("ab.cD", "ef.g", "abc.De"), faults=Faults(fail=1)))
    found = explore(world, processes=1)
    taken = {str(row) for row, times in world.coverage()["request"].items() if times}

    assert found.counterexamples == ()
    assert (found.verdict, found.complete) == (Verdict.HOLDS, True)
    assert taken >= {"WAITING --plan_load--> LOADING", "LOADING --loaded--> RUNNING", "LOADING --load_failed--> WAITING"}


# --- what they cover --------------------------------------------------------------------------------------------------------


def rows() -> set[str]:
    """Every row of the ledger's tables and the scheduler's."""
    return {f"{machine} {row}" for machine, table in {**MACHINES, **SCHEDULER_MACHINES}.items() for row in table.rows}


@pytest.mark.slow
def test_worlds_together_take_every_row_that_a_scheduler_can() -> None:
    """A row that no world takes is tested by none of them; those that only the ledger's own verbs reach are known by name."""
    taken = frozenset().union(*(seen(each.name).taken for each in SMALL))

    assert rows() - taken == BY_THE_ENGINE_NEVER


def test_small_worlds_meet_every_fault_and_every_policy() -> None:
    """Each kind of fault happens in a small world, and each policy has one."""
    engines = [each.settings.engine for each in SMALL]
    kinds = {name for each in SMALL for name, times in each.settings.faults.items() if times}

    assert kinds == set(FAULT_DOCS)
    assert {each.contract for each in engines} == set(Contract)
    assert {each.policies.mode for each in engines} == set(Mode)
    assert {each.policies.last_step for each in engines} == set(LastStep)
    assert {each.policies.full_hit for each in engines} == set(FullHit)
    assert {each.replacement for each in engines} == {"lru", "arc"}
    assert {each.asynchronous for each in engines} == {each.policies.partial_chunks for each in engines} == {False, True}
    assert {each.num_workers for each in engines} >= {1, 2}
    assert {each.blocks_per_chunk for each in engines} >= {1, 2}
    assert {each.below and each.below.demote for each in engines} == {None, *Demote}
    assert {each.below_shared for each in engines} == {False, True}
    assert max(each.policies.max_load_failures for each in engines) > 1
    groups = {type(group) for each in engines for group in each.geometry.groups}
    assert groups >= {SlidingWindow, Mamba}


def test_contracts_differ_where_it_matters() -> None:
    """A world under both contracts is no pair of twins: the counts differ."""
    pairs = [each.name.removesuffix("-fence") for each in SMALL if each.name.endswith("-fence")]

    assert pairs
    for name in pairs:
        assert pinned_world(f"{name}-fence").counts != pinned_world(f"{name}-hold").counts


def test_pinned_names_are_unique_and_counted() -> None:
    """Each has a sentence."""
    names = [each.name for each in WORLDS]

    assert len(set(names)) == len(names)
    assert all(each.about for each in WORLDS)
    with pytest.raises(MisuseError, match="world 'atlantis': there is none"):
        pinned_world("atlantis")


# --- worlds in words --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pinned", WORLDS, ids=lambda each: each.name)
def test_world_is_read_as_it_is_written(pinned: Pinned) -> None:
    """Words and Python say all of it."""
    names: dict[str, object] = {}
    exec("\n".join([*PYTHON_IMPORTS, "found = (", *as_python(pinned.settings), ")"]), names)

    assert make_world(words_of(pinned.settings), "test") == pinned.settings
    assert names["found"] == pinned.settings
    assert said(pinned.settings).startswith("requests ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"block": 3}, "w.toml: unknown key 'block' (did you mean 'blocks'?)"),
        ({"zebra": 3}, "w.toml: unknown key 'zebra' (known: groups, "),
        ({"blocks": "three"}, "w.toml: blocks must be a whole number, not 'three'"),
        ({"blocks": True}, "w.toml: blocks must be a whole number, not true"),
        ({"blocks": 0}, "w.toml: blocks must be from 1 to 4096, not 0"),
        ({"blocks": 10**9}, "w.toml: blocks must be from 1 to 4096"),
        ({"workers": 65}, "w.toml: workers must be from 1 to 64, not 65"),
        ({"max_requests": 1}, "w.toml: 2 requests may come, and there is room for 1 (max_requests)"),
        ({"async": 1}, "w.toml: async must be true or false, not 1"),
        ({"contract": "maybe"}, "w.toml: contract must be one of fence, hold, not 'maybe'"),
        ({"policy": "nonesuch"}, f"w.toml: policy must be one of {', '.join(BUILT_IN)}, not 'nonesuch'"),
        ({"deadline": -1}, "w.toml: deadline must be above 0, not -1"),
        ({"groups": "half:1"}, "w.toml: 'half:1' is not a valid group"),
        ({"requests": "ab.c"}, "w.toml: requests must be a list of texts like 'ab.c', not 'ab.c'"),
        ({"requests": [1]}, "w.toml: requests must be a list of texts"),
        ({"requests": ["abc"]}, "w.toml: request 'abc': write prompt and output"),
        ({"requests": []}, "w.toml: a world has 1 to 26 requests, not 0"),
        ({"requests": ["abcdefgh.i"]}, "w.toml: request a: 9 letters need up to 8 blocks, and there are 3"),
        ({"faults": 1}, "w.toml: faults must be a table of numbers, not 1"),
        ({"faults": {"fial": 1}}, "w.toml: faults.fial: there is no such fault (did you mean 'fail'?)"),
        ({"faults": {"fail": "1"}}, "w.toml: faults.fail must be from 0 to 4096, not '1'"),
        ({"faults": {"fail": -1}}, "w.toml: faults.fail must be from 0 to 4096, not -1"),
        ({"below": "always"}, "w.toml: below must be one of none, eager, lazy, never, not 'always'"),
        ({"faults": {"vanish": 1}}, "w.toml: faults: down, refuse, vanish: there is no store below to have them"),
        ({"faults": {"lose_worker": 1}}, "w.toml: faults: a worker can be lost only where there are two"),
    ],
    ids=lambda each: str(each)[:30] if isinstance(each, dict) else "",
)
def test_words_are_refused_with_file_and_key(words: Mapping[str, object], message: str) -> None:
    """One sentence, before anything is built."""
    with pytest.raises(MisuseError) as refused:
        make_world(words, "w.toml")

    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_world_file_is_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A file says the same as the settings do; what is no file, or no TOML, is refused with its name."""
    folder = tmp_path_factory.mktemp("worlds")
    path = folder / "world.toml"
    path.write_text('requests = ["ab.c"]\ncontract = "hold"\nblocks = 2\n[faults]\nhang = 1\n')
    settings = make_world(read_world(str(path)), str(path))

    assert settings == WorldSettings(
        engine=Settings(contract=Contract.HOLD, num_blocks=2),
        requests=("ab.c",),
        faults=Faults(hang=1),
    )
    path.write_text("blocks = = 2")
    with pytest.raises(MisuseError, match=r"world\.toml:1: "):
        read_world(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(MisuseError, match=r"world.toml: "):
        read_world(str(path))
    with pytest.raises(MisuseError, match="No such file"):
        read_world(str(folder / "missing.toml"))
    with pytest.raises(MisuseError, match="directory"):
        read_world(str(folder))


# --- local attention --------------------------------------------------------------------------------------------------------


def a_block_too_many(self: TokenProgress, group: int, row: int) -> int:
    """What is left behind when a part begins, and the first block of that part, too."""
    first = first_needed(self, group, row)
    return first + 1 if first else 0


def a_block_too_few(self: _Scan, unit: Unit, length: int) -> tuple[int, int]:
    """A hit needs a block less than its part has."""
    window, tail = of_part(self, unit, length)
    return max(0, window - 1), tail


def as_a_window(self: TokenProgress, group: int, row: int) -> int:
    """A part leaves as a window of as many tokens would: block by block, while the part is still read."""
    return max(0, self.computed_of(row) - 1) // self.groups[group].tokens


first_needed, of_part = TokenProgress.first_needed, _Scan.of_part


# --- tails ------------------------------------------------------------------------------------------------------------------


def whole_key(_self: Asking, tracked: Tracked, group: int, end: int) -> bytes:
    """The key of the block in which a tail ends, as if it were full."""
    key: bytes = tracked.keys(group, end // 2, end // 2 + 1)[0]
    return key


def one_too_far(self: Search, *args: Any, **named: Any) -> Hit:
    """The request computes on one token behind the tail that it has loaded."""
    hit = search(self, *args, **named)
    return attrs.evolve(hit, compute_from=hit.compute_from + 1) if hit.tokens % 2 else hit


def same_life(self: RowVerbs, request: str, position: int, group: int) -> int:
    """The block as it is: what was final there can still be found."""
    return self._check.held(self._check.request(request), group)[position]


search = Search.run
LONGER = WorldSettings(engine=Settings(groups="full:2/1", num_slots=4), requests=("abc.d", "abcde.f"))


def looked_up_unproven(self: Search, names: Sequence[Sequence[bytes]], tails: TailKeys, group: int, end: int) -> bytes | None:
    """The key of the tail's own end: nothing says which letter comes behind it."""
    return key_at(self, names, tails, group, end - 1)


def stored_unproven(self: Asking, tracked: Tracked, group: int, end: int) -> bytes | None:
    """The same where it is stored."""
    return key_of(self, tracked, group, end - 1)


def not_asked_for(_self: Search, _names: Sequence[Sequence[bytes]], _position: int) -> Answer:
    """The block before the tail is taken to be there."""
    return Answer.HIT


key_at, key_of = Search._tail_key, Asking.tail_key_of


@pytest.mark.parametrize("text", ["full:4/2", "full:2,full:4/2"])
def test_world_has_tails_at_every_token_only(text: str) -> None:
    """Its device compares whole blocks: of a longer unit it could not tell what was behind a tail."""
    with pytest.raises(MisuseError, match="tail"):
        Settings(groups=text)


# --- drafts beside states -------------------------------------------------------------------------------------------------


def test_drafter_beside_states_holds_where_hits_load() -> None:
    """Requests come one by one, so that the device forgets what the next one hits: states of known tokens are loaded."""
    engine = Settings(groups="full:1+drafter,mamba:1", drafts=1, num_blocks=7, num_slots=14, max_requests=1)
    world = World(WorldSettings(engine=engine, requests=("ab.cD", "ef.g", "abc.De"), faults=Faults(fail=1)))
    found = explore(world, processes=1)
    taken = {str(row) for row, times in world.coverage()["request"].items() if times}

    assert found.counterexamples == ()
    assert (found.verdict, found.complete) == (Verdict.HOLDS, True)
    assert taken >= {"WAITING --plan_load--> LOADING", "LOADING --loaded--> RUNNING", "LOADING --load_failed--> WAITING"}


# --- host memory that workers have together ---------------------------------------------------------------------------------


def all_write(_self: Sharing, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Every worker writes every slot."""
    return slots >= 0


def none_writes(self: Sharing, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The first slot has no writer."""
    return writes(self, slots) & (slots > 0)


def in_its_part(_self: CopyOrder, positions: Iterable[int]) -> tuple[int, ...]:
    """What a worker has not brought is counted in what it was to bring."""
    return tuple(positions)


writes = Sharing.writes_slots

# --- planted bugs -----------------------------------------------------------------------------------------------------------

NO_LIMIT = {"if boundary > known + ahead and self._policies.state_drafts:": "if False:"}
ALL_STATES = {"if self.scheduler.policies.state_drafts:": "if False:"}
Change: TypeAlias = "tuple[object, str, object]"
"""A method, and another one in its place, or lines of it with others in their place."""
BUGS: dict[str, tuple[str | WorldSettings, str, tuple[Change, ...]]] = {
    **{
        f"{bug}, {world}": (world, "", ((owner, name, other),))
        for bug, owner, name, other in (
            ("a block too many", TokenProgress, "first_needed", a_block_too_many),
            ("a block too few", _Scan, "of_part", a_block_too_few),
            ("as a window", TokenProgress, "first_needed", as_a_window),
        )
        for world in ("local", "local-full", "local-within")
    },
    "tail without a new life": (LONGER, "lawful", ((RowVerbs, "reopen", same_life),)),
    "tail with the key of the whole block": (LONGER, "I6", ((Asking, "tail_key_of", whole_key),)),
    "tail read beyond its end": (LONGER, "I6", ((Search, "run", one_too_far),)),
    "looked up without its proof": ("tails-drafter-next", "lawful", ((Search, "_tail_key", looked_up_unproven),)),
    "stored under its own end": ("tails-drafter-fence", "lawful", ((Asking, "tail_key_of", stored_unproven),)),
    "no proof at all": (
        "tails-drafter-proof",
        "I6",
        ((Search, "_tail_key", looked_up_unproven), (Asking, "tail_key_of", stored_unproven)),
    ),
    "block before it is gone": ("tails-drafter-hold", "lawful", ((Search, "_bridge", not_asked_for),)),
    "the state of a draft is handed off": ("drafts-states", "lawful", ((Engine, "_hand_off", ALL_STATES),)),
    "the state of a wrong draft is published": (
        "drafts-states",
        "I6",
        (
            (Engine, "_hand_off", ALL_STATES),
            (Offers, "hand_off", NO_LIMIT),
            (Offers, "state_seals", {"computed.get(row, table.after(row)) < boundary": "False"}),
        ),
    ),
    "a wrong draft counts as computed": (
        "drafts-states",
        "I6",
        ((TokenProgress, "reach", {"end if end < most else most": "end"}),),
    ),
    "drafts have one state": (
        "drafts-states",
        "lawful",
        ((TokenProgress, "blocks_of", {" and count > self.most_states": "", "return self.most_states": "return 1"}),),
    ),
    "two workers write one slot": ("shared-host", "I1", ((Sharing, "writes_slots", all_write),)),
    "nobody writes a slot": ("shared-host", "I6", ((Sharing, "writes_slots", none_writes),)),
    "the wrong slot counts as missing": ("shared-below", "I6", ((CopyOrder, "missing", in_its_part),)),
}
"""Of each bug a world, the rule that it breaks there (empty: any), and how it is planted."""


@pytest.mark.interpreted
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that are cut short, tails that are none or not proven, states of drafts that are taken for others."""
    world, rule, changes = BUGS[bug]
    for owner, name, other in changes:
        if isinstance(other, dict):
            without(monkeypatch, owner, name, other)
        else:
            monkeypatch.setattr(owner, name, other)
    settings = pinned_world(world).settings if isinstance(world, str) else world
    found = [each.rule for each in explore(World(settings), processes=1).counterexamples]

    assert found == [rule or found[0]], found


def test_world_with_tails_of_two_lengths_holds() -> None:
    """What the bugs above are planted in."""
    assert explore(World(LONGER), processes=1).verdict is Verdict.HOLDS


# --- the page ---------------------------------------------------------------------------------------------------------------


def test_page_s_world_and_program_run() -> None:
    """What the page shows as TOML is a world, and the program that it shows runs; its tests are run in another place."""
    text = PAGE.read_text(encoding="utf-8")
    (world,) = re.findall(r"(?s)```toml\n(.*?)```", text)
    (program,) = re.findall(r"(?s)```python\n(from .*?)```", text)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})

    assert make_world(tomllib.loads(world), "page").faults == Faults(hang=1, preempt=1)
    assert printed.getvalue().startswith("Verdict.HOLDS ")


def test_every_policy_gets_where_it_is_read() -> None:
    """Each choice of the scheduler and of the tier below is a word of worlds, except for what others say."""
    words = [each for each in WORDS if each.part]
    chosen = {each.name: each.choices[1] if each.choices else OTHER[each.kind](each.default) for each in words}
    settings = make_world(chosen, "all")
    scheduler = World(settings).engine.scheduler

    assert {each.knob.name for each in words if each.part == "policies"} == {each.name for each in knobs(Policies)} - {*UNSAID}
    assert {each.name: each.written(evolve(settings.engine, policies=scheduler.policies)) for each in words} == chosen


OTHER: dict[type, Callable[[Plain], Plain]] = {
    bool: lambda usual: not usual,
    int: lambda usual: int(usual or 0) + 3,
    float: lambda _: 7.0,
}
"""A value that is not the usual one."""
