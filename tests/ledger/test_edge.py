"""What is of the wrong kind is refused by name before anything has changed: every argument of every public verb.

Method: `LEDGER` and `SCHEDULER` have one lawful call for each verb, and a test sees that no verb is left out and that each call
is done. Then one argument at a time gives way to everything that it cannot be, as its annotation says (`WRONG`); each time the
verb must refuse, name the argument, and leave the world byte for byte as it was. What is of the right kind and too large or too
small (`Far`) must be refused as well, in whatever words.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from attrs import define, frozen

from blocklife.errors import MisuseError
from blocklife.ledger import Batch, Completion, JobId, Jobs, Launched, Ledger, Limits, Result, Seal, Worker
from blocklife.ledger._ids import ID_MASK
from blocklife.ledger._snapshot import own_names
from blocklife.ledger.jobs import Allocated, GroupTransfer, JobColumns, Planned, Sealed, Store
from blocklife.ledger.records import Placement, Plan
from blocklife.ledger.views import BlocksView, SlotsView
from blocklife.offload import Geometry, Hit, HostTier, OffloadScheduler, Placed, Policies
from blocklife.states import MACHINES, Block, Slot, states_before
from tests.proof.ledger_world.settings import PLAIN
from tests.rigs import Rig, letters, scheduler_refuses
from tests.worlds import block_of, held, in_flight, keys, make_ledger, ready, refuses, report, sealed, store

Call = Mapping[str, object]


@frozen
class Far:
    """A value of the right kind that is too large or too small."""

    value: object


def near(wrong: Sequence[object]) -> list[object]:
    """Those of the wrong kind."""
    return [each for each in wrong if not isinstance(each, Far)]


def in_lists(wrong: Sequence[object]) -> list[object]:
    """Each of them in a list of its own."""
    return [Far([each.value]) if isinstance(each, Far) else [each] for each in wrong]


HUGE = 1 << 70
J: Any = JobId
"""As `JobId`, `Batch` and the others below: what mypy would refuse, to see that the verbs do."""
B: Any = Batch
JS: Any = Jobs
DONE: Any = Completion
BEGUN: Any = Launched
SEAL: Any = Seal
PUT: Any = Placement
GROUP: Any = GroupTransfer
STORE: Any = Store
PLACED: Any = Placed

NO_NUMBER = [0.0, 1.5, "1", b"1", True, [1], np.float64(1), np.True_, HUGE]
NO_TEXT = [1, 0.5, True, b"a", ["a"], {"a"}]
NO_LIST = [5, 0.5, "1", b"1", True, {1: 1}, object()]
NO_NUMBERS = [*NO_LIST, [0.5], ["1"], [None], [True], [[1]], [1, 1.0], np.array([0.5]), np.array([[1]]), np.array([True])]
NO_KEYS = [*NO_LIST, ["k"], [None], [1], [0.5], [True], [bytearray(b"k")], [b"k", "k"], [[b"k"]]]
NO_TEXTS = [*NO_LIST, [1], [None], [b"a"], [0.5], [True], ["a", 1], [["a"]]]
NO_FLAG = [0, 1, 0.0, "yes", [True]]
NO_TIME = ["now", b"1", True, float("nan"), float("inf"), [1.0], 1j, 10**400]
NO_FUNCTION = [5, "a", b"a", [1]]
NO_JOB = [5, "1.1", (1, 1), J(1.0, 1), J(1, 1.0), J("1", 1), J(1, True), J([1], 1), Far(J(1, HUGE)), Far(J(1, -1))]
NO_JOBS = [
    *(5, "a", (J(1, 1),), B([1]), JS(None), JS(5), JS("1"), JS((1,)), JS(((1, 1),))),
    *(JS((each,)) for each in near(NO_JOB)),
    Far(JS((J(1, -1),))),
]
NO_BATCH = [
    *(5, "a", [1], JS(())),
    *(B(each) for each in (None, *NO_NUMBERS)),
    *(B([1], each) for each in (None, *NO_NUMBER)),
    *(Far(B(each)) for each in ([-1], [HUGE], [HUGE + 1], [0])),
    *(Far(B([1], each)) for each in (-1, 2)),
]
OK, ME, MINE = Result.OK, Worker(0), JobId(1, 1)
NO_REPORT = [
    *(5, "a", BEGUN(MINE, ME)),
    *(DONE(each, ME, OK) for each in (None, *near(NO_JOB))),
    *(DONE(MINE, each, OK) for each in (None, *NO_NUMBER[:-1])),
    *(DONE(MINE, ME, each) for each in (None, "OK", 1, True)),
    *(Far(DONE(MINE, each, OK)) for each in (-1, 2, HUGE)),
]
NO_LAUNCH = [
    *(5, "a", DONE(MINE, ME, OK)),
    *(BEGUN(each, ME) for each in (None, *near(NO_JOB))),
    *(BEGUN(MINE, each) for each in (None, *NO_NUMBER)),
]


NO_SEAL = [
    *(5, "a"),
    *(SEAL(each, [1], [b"o"]) for each in (None, *NO_NUMBER)),
    *(SEAL(0, each, [b"o"]) for each in (None, *NO_NUMBERS)),
    *(SEAL(0, [1], each) for each in (None, *NO_KEYS)),
    *(Far(each) for each in (SEAL(-1, [1], [b"o"]), SEAL(0, [-1], [b"o"]), SEAL(0, [HUGE], [b"o"]), SEAL(0, [1], []))),
]
NO_PLACEMENT = [
    *(5, "a"),
    *(PUT(each, 0, (), ()) for each in (None, *NO_NUMBER)),
    *(PUT(0, each, (), ()) for each in (None, *NO_NUMBER)),
    *(PUT(0, 0, each, ()) for each in (None, *NO_NUMBERS)),
    *(PUT(0, 0, (), each) for each in (None, *NO_NUMBERS)),
    *(Far(each) for each in (PUT(-1, 0, (), ()), PUT(0, -1, (), ()), PUT(0, 0, (-1,), ()), PUT(0, 0, (), (HUGE,)))),
]


def columns_with(**wrong: Any) -> JobColumns:
    """One store as columns, with something wrong."""
    found = JobColumns.of_blocks(["a"], [()], [0, 1], [1], b"\0", [4], [b"s"])
    for name, value in wrong.items():
        setattr(found, name, value)
    return found


LIVES = Batch[Allocated]([1])
NO_TRANSFER = [
    *(5, "a"),
    *(GROUP(each, [4], [b"s"]) for each in near(NO_BATCH)),
    *(GROUP(LIVES, each, [b"s"]) for each in (None, (4,), *NO_NUMBERS)),
    *(GROUP(LIVES, [4], each) for each in (None, *NO_KEYS)),
    *(GROUP(LIVES, [4], [b"s"], each) for each in ((4,), *NO_NUMBERS)),
    *(GROUP(LIVES, [4], [b"s"], [4], each) for each in NO_KEYS),
    *(Far(each) for each in (GROUP(LIVES, [-1], [b"s"]), GROUP(LIVES, [HUGE], [b"s"]), GROUP(LIVES, [4], [b"s"], [-1]))),
]
NO_STORE = [
    *(5, "a"),
    *(STORE(each, []) for each in NO_TEXT),
    *(STORE("a", each) for each in (None, *NO_LIST, *in_lists(near(NO_TRANSFER)))),
    *(STORE("a", [GROUP(LIVES, [4], [b"s"])], each) for each in (None, *NO_TEXTS)),
]
NO_TOKENS = [
    *(5, "a", ["a"], [("a", 1)], {1: 1}, {b"a": 1}),
    *({"a": each} for each in (None, *NO_NUMBER)),
    *(Far({"a": -1}), Far({"nobody": 1})),
]
NO_PLACED = [
    *(5, "a", Placement(0, 0, (), ())),
    *(PLACED(each) for each in (None, *NO_NUMBER)),
    *(PLACED(0, each) for each in (None, *NO_NUMBER)),
    *(PLACED(0, 0, each) for each in ([0.5], "1", [True], [None])),
    *(PLACED(0, 0, (), each) for each in ([0.5], "1", [True], [None])),
    *(PLACED(0, 0, (), (), each) for each in ([0.5], "1", [True], [None], [HUGE])),
    *(Far(each) for each in (PLACED(-1), PLACED(2), PLACED(0, -1), PLACED(0, fresh=[-1]), PLACED(0, shared=[0]))),
]

WRONG: Mapping[str, Sequence[object]] = {
    "int": [*NO_NUMBER[:-1], Far(HUGE), Far(-1)],
    "Worker": [*NO_NUMBER[:-1], Far(HUGE), Far(-1), Far(9)],
    "str": NO_TEXT,
    "bool": NO_FLAG,
    "bytes": [1, 0.5, True, "a", [b"a"], bytearray(b"a")],
    "float": NO_TIME,
    "Sequence[int]": [*NO_NUMBERS, Far([-1]), Far([HUGE])],
    "Lives": [*NO_NUMBERS, Far([-1]), Far([HUGE]), Far([0])],
    "Iterable[int]": NO_NUMBERS,
    "int | Sequence[int]": [
        *(0.0, 1.5, "1", b"1", True, np.float64(1), np.True_, {1: 1}, object()),
        *([0.5], ["1"], [None], [True], [[1]], np.array([0.5]), np.array([[1]]), np.array([True])),
        *(Far(HUGE), Far(-1), Far([-1]), Far([HUGE]), Far([0, 1])),
    ],
    "Sequence[bytes]": NO_KEYS,
    "Iterable[bytes]": NO_KEYS,
    "Sequence[str]": NO_TEXTS,
    "Listener": NO_FUNCTION,
    "RefusalListener": NO_FUNCTION,
    "Keys": NO_FUNCTION,
    "TailKeys": NO_FUNCTION,
    "JobId": NO_JOB,
    "Batch": NO_BATCH,
    "Jobs": NO_JOBS,
    "Completion": NO_REPORT,
    "Iterable[Completion]": [*NO_LIST, *in_lists(NO_REPORT)],
    "Launched": NO_LAUNCH,
    "Iterable[Launched]": [*NO_LIST, *in_lists(NO_LAUNCH)],
    "Iterable[Seal]": [*NO_LIST, *in_lists(NO_SEAL)],
    "Sequence[Placement]": [*NO_LIST, *in_lists(NO_PLACEMENT)],
    "Store": NO_STORE,
    "GroupTransfer[Allocated]": NO_TRANSFER,
    "Names": [5, "a", {}, []],
    "Snapshot": [5, "a", (), {}],
    "SavedScheduler": [5, "a", (), {}],
    "Mapping[str, int]": NO_TOKENS,
    "Hit": [5, "a", (), Far(Hit("w", 0, 0, 0, False, 1))],
    "Sequence[Placed]": [*NO_LIST, *in_lists(NO_PLACED)],
    "Limits": [5, "a", {}],
    "Contract": ["FENCE", 1, True],
    "Checking": ["OFF", 1, True],
    "OnError": [5, "ignore", ["keep"]],
    "Ledger": [5, "a"],
    "HostTier": [5, "a", "lru"],
    "Geometry": [5, "full:4"],
    "Policies": [5, "a", {}],
    "BelowPolicies": [5, "a", {}],
    "BelowIndex": [5, "a", {}],
}
"""What an argument cannot be, by its annotation; None comes on top, where it is not among what it may be."""
HARMLESS = {("has_room", "count"), ("history", "place")}
"""Questions that have a true answer for every whole number."""


def wrong_values(verb: str, parameter: inspect.Parameter) -> Iterator[object]:
    """What one argument cannot be."""
    kind = str(parameter.annotation)
    name = kind.removesuffix(" | None")
    if name == kind:
        yield None
    for each in WRONG[re.sub(r"^(Batch|Jobs)\[.*\]$", r"\1", name)]:
        if not isinstance(each, Far) or (verb, parameter.name) not in HARMLESS:
            yield each


def refused(
    call: Callable[..., object],
    arguments: Call,
    parameter: inspect.Parameter,
    unchanged: Callable[[str], AbstractContextManager[None]],
) -> None:
    """Each wrong value of one argument is refused, by name unless it is only too far, and nothing has changed."""
    for each in wrong_values(call.__name__, parameter):
        value, match = (each.value, ".") if isinstance(each, Far) else (each, rf"^\W*{parameter.name}\b.* must be ")
        print(f"{parameter.name} = {value!r}")
        with unchanged(match):
            made(call, {**arguments, parameter.name: value})


def made(call: Callable[..., object], arguments: Call) -> object:
    """Make a call; an argument that takes all that follow (``*requests``) has the one that it gets by its name."""
    kinds = {each.name: each.kind for each in parameters(call)}
    if inspect.Parameter.VAR_POSITIONAL not in kinds.values():
        return call(**arguments)
    by_name = {name: at for name, at in arguments.items() if kinds[name] is inspect.Parameter.KEYWORD_ONLY}
    return call(*(at for name, at in arguments.items() if name not in by_name), **by_name)


def parameters(method: Callable[..., object]) -> list[inspect.Parameter]:
    """The arguments of a verb."""
    return [each for name, each in inspect.signature(method).parameters.items() if name != "self"]


def verbs(kind: type) -> set[str]:
    """Public methods."""
    return {name for name, each in inspect.getmembers(kind, callable) if not name.startswith("_")}


# --- the ledger ---------------------------------------------------------------------------------------------------------


@define(eq=False)
class Scene:
    """A ledger in the middle of everything, and the handles on what is there."""

    ledger: Ledger
    opened: Batch[Allocated]
    """Held by *a*, not final."""
    final: Batch[Sealed]
    """Held by *a*, final, not stored."""
    planned: Jobs[Planned]
    flying: JobId
    plan: Plan
    """It is out."""

    @property
    def cached(self) -> int:
        """A block with the content *k*, which nobody holds; it is in slot 0, too."""
        return self.ledger.blocks.prefix(keys("k"))[0]

    @property
    def free(self) -> int:
        """A block that nobody has had."""
        return next(each for each in range(1, len(self.ledger.blocks)) if self.ledger.blocks.state(each) is Block.FREED)

    @property
    def last(self) -> int:
        """The position of a block that *a* holds."""
        return len(self.ledger.requests.table("a")) - 1


def scene(own_pool: bool) -> Scene:
    """Requests *a* and *b* run and *w* waits; slots 0 and 3 can be read, *me* pins the first of them."""
    ledger = make_ledger(num_blocks=24, num_slots=8, groups=2, own_pool=own_pool, requests=("a", "b"))
    ready(ledger, "k", 0)
    ready(ledger, "e", 3)
    _, flying = in_flight(ledger, "a", "f", 1)
    plan = ledger.dispatch(1.0)
    planned = store(ledger, sealed(ledger, "a", keys("p")), keys("p"), 2)
    final = sealed(ledger, "a", keys("s"))
    opened = held(ledger, "a")
    ledger.add_request("w")
    ledger.pin("me", [0])
    return Scene(ledger, opened, final, planned, flying, plan)


def of_event(event: str, machine: str) -> Callable[[Scene], Call]:
    """The call of a verb that is an event of a place and nothing else, for the last place in whose state that has a row."""
    allowed = states_before(MACHINES[machine].events[event], Block if machine == "block" else Slot)

    def call(at: Scene) -> Call:
        view: BlocksView | SlotsView = at.ledger.blocks if machine == "block" else at.ledger.slots
        found = [place for place in range(machine == "block", len(view)) if view.state(place) in allowed]
        assert found, f"Ledger.{event}: no {machine} of the scene is in a state that has a row of it (write its call into OWN)"
        return {f"{machine}s": found[-1:]}

    return call


VIEWS: Mapping[str, Callable[[Scene], Call]] = {
    "blocks.life": lambda at: {"block": 1},
    "blocks.has_room": lambda at: {"count": 1},
    "blocks.prefix": lambda at: {"keys": keys("k"), "group": 0},
    "slots.prefix": lambda at: {"keys": keys("k"), "group": 0},
    "jobs.state": lambda at: {"job": at.flying},
    "jobs.of": lambda at: {"requests": "a"},
    "jobs.submitted": lambda at: {"on_device": True},
    "requests.state": lambda at: {"request": "a"},
    "requests.table": lambda at: {"request": "a", "group": 0},
    "journal.history": lambda at: {"machine": "block", "place": 1},
}
"""Questions that an engine asks, and the arguments that are checked."""
OWN: Mapping[str, Callable[[Scene], Call]] = {
    "add_request": lambda at: {"request": "new"},
    "admit": lambda at: {"request": "w"},
    "preempt": lambda at: {"request": "a"},
    "finish": lambda at: {"request": "a"},
    "allocate": lambda at: {"request": "a", "count": 1, "group": 1},
    "skip": lambda at: {"request": "a", "count": 1, "group": 1},
    "acquire": lambda at: {"request": "b", "lives": [at.cached], "group": 0},
    "release": lambda at: {"request": "a", "positions": [at.last], "group": 0},
    "seal": lambda at: {"held": at.opened, "keys": keys("o")},
    "drop": lambda at: {"lives": [at.cached]},
    "roll_back": lambda at: {"request": "w"},
    "plan_store": lambda at: {"stores": Store("a", [GroupTransfer(at.final, [4], keys("s"), [4])], ("b",))},
    "plan_load": lambda at: {
        "request": "w",
        "transfers": GroupTransfer(held(at.ledger, "w"), [0], keys("k"), [0], keys("k")),
        "within": True,
    },
    "plan_demotion": lambda at: {"slots": [3], "space": b"now"},
    "plan_promotion": lambda at: {"slots": [4], "keys": keys("below"), "groups": [1], "space": b"now"},
    "submit": lambda at: {"jobs": at.planned},
    "cancel": lambda at: {"jobs": at.planned},
    "abandon": lambda at: {"jobs": Jobs((at.flying,))},
    "flush": lambda at: {"jobs": Jobs((at.flying,)), "cause": "asked"},
    "quiesce": lambda at: {"jobs": Jobs((at.flying,))},
    "dispatch": lambda at: {"now": 2.0},
    "settle": lambda at: {
        "plan": at.plan.number,
        "now": 2.0,
        "launched": [Launched(at.flying, ME)],
        "completions": [report(at.flying)],
        "seals": [Seal(0, at.opened.lives, keys("o"))],
    },
    "launched": lambda at: {"record": Launched(at.flying, ME), "now": 2.0},
    "complete": lambda at: {"completion": report(at.flying)},
    "expire": lambda at: {"now": 2.0},
    "pin": lambda at: {"holder": "me", "slots": [3]},
    "unpin": lambda at: {"holder": "me", "slots": [0]},
    "lose": lambda at: {"worker": 0},
    "reset": lambda at: {"drain": False, "device": True, "host": True},
    "snapshot": lambda at: {"names": own_names(at.ledger._state), "now": 0.0},
    "restore": lambda at: {"saved": at.ledger.snapshot(), "now": 0.0},
    **{verb: of_event(verb, machine) for verb, machine in PLAIN.items()},
}
FOREIGN: Mapping[str, Callable[[Scene], Call]] = {
    "observe_place": lambda at: {"request": "b", "placements": [Placement(0, 1, [at.cached & ID_MASK], [at.free])]},
    "observe_free": lambda at: {"request": "a", "blocks": [block_of(at.opened)], "group": 0},
}
LEDGER = {**OWN, **FOREIGN}
NO_ARGUMENTS = {"statistics", "has_pending_work"}
HOOKS = {"on", "on_refusal"}
"""What they refuse is in `test_hooks.py`."""


def test_every_verb_of_the_ledger_is_here() -> None:
    """A new verb, or a new argument, cannot be forgotten."""
    forgotten = verbs(Ledger) - NO_ARGUMENTS - HOOKS - set(LEDGER)
    assert not forgotten, f"no call of {', '.join(sorted(forgotten))}: write a lawful one into OWN or FOREIGN (test_edge.py)"
    assert set(LEDGER) == verbs(Ledger) - NO_ARGUMENTS - HOOKS
    for verb in LEDGER:
        given = LEDGER[verb](scene(verb in OWN))
        assert list(given) == [each.name for each in parameters(getattr(Ledger, verb))], verb


@pytest.mark.parametrize("verb", LEDGER)
def test_lawful_call_of_the_ledger_is_done(verb: str) -> None:
    """What is refused below is refused for the one argument that is wrong."""
    at = scene(verb in OWN)
    made(getattr(at.ledger, verb), LEDGER[verb](at))


@pytest.mark.parametrize(
    ("verb", "argument"),
    [pytest.param(verb, each, id=f"{verb}-{each.name}") for verb in LEDGER for each in parameters(getattr(Ledger, verb))],
)
def test_ledger_refuses_what_an_argument_cannot_be(verb: str, argument: inspect.Parameter) -> None:
    """By its name, and before the first write."""
    at = scene(verb in OWN)
    refused(getattr(at.ledger, verb), LEDGER[verb](at), argument, lambda match: refuses(at.ledger, MisuseError, match))


def asked(view: str, at: Scene) -> Callable[..., object]:
    """A question to a view."""
    part, _, name = view.partition(".")
    found: Callable[..., object] = getattr(getattr(at.ledger, part), name)
    return found


@pytest.mark.parametrize(("view", "argument"), [(view, each) for view in VIEWS for each in VIEWS[view](scene(True))])
def test_views_refuse_what_an_argument_cannot_be(view: str, argument: str) -> None:
    """By its name; a lawful question is answered."""
    at = scene(True)
    call, given = asked(view, at), VIEWS[view](at)
    made(call, given)
    (parameter,) = [each for each in parameters(call) if each.name == argument]
    refused(call, given, parameter, lambda match: refuses(at.ledger, MisuseError, match))


NO_COLUMNS = [
    *(5, "a"),
    *(columns_with(lives=each) for each in (None, [None], ["a"], [1.5], [1, 2], [])),
    *(columns_with(slots=each) for each in (None, [None], ["a"], [4, 5], [])),
    *(columns_with(places=each) for each in (None, [None], [4, 5], [HUGE])),
    *(columns_with(keys=each) for each in (None, [None], ["s"], [b"s", b"t"])),
    *(columns_with(names=each) for each in ([5], ["s"], [b"s", b"t"])),
    *(columns_with(groups=each) for each in (None, b"", b"\xff", [0], b"\0\0")),
    *(columns_with(slot_groups=each) for each in (None, b"\xff")),
    *(columns_with(cuts=each) for each in ([0], [0, 0], [1, 1], [0, 2], [0, 1, 1])),
    *(columns_with(slot_cuts=each) for each in ([0], [0, 2])),
    *(columns_with(owners=each) for each in ([], [5], ["a", "b"])),
    *(columns_with(sharers=each) for each in ([], [(5,)])),
]


@pytest.mark.parametrize("wrong", NO_COLUMNS, ids=repr)
def test_columns_of_jobs_that_do_not_agree_are_refused(wrong: Any) -> None:
    """What the scheduler stores in one step comes as columns, and is checked as a whole."""
    at = scene(True)
    with refuses(at.ledger, MisuseError, r"^\W*stores\b.* must be "):
        at.ledger._rows.plan_columns(wrong)


# --- the offload scheduler ----------------------------------------------------------------------------------------------


def rig(own_pool: bool) -> Rig:
    """Request *a* runs, and its plan is out; *w* waits."""
    found = Rig("full:4,mamba:4", blocks=40, own_pool=own_pool, workers=2, policies=Policies(plans_ahead=1))
    found.add("a", letters(30), prompt=7)
    found.add("w", letters(30, "p"), prompt=7)
    if own_pool:
        found.let_in("a")
    else:
        hit = found.scheduler.lookup("a", 7, 0)
        found.scheduler.place("a", [Placed(0, fresh=(1, 2)), Placed(1, skipped=1, fresh=(3,))])
        found.scheduler.admit("a", hit, 7)
    found.plan()
    return found


def hit_of(at: Rig) -> Hit:
    """What *w* would be let in with."""
    return at.hit("w")


def grown(at: Rig) -> str:
    """Request *a* computes its eighth token in this step."""
    at.scheduler.grow()
    return "a"


def without_worker(at: Rig) -> int:
    """A worker that is lost."""
    at.scheduler.lose_worker(1)
    return 1


OWN_SCHEDULER: Mapping[str, Callable[[Rig], Call]] = {
    "add_request": lambda at: {
        "name": "new",
        "keys": lambda group, start, stop: [],
        "prompt_tokens": 4,
        "tails": lambda group, end: None,
    },
    "cap": lambda at: {"name": "a", "stored": 8, "loaded": 8},
    "fetched": lambda at: {"name": "a", "slots": [0]},
    "lookup": lambda at: {"name": "w", "known_tokens": 7, "device_tokens": None},
    "admit": lambda at: {"name": "w", "hit": hit_of(at), "tokens": 7},
    "grow": lambda at: {"tokens": {"a": 1}},
    "preempt": lambda at: {"name": "a"},
    "finish": lambda at: {"name": "a"},
    "abort": lambda at: {"name": "a"},
    "hand_off": lambda at: {"name": grown(at), "group": 1, "boundary": 8},
    "set_time": lambda at: {"now": 2.0},
    "build_plan": lambda at: {"now": 5.0},
    "settle": lambda at: {
        "plan": 1,
        "now": 5.0,
        "sampled": {"a": 1},
        "launched": [Launched(MINE, ME)],
        "completions": [Completion(JobId(7, 1), ME, OK)],
    },
    "reset": lambda at: {"drain": False, "generation": "new"},
    "lose_worker": lambda at: {"rank": 1},
    "regain_worker": lambda at: {"rank": without_worker(at)},
    "canonical_names": lambda at: {"jobs": [], "now": 0.0},
    "snapshot": lambda at: {"names": at.scheduler.canonical_names(), "now": 0.0},
    "restore": lambda at: {"saved": at.scheduler.snapshot(), "now": 0.0},
}
FOREIGN_SCHEDULER: Mapping[str, Callable[[Rig], Call]] = {
    "place": lambda at: {"name": "a", "placed": [Placed(0, fresh=(4,))]},
    "free": lambda at: {"name": "a", "group": 0, "blocks": [1]},
    "about_to_go": lambda at: {"blocks": [9]},
}
SCHEDULER = {**OWN_SCHEDULER, **FOREIGN_SCHEDULER}
NO_ARGUMENTS_THERE = {"statistics", "has_pending_work", "sleep", "wake"}


def test_every_verb_of_the_scheduler_is_here() -> None:
    """As for the ledger."""
    assert set(SCHEDULER) == verbs(OffloadScheduler) - NO_ARGUMENTS_THERE
    for verb in SCHEDULER:
        given = SCHEDULER[verb](rig(verb in OWN_SCHEDULER))
        assert list(given) == [each.name for each in parameters(getattr(OffloadScheduler, verb))], verb


@pytest.mark.parametrize("verb", SCHEDULER)
def test_lawful_call_of_the_scheduler_is_done(verb: str) -> None:
    """What is refused below is refused for the one argument that is wrong."""
    at = rig(verb in OWN_SCHEDULER)
    getattr(at.scheduler, verb)(**SCHEDULER[verb](at))


@pytest.mark.parametrize(
    ("verb", "argument"),
    [
        pytest.param(verb, each, id=f"{verb}-{each.name}")
        for verb in SCHEDULER
        for each in parameters(getattr(OffloadScheduler, verb))
    ],
)
def test_scheduler_refuses_what_an_argument_cannot_be(verb: str, argument: inspect.Parameter) -> None:
    """By its name; neither the ledger nor the scheduler has changed."""
    at = rig(verb in OWN_SCHEDULER)
    call, arguments = getattr(at.scheduler, verb), SCHEDULER[verb](at)
    refused(call, arguments, argument, lambda match: scheduler_refuses(at, MisuseError, match))


OF_REQUESTS: Mapping[str, Call] = {
    "progress": {"name": "a"},
    "is_running": {"name": "a"},
    "sealed_blocks": {"name": "a", "group": 0},
}


@pytest.mark.parametrize(("question", "argument"), [(name, each) for name, given in OF_REQUESTS.items() for each in given])
def test_requests_of_a_scheduler_refuse_what_an_argument_cannot_be(question: str, argument: str) -> None:
    """As its verbs do."""
    at, given = rig(True), OF_REQUESTS[question]
    call = getattr(at.scheduler.requests, question)
    call(**given)
    (parameter,) = [each for each in parameters(call) if each.name == argument]
    refused(call, given, parameter, lambda match: scheduler_refuses(at, MisuseError, match))


# --- how they are made --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", parameters(Ledger), ids=lambda each: each.name)
def test_ledger_is_not_made_of_what_an_argument_cannot_be(argument: inspect.Parameter) -> None:
    """Nothing is there that could have changed."""
    given: Call = {"limits": Limits(num_blocks=3, num_slots=2)}
    refused(Ledger, given, argument, lambda match: pytest.raises(MisuseError, match=match))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("argument", parameters(OffloadScheduler), ids=lambda each: each.name)
def test_scheduler_is_not_made_of_what_an_argument_cannot_be(argument: inspect.Parameter) -> None:
    """Nothing is there that could have changed."""
    ledger = make_ledger()
    given: Call = {"ledger": ledger, "tier": HostTier(ledger), "geometry": Geometry.parse("full:4")}
    refused(OffloadScheduler, given, argument, lambda match: refuses(ledger, MisuseError, match))


# --- keys that a function gives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["k", 5, bytearray(b"k"), None], ids=repr)
def test_keys_of_an_engine_that_are_no_bytes_are_refused(wrong: object) -> None:
    """Where a prefix is looked up, and where a block fills: nothing is looked up, sealed or settled then."""
    at = Rig()
    at.add("a", letters(20), prompt=8)
    at.scheduler.cap("a", 0, None)  # what is not stored is asked for when it is sealed
    at.let_in("a")
    at.plan()
    tracked = at.scheduler._state.requests["a"]
    good = tracked.keys
    bad: Any = lambda group, start, stop: [wrong] * (stop - start)  # noqa: E731 - what mypy would refuse
    tracked.keys = bad
    with scheduler_refuses(at, MisuseError, r"\bkeys\b.* must be "):
        at.scheduler.settle(at.plans[0].number, 1.0)
    tracked.keys = good
    at.settle()
    at.scheduler.add_request("b", bad, prompt_tokens=9)
    with scheduler_refuses(at, MisuseError, r"\bkeys\b.* must be "):
        at.scheduler.lookup("b", 9)


@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
def test_numbers_of_numpy_tuples_and_ranges_are_taken_like_lists(few: bool) -> None:
    """What stands for whole numbers without doubt is no mistake."""
    count = 4 if few else 60
    ledger = make_ledger(num_blocks=200, num_slots=64)
    for given in (
        range(count),
        tuple(range(count)),
        np.arange(count),
        np.arange(count, dtype=np.uint8),
        list(np.arange(count)),
    ):
        ledger.allocate("a", int(np.int64(count)), group=0)
        table = ledger.requests.table("a")
        ledger.release("a", given)  # type: ignore[arg-type]
        assert ledger.requests.table("a") == [0] * count, table
        ledger.preempt("a")
        ledger.admit("a")
