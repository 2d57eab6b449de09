"""The framework: what a definition must be, how one machine runs, and that many places run the same table."""

from __future__ import annotations

import copy
import enum
import inspect
import pickle
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from blocklife.errors import DefinitionError, MisuseError, RefusedError
from blocklife.lifecycle import MAX_GUARDS, REFUSED, Column, Edge, Event, Guard, Lifecycle, Pool, Row, Table, Tone, edge, guard
from blocklife.states import MACHINES, Block, BlockLife

CODE = 4711


class Door(enum.Enum):
    CLOSED = "shut, but not locked"
    OPEN = "anybody may pass"
    LOCKED = "needs the code"


class Lamp(enum.Enum):
    OFF = "dark"
    ON = "bright"


class Step(enum.Enum):
    FIRST = 1
    SECOND = 2
    LAST = 3


@guard
def knows(code: int) -> bool:
    """The code is right."""
    return code == CODE


@guard
def polite(knocks: int) -> bool:
    """Somebody knocked."""
    return knocks > 0


class DoorLife(Lifecycle, initial=Door.CLOSED):
    """A door that remembers what its effects did."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, enum.Enum, object]] = []

    @edge(Door.CLOSED, to=Door.OPEN, when=polite)
    @edge(Door.CLOSED, to=Door.CLOSED)
    def enter(self, knocks: int = 1) -> None:
        """Knock; a rude visitor is let stand."""
        self.seen.append(("enter", self.state, knocks))

    @edge(Door.OPEN, to=Door.CLOSED)
    def shut(self) -> None:
        """Pull it to."""

    @edge(Door.CLOSED, to=Door.LOCKED)
    def lock(self, code: int, *, slam: bool = False) -> None:
        """Set the code."""
        self.seen.append(("lock", self.state, (code, slam)))
        if slam:
            raise RuntimeError("the glass broke")

    @edge(Door.LOCKED, to=Door.CLOSED, when=knows)
    def unlock(self, code: int) -> None:
        """Give the code."""


class LampLife(Lifecycle, initial=Lamp.OFF):
    @edge(Lamp.OFF, to=Lamp.ON)
    def light(self) -> None: ...

    @edge(Lamp.ON, to=Lamp.OFF)
    def dim(self) -> None: ...


class OnceLife(Lifecycle, initial=Step.FIRST, finals=[Step.LAST]):
    @edge(Step.FIRST, to=Step.SECOND)
    def begin(self) -> None: ...

    @edge(Step.SECOND, to=Step.LAST)
    @edge(Step.LAST, to=Step.LAST)
    def end(self) -> None: ...


# --- definitions -------------------------------------------------------------------------------------------------------


def nothing(self: object) -> None:
    """An edge's method with no payload."""


def define(
    body: Mapping[str, object],
    initial: object = Lamp.OFF,
    finals: Sequence[object] = (),
    bases: tuple[type, ...] = (Lifecycle,),
    tones: Mapping[object, object] | None = None,
) -> type:
    """Make a class as a class statement would, from parts that the types would not let through."""
    make: Callable[..., type] = type(Lifecycle)
    return make("Wrong", bases, dict(body), initial=initial, finals=finals, tones=tones or {})


def row(*sources: object, to: object, when: object = None) -> Callable[[object], object]:
    """The decorator `edge`, without its types."""
    make = cast("Callable[..., Callable[[object], object]]", edge)
    return make(*sources, to=to, when=when)


def lamp(
    when: object = None,
    method: Callable[..., object] = nothing,
    source: object = Lamp.OFF,
    to: object = Lamp.ON,
    name: str = "light",
) -> dict[str, object]:
    """The body of a lamp's lifecycle with one part replaced."""

    def dim(self: object) -> None: ...

    method.__name__ = name
    return {name: row(source, to=to, when=when)(method), "dim": row(Lamp.ON, to=Lamp.OFF)(dim)}


def fresh(text: str, **names: object) -> Callable[..., object]:
    """A function written as *text*."""
    scope: dict[str, object] = dict(names)
    exec(f"def made{text}: ...", scope)
    made = scope["made"]
    assert inspect.isfunction(made)
    return made


@guard
def bright(watts: int) -> bool:
    return watts > 5


@guard
def floating(watts: float) -> bool:
    return watts > 5


@guard
def splayed(*, watts: int) -> bool:
    return watts > 5


def many_guards(count: int) -> dict[str, object]:
    """A lamp with as many guards as asked for."""

    def light(self: object, watts: int) -> None: ...

    body: object = light
    for _ in range(count):
        body = row(Lamp.OFF, to=Lamp.ON, when=guard(lambda: True))(body)
    return {"light": body, "dim": lamp()["dim"]}


def many_rows() -> dict[str, object]:
    """A lamp with 256 rows besides its own two."""
    return lamp() | {f"e{n}": lamp(method=fresh("(self)"), name=f"e{n}")[f"e{n}"] for n in range(256)}


class Twin(enum.Enum):
    A = "the same value"
    B = "another"
    C = "the same value"  # noqa: PIE796 - that is the point


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "unknown state": (lambda: define(lamp(to="ON")), "'ON' is not a state of Lamp"),
    "foreign enum": (lambda: define(lamp(to=Door.OPEN)), "Door.OPEN: .* is not a state of Lamp"),
    "foreign final": (lambda: define(lamp(), finals=[Door.OPEN]), "is not a state of Lamp"),
    "foreign tone": (lambda: define(lamp(), tones={Door.OPEN: Tone.OVER}), "is not a state of Lamp"),
    "no tone": (lambda: define(lamp(), tones={Lamp.ON: "red"}), "tone of ON is 'red' .give a Tone: REST, USE, COPY, "),
    "initial is no state": (lambda: define(lamp(), initial=3), "must be a member of an enum, not 3"),
    "no edge": (lambda: define({}), "no edge is defined"),
    "unreachable": (lambda: define(lamp(to=Lamp.OFF)), "no way leads from OFF to ON"),
    "trap": (lambda: define({"light": lamp()["light"]}), "no way leads from ON to the initial state OFF .write a row, or"),
    "no way to a final state": (
        lambda: define(_loop(), Step.FIRST, [Step.LAST]),
        "no way leads from SECOND to a final state .write a row.",
    ),
    "row out of a final state": (lambda: define(lamp(), finals=[Lamp.ON]), "ON --dim--> OFF leaves a final state"),
    "row never tried": (
        lambda: define({"light": edge(Lamp.OFF, to=Lamp.OFF)(_edge_of(lamp()["light"])), "dim": lamp()["dim"]}),
        r"OFF --light--> ON is never tried, because OFF --light--> OFF stands above it",
    ),
    "two states of one value": (lambda: define(lamp(), initial=Twin.A), "two states of Twin have the same value"),
    "guard that is none": (lambda: define(lamp(when=lambda: True)), "is not a guard"),
    "guard that cannot be hashed": (lambda: define(lamp(when=[1])), "is not a guard"),
    "guard of an unknown parameter": (lambda: define(lamp(when=bright)), "bright asks for 'watts', which the payload does not"),
    "guard of another type": (
        lambda: define(lamp(when=floating, method=fresh("(self, watts: int)"))),
        "floating takes watts as float, the payload gives int",
    ),
    "guard of keywords only": (
        lambda: define(lamp(when=splayed, method=fresh("(self, watts: int)"))),
        "splayed must take watts plainly",
    ),
    "too many guards": (lambda: define(many_guards(MAX_GUARDS + 1)), "9 guards; an event can have 8"),
    "too many rows": (lambda: define(many_rows()), "258 rows; a table holds 255"),
    "star payload": (lambda: define(lamp(method=fresh("(self, *watts: int)"))), "named parameters"),
    "double star payload": (lambda: define(lamp(method=fresh("(self, **watts: int)"))), "named parameters"),
    "positional-only payload": (lambda: define(lamp(method=fresh("(self, watts: int, /)"))), "the first parameter|named param"),
    "payload with an underscore": (lambda: define(lamp(method=fresh("(self, _to: int)"))), "_to cannot name a payload"),
    "payload called self": (lambda: define(lamp(method=fresh("(me, self: int)"))), "self cannot name a payload"),
    "no self": (lambda: define(lamp(method=fresh("()"))), "the first parameter of an edge is self"),
    "name of every lifecycle": (lambda: define(lamp(name="can")), "can: the name is taken by every lifecycle"),
    "name of the table": (lambda: define(lamp(name="table")), "table: the name is taken by every lifecycle"),
    "name of the byte": (lambda: define(lamp(name="_at")), "_at: the name is taken by every lifecycle"),
    "two names for one edge": (lambda: define({"glow": lamp()["light"]}), "glow: the edge is called light; use one name"),
    "edge of another lifecycle": (lambda: define(dict(vars(LampLife))), "the edge belongs to LampLife already"),
    "edge of a mixin": (
        lambda: define({"dim": lamp()["dim"]}, bases=(type("Mixin", (), {"light": lamp()["light"]}), Lifecycle)),
        "edge light comes from Mixin; write its rows out",
    ),
    "subclass of a lifecycle": (lambda: define({}, bases=(LampLife,)), "a lifecycle cannot extend another"),
    "edge on a non-function": (lambda: lamp(method=staticmethod(nothing)), "must be a plain method, not <staticmethod"),
    "edge on a coroutine": (
        lambda: lamp(method=_later),
        "edge light: the body runs at once; it cannot be async or a generator",
    ),
    "no initial state": (
        lambda: define_without_initial(),
        r"DoorLife: it has no initial state .write class DoorLife.Lifecycle, initial",
    ),
    "guard that is a coroutine": (lambda: guard(cast("Callable[[], bool]", _later)), "a guard answers at once"),
    "edge without a source": (lambda: edge(to=Lamp.ON)(nothing), "name at least one state it starts from"),
    "edge outside a class": (lambda: _edge_of(lamp()["light"]).event, "light stands outside a Lifecycle class"),
}


def _edge_of(value: object) -> Edge[Lamp, Lamp, ...]:
    assert isinstance(value, Edge)
    return value


async def _later() -> bool:
    return True


def define_without_initial() -> object:
    """A class whose keyword was forgotten, which mypy would see."""
    return type("DoorLife", (Lifecycle,), lamp())


def _loop() -> dict[str, object]:
    """FIRST to SECOND, which stays where it is, and to LAST."""

    def go(self: object) -> None: ...
    def end(self: object) -> None: ...

    return {
        "go": row(Step.FIRST, Step.SECOND, to=Step.SECOND)(go),
        "end": row(Step.FIRST, to=Step.LAST)(end),
    }


@pytest.mark.parametrize("case", WRONG)
def test_definition_that_cannot_be_right_is_refused_with_the_reason(case: str) -> None:
    """A wrong lifecycle never becomes a class, and the message says what is wrong with it."""
    make, reason = WRONG[case]

    with pytest.raises(DefinitionError, match=reason):
        make()


def test_definition_error_is_misuse_and_a_type_error() -> None:
    """Whoever catches the caller's faults, or Python's own for a bad class, catches it."""
    assert issubclass(DefinitionError, MisuseError)
    assert issubclass(DefinitionError, TypeError)


def test_definition_may_use_the_limits_fully() -> None:
    """As many guards and rows as the limits say are accepted."""
    assert len(define(many_guards(MAX_GUARDS)).__dict__["light"].event.guards) == MAX_GUARDS
    body = many_rows()
    for surplus in ("e253", "e254", "e255"):
        del body[surplus]
    assert len(define(body).__dict__["table"].rows) == 255


def test_guard_and_edge_agree_on_types_with_and_without_postponed_annotations() -> None:
    """A guard from a module that writes real types fits a payload whose types are text (once refused)."""
    scope: dict[str, object] = {}
    exec(compile("def glows(watts: int) -> bool: return watts > 5", "real", "exec", dont_inherit=True), scope)
    glows = scope["glows"]
    assert inspect.isfunction(glows)
    assert glows.__annotations__["watts"] is int

    def light(self: object, watts: int) -> None: ...

    made = define(lamp(when=guard(glows), method=light))

    assert issubclass(made, Lifecycle)


def test_table_says_everything_that_was_written() -> None:
    """The compiled table keeps states, rows in the order of the decorators, documents and payloads."""
    table = DoorLife.table

    assert table.name == "DoorLife"
    assert table.doc == "A door that remembers what its effects did."
    assert table.states == tuple(Door)
    assert (table.initial, table.finals) == (Door.CLOSED, frozenset())
    assert [str(row) for row in table.rows] == [
        "CLOSED --enter [polite]--> OPEN",
        "CLOSED --enter--> CLOSED",
        "OPEN --shut--> CLOSED",
        "CLOSED --lock--> LOCKED",
        "LOCKED --unlock [knows]--> CLOSED",
    ]
    assert [row.index for row in table.rows] == [1, 2, 3, 4, 5]
    assert table.row(3) is table.rows[2]
    assert table.events["lock"].parameters == ("code", "slam")
    assert table.events["lock"].doc == "Set the code."
    assert knows.doc == "The code is right."
    assert table.events["unlock"].bit(knows) == 1
    assert knows(CODE)
    assert not knows(0)


@pytest.mark.parametrize("facts", [2, 255, -1])
def test_next_state_refuses_facts_that_the_event_does_not_have(facts: int) -> None:
    """A bit too many would read the row of another state."""
    with pytest.raises(MisuseError, match="facts must be 0 to 1, a bit for each guard, not"):
        DoorLife.table.next_state(Door.CLOSED, "enter", facts)


# --- one machine -------------------------------------------------------------------------------------------------------


def test_an_event_that_is_none_is_named_with_those_that_are() -> None:
    """A caller's slip, not a lookup that failed."""
    with pytest.raises(MisuseError, match=r"DoorLife: it has no event 'slam' \(known are .*lock.*\)"):
        DoorLife().can("slam")
    with pytest.raises(MisuseError, match="it has no event 'slam'"):
        DoorLife.table.next_state(Door.CLOSED, "slam")


def test_machine_keeps_guards_of_one_name_apart() -> None:
    """Two guards with the same name are two guards (once the second took the place of the first)."""
    low, high = guard(lambda watts: watts == 1), guard(lambda watts: watts == 2)

    def light(self: object, watts) -> None: ...  # type: ignore[no-untyped-def]

    body = row(Lamp.OFF, to=Lamp.ON, when=low)(row(Lamp.OFF, to=Lamp.OFF, when=high)(light))
    made = define({"light": body, "dim": lamp()["dim"]})
    first, second = made(), made()
    first.light(1)
    second.light(2)

    assert (first.state, second.state) == (Lamp.ON, Lamp.OFF)


def test_machine_passes_payloads_called_at_and_to() -> None:
    """A payload may carry the names that generated code once used for itself."""
    got = []

    class MoveLife(Lifecycle, initial=Lamp.OFF):
        @edge(Lamp.OFF, to=Lamp.ON)
        def move(self, at: int, to: int, self_: int = 3) -> None:
            got.append((at, to, self_))

        @edge(Lamp.ON, to=Lamp.OFF)
        def back(self) -> None: ...

    MoveLife().move(7, to=8)

    assert got == [(7, 8, 3)]


@pytest.mark.parametrize(
    ("way", "event", "arguments", "message"),
    [
        ((), "shut", {}, "DoorLife: cannot SHUT while CLOSED: shut, but not locked (first enter)"),
        ((), "unlock", {"code": CODE}, "DoorLife: cannot UNLOCK while CLOSED: shut, but not locked (first lock)"),
        (
            ("enter",),
            "unlock",
            {"code": CODE},
            "DoorLife: cannot UNLOCK while OPEN: anybody may pass (it is allowed while LOCKED)",
        ),
        (
            ("lock",),
            "unlock",
            {"code": 1},
            "DoorLife: cannot UNLOCK while LOCKED: guard knows does not hold (it is allowed when the code is right)",
        ),
        (("lock",), "shut", {}, "DoorLife: cannot SHUT while LOCKED: needs the code (it is allowed while OPEN)"),
    ],
)
def test_refusal_names_thing_state_event_and_remedy(
    way: tuple[str, ...], event: str, arguments: dict[str, object], message: str
) -> None:
    """An illegal event is refused in words that say what to do, and leaves state and attributes as they were."""
    door = DoorLife()
    for step in way:
        getattr(door, step)(1)
    before = copy.deepcopy(vars(door))

    with pytest.raises(RefusedError) as caught:
        getattr(door, event)(**arguments)

    assert str(caught.value) == message
    assert vars(door) == before
    assert (caught.value.thing, caught.value.event) == ("DoorLife", event)
    assert caught.value.state == door.state.name


def test_refusal_says_when_no_way_leads_back() -> None:
    """Where no path reaches a state with that edge, the message says so."""
    once = OnceLife()
    once.begin()
    once.end()
    once.end()

    with pytest.raises(
        RefusedError, match=r"cannot BEGIN while LAST .it is allowed while FIRST, and nothing leads back there.$"
    ):
        once.begin()


def test_refusal_survives_pickling() -> None:
    """A refusal can cross a process boundary with all its parts."""
    back = pickle.loads(pickle.dumps(RefusedError("door 3", "OPEN", "lock", "first shut", 3, "a foot is in it")))
    plain = pickle.loads(pickle.dumps(RefusedError("door 3", "OPEN", "lock", "first shut")))

    assert str(back) == "door 3: cannot LOCK while OPEN: a foot is in it (first shut)"
    assert (back.thing, back.state, back.event, back.remedy) == ("door 3", "OPEN", "lock", "first shut")
    assert (back.place, back.reason) == (3, "a foot is in it")
    assert str(plain) == "door 3: cannot LOCK while OPEN (first shut)"
    assert (plain.place, plain.reason) == (None, "")


class Berth(enum.Enum):
    EMPTY = "no ship in it"
    TAKEN = 2
    SHUT = "shut"


@guard(otherwise="{crew} sailors are still on board of {ship}")
def deserted(crew: int, ship: str) -> bool:
    """Nobody is on board."""
    return crew == 0


@guard
def LIFO(last: bool) -> bool:  # noqa: N802 - a name that is not a word
    """LIFO order is kept."""
    return last


@guard
def paid(last: bool) -> bool:
    return last


class BerthLife(Lifecycle, initial=Berth.EMPTY):
    @edge(Berth.EMPTY, to=Berth.TAKEN)
    def dock(self) -> None: ...

    @edge(Berth.TAKEN, to=Berth.EMPTY, when=deserted)
    def scrap(self, crew: int, ship: str) -> None: ...

    @edge(Berth.TAKEN, to=Berth.EMPTY, when=LIFO)
    @edge(Berth.TAKEN, to=Berth.SHUT, when=paid)
    def leave(self, last: bool) -> None: ...

    @edge(Berth.SHUT, to=Berth.EMPTY)
    def open(self) -> None: ...


def test_guard_says_in_its_own_words_what_is_in_the_way() -> None:
    """The values of the payload go into its text; where they are not known, the refusal is made of the docstring."""
    berth, pool = BerthLife(), Pool(BerthLife, 4)
    berth.dock()
    taken = pool.fire(BerthLife.dock, pool.handle(Berth.EMPTY))
    column = Column(BerthLife.table, 1)
    column.fire(BerthLife.dock.event, [0])
    wanted = "3 sailors are still on board of Argo (it is allowed when nobody is on board)"

    with pytest.raises(RefusedError, match=rf"^BerthLife: cannot SCRAP while TAKEN: {re.escape(wanted)}$"):
        berth.scrap(3, ship="Argo")
    with pytest.raises(RefusedError, match=rf"^berth 0: cannot SCRAP while TAKEN: {re.escape(wanted)}$"):
        pool.fire(BerthLife.scrap, taken, 3, "Argo")
    with pytest.raises(RefusedError, match=rf"^berth 2: cannot SCRAP while TAKEN: {re.escape(wanted)}$") as caught:
        pool.fire_each(BerthLife.scrap, taken, crew=np.array([0, 0, 3, 5]), ship=np.array(["a", "b", "Argo", "c"]))
    assert caught.value.place == 2
    assert caught.value.__cause__ is None
    with pytest.raises(RefusedError, match=r"TAKEN: guard deserted does not hold .it is allowed when nobody is on board.$"):
        column.fire(BerthLife.scrap.event, [0])


@pytest.mark.parametrize(
    "ids", [[0, 2, 3], np.array([0, 2, 3]), slice(0, 4), slice(3, None, -1)], ids=["list", "array", "slice", "backwards"]
)
def test_column_fills_the_payload_of_fire_into_the_refusal(ids: list[int] | NDArray[np.int64] | slice) -> None:
    """One value for all, or the value of the place that refuses."""
    column = Column(BerthLife.table, 4)
    column.fire(BerthLife.dock.event, slice(0, 4))
    order = list(range(4))[ids] if isinstance(ids, slice) else list(ids)
    facts = np.array([place != 2 for place in order], dtype=np.uint8)
    crew, ship = np.array([3 * (place == 2) for place in order]), np.array([f"Argo {place}" for place in order])
    event = BerthLife.scrap.event

    with pytest.raises(
        RefusedError, match=r"^berth 2: cannot SCRAP while TAKEN: 3 sailors are still on board of Argo 2 "
    ) as one:
        column.fire(event, ids, facts, {"crew": crew, "ship": ship})
    assert one.value.place == 2
    assert one.value.__cause__ is None
    with pytest.raises(RefusedError, match=r"TAKEN: 5 sailors are still on board of Argo "):
        column.fire(event, ids, facts, {"crew": 5, "ship": "Argo"})
    assert column.count()[Berth.TAKEN] == 4


def test_column_that_has_no_row_says_so_whatever_the_payload() -> None:
    """The guard is not asked where no row has it."""
    column = Column(BerthLife.table, 1)
    with pytest.raises(RefusedError, match=r"^berth 0: cannot SCRAP while EMPTY: no ship in it"):
        column.fire(BerthLife.scrap.event, [0], 1, {"crew": 0, "ship": "Argo"})


def test_refusal_of_several_guards_names_each() -> None:
    """A docstring becomes a part of the sentence, unless it begins with a name; without one the guard's name stands there."""
    berth = BerthLife()
    berth.dock()

    with pytest.raises(RefusedError) as caught:
        berth.leave(last=False)

    assert caught.value.reason == "guard LIFO does not hold and guard paid does not hold"
    assert caught.value.remedy == "it is allowed when LIFO order is kept, or when paid holds"


def test_state_says_what_it_means_where_it_is_a_text() -> None:
    """A number, or a single word, says no more than the name."""
    said = [BerthLife.table.reason(state, "open" if state is not Berth.SHUT else "dock") for state in Berth]

    assert said == ["no ship in it", "", ""]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{crew} sailors, {boats} boats", "it says {boats}, and has no such parameter"),
        ("{} sailors", "it says {}, and has no such parameter"),
        ("{crew.size} sailors", "it says {crew.size}, and has no such parameter"),
        ("{crew:{width}} sailors", "it says {width}, and has no such parameter"),
        ("{crew sailors", "cannot be filled in: expected '}'"),
    ],
)
def test_text_of_a_guard_is_checked_when_it_is_defined(text: str, problem: str) -> None:
    """What could not be filled in later is refused at once."""
    with pytest.raises(DefinitionError, match=f"guard alone: .*{re.escape(problem)}"):

        @guard(otherwise=text)
        def alone(crew: int) -> bool:
            return crew == 0


def test_body_runs_after_the_commit() -> None:
    """The effect already sees the new state."""
    door = DoorLife()
    door.enter(knocks=3)

    assert door.seen == [("enter", Door.OPEN, 3)]


def test_exception_in_the_body_leaves_the_state_committed() -> None:
    """An effect that raises cannot undo the commit."""
    door = DoorLife()

    with pytest.raises(RuntimeError, match="glass"):
        door.lock(1, slam=True)

    assert door.state is Door.LOCKED


def test_exception_in_a_guard_changes_nothing() -> None:
    """Guards are asked before anything is written."""
    door = DoorLife()
    knock: Callable[..., None] = door.enter

    with pytest.raises(TypeError, match="not supported"):
        knock("twice")

    assert (door.state, door.seen) == (Door.CLOSED, [])


@pytest.mark.parametrize(
    ("positional", "named"),
    [((), {}), ((1, True), {}), ((1,), {"force": True}), ((1,), {"code": 2}), ((), {"slam": True})],
)
def test_wrong_arguments_are_refused_before_anything_changes(positional: tuple[object, ...], named: dict[str, object]) -> None:
    """A call that does not fit the written signature is a TypeError, and the machine has not moved."""
    door = DoorLife()
    lock: Callable[..., None] = door.lock

    with pytest.raises(TypeError, match="argument"):
        lock(*positional, **named)

    assert (door.state, door.seen) == (Door.CLOSED, [])


def test_defaults_and_keyword_only_payloads_are_kept() -> None:
    """The generated method has the very signature that was written."""
    door = DoorLife()
    door.enter()
    door.shut()
    door.lock(code=5)

    assert door.seen == [("enter", Door.OPEN, 1), ("lock", Door.LOCKED, (5, False))]
    assert str(inspect.signature(door.lock)) == "(code: 'int', *, slam: 'bool' = False) -> 'None'"
    assert door.lock.__doc__ == "Set the code."


def test_numpy_values_are_lawful_payloads() -> None:
    """A guard's answer may be a numpy bool."""
    door = DoorLife()
    door.lock(0)
    unlock: Callable[..., None] = door.unlock
    unlock(np.int64(CODE))

    assert door.state is Door.CLOSED


# --- columns -----------------------------------------------------------------------------------------------------------

EVENTS = [pytest.param(event, id=f"{name}.{event.name}") for name, table in MACHINES.items() for event in table.events.values()]
SIZE = 97


def dressed(table: Table, dice: random.Random, legal_for: Event | None = None, facts: Sequence[int] = ()) -> Column:
    """A column in random states; with *legal_for*, in states from which that event has a row under *facts*."""
    column = Column(table, SIZE)
    for place in range(SIZE):
        choices = range(len(table.states))
        if legal_for is not None:
            width = len(legal_for.guards)
            choices_left = [at for at in choices if legal_for.lut[at << width | facts[place]] != REFUSED]
            column.state[place] = dice.choice(choices_left)
        else:
            column.state[place] = dice.choice(choices)
    return column


def lawful_facts(event: Event, dice: random.Random) -> list[int]:
    """Random facts, one per place, for each of which some state has a row."""
    width = len(event.guards)
    choices = [
        facts for facts in range(1 << width) if any(event.lut[at << width | facts] for at in range(len(event.table.states)))
    ]
    return [dice.choice(choices) for _ in range(SIZE)]


def outcome(column: Column, event: Event, ids: list[int] | NDArray[np.int64] | slice, facts: object) -> object:
    """What firing led to: states and counters, or the refusal's words and that nothing changed."""
    before, counted = column.snapshot(), list(column.taken)
    fire: Callable[..., None] = column.fire
    try:
        fire(event, ids, facts)
    except RefusedError as refusal:
        assert (column.snapshot(), column.taken) == (before, counted)
        return str(refusal)
    return column.snapshot(), list(column.taken)


@pytest.mark.parametrize("lawful", [True, False], ids=["lawful", "any"])
@pytest.mark.parametrize("event", EVENTS)
def test_column_scalar_and_bulk_paths_agree(event: Event, lawful: bool) -> None:
    """On the same bytes a list, an array and a slice do the same, whatever the facts are given as."""
    seed = f"{event.table.name}.{event.name}.{lawful}"
    print(f"seed {seed!r}")
    dice = random.Random(seed)
    for _ in range(10):
        facts = lawful_facts(event, dice)
        column = dressed(event.table, dice, event if lawful else None, facts)
        start = column.snapshot()
        ids = dice.sample(range(SIZE), dice.randint(1, SIZE))
        chosen = [facts[place] for place in ids]
        array = np.array(chosen, dtype=np.uint8)
        ways: list[tuple[list[int] | NDArray[np.int64], object]] = [
            (ids, chosen),
            (ids, tuple(chosen)),
            (ids, bytes(chosen)),
            (ids, array),
            (np.array(ids), chosen),
            (np.array(ids), bytes(chosen)),
            (np.array(ids), array),
            (np.array(ids), array.astype(np.int64)),
        ]
        found = []
        for each, given in ways:
            fresh_column = Column(event.table, SIZE)
            fresh_column.restore(start)
            found.append(outcome(fresh_column, event, each, given))

        assert all(each == found[0] for each in found)
        if lawful:
            assert not isinstance(found[0], str)


@pytest.mark.parametrize("event", EVENTS)
def test_column_slice_and_list_agree_on_one_fact_for_all(event: Event) -> None:
    """One number of facts serves all places, as int, bool or numpy integer."""
    dice = random.Random(event.name)
    column = dressed(event.table, dice)
    start = column.snapshot()
    for facts in range(1 << len(event.guards)):
        found = []
        for ids in (list(range(3, 40, 2)), slice(3, 40, 2), np.arange(3, 40, 2)):
            for given in (facts, np.uint8(facts), np.int64(facts), *([bool(facts)] if facts < 2 else [])):
                column = Column(event.table, SIZE)
                column.restore(start)
                found.append(outcome(column, event, ids, given))

        assert all(each == found[0] for each in found)


def test_column_looks_up_events_of_any_width() -> None:
    """One look-up is longer than a byte can index and takes a path of its own."""
    sizes = {event.name: len(event.lut) for event in BlockLife.table.events.values()}

    assert sizes["land"] > 256
    assert sizes["allocate"] <= 256
    assert sizes["acquire"] == len(Block)


@pytest.mark.parametrize("ids", [[], np.array([], dtype=np.int64), slice(0, 0)], ids=["list", "array", "slice"])
@pytest.mark.parametrize("facts", [0, [], np.array([], dtype=np.uint8)], ids=["int", "list", "array"])
def test_column_empty_batch_does_nothing(ids: list[int], facts: int) -> None:
    """No places, no change and no complaint."""
    for event in BlockLife.table.events.values():
        column = Column(BlockLife.table, 3)
        column.fire(event, ids, facts)

        assert column.snapshot() == bytes(3)
        assert sum(column.taken) == 0


def test_column_refusal_names_the_first_place_without_a_row() -> None:
    """The message carries the place, whichever path found it."""
    column = Column(DoorLife.table, 9)
    column.fire(DoorLife.lock.event, [4, 7])
    for ids in ([8, 7, 4], np.array([8, 7, 4]), slice(8, 3, -1)):
        with pytest.raises(RefusedError, match=r"^door 7: cannot LOCK while LOCKED: needs the code .first unlock.$"):
            column.fire(DoorLife.lock.event, ids)


@pytest.mark.parametrize("ids", [[0, 2], np.array([0, 2])], ids=["list", "array"])
@pytest.mark.parametrize(
    "facts",
    [2, -1, 256, True + 1, [0, 2], [-1, 0], (256, 0), np.array([0, 2], dtype=np.uint8), np.array([256, 0]), np.array([0, -1])],
    ids=repr,
)
def test_column_refuses_facts_that_the_event_does_not_have(ids: list[int], facts: int) -> None:
    """A bit too many would take the row of another state (once it did, in the scalar path). The wrong number is named."""
    column = Column(DoorLife.table, 4)
    (wrong,) = [int(each) for each in np.atleast_1d(np.asarray(facts)) if each not in (0, 1)]

    with pytest.raises(MisuseError, match=rf"DoorLife.enter: facts must be 0 to 1, a bit for each guard, not {wrong}"):
        column.fire(DoorLife.enter.event, ids, facts)

    assert (column.snapshot(), sum(column.taken)) == (bytes(4), 0)


@pytest.mark.parametrize("ids", [[0, 2], np.array([0, 2]), slice(0, 2)], ids=["list", "array", "slice"])
@pytest.mark.parametrize("facts", [[1], [1, 1, 1], np.ones(1, dtype=np.uint8), np.ones(3, dtype=np.uint8)], ids=repr)
def test_column_refuses_as_many_facts_as_do_not_fit(ids: list[int], facts: int) -> None:
    """Facts are one for all or one per place (once an array was stretched)."""
    column = Column(DoorLife.table, 4)

    with pytest.raises(MisuseError, match="facts for 2 places"):
        column.fire(DoorLife.enter.event, ids, facts)

    assert (column.snapshot(), sum(column.taken)) == (bytes(4), 0)


def test_column_refuses_places_it_does_not_have() -> None:
    """A place past the end is an IndexError in both paths, and nothing has changed."""
    column = Column(DoorLife.table, 4)
    for ids in ([0, 4], np.array([0, 4])):
        with pytest.raises(IndexError):
            column.fire(DoorLife.lock.event, ids)

        assert (column.snapshot(), sum(column.taken)) == (bytes(4), 0)


def test_column_trusts_its_caller_with_negative_and_repeated_ids() -> None:
    """A known limit: as everywhere in Python -1 is the last place, and a repeated id is taken twice; the caller checks."""
    column = Column(DoorLife.table, 4)
    column.fire(DoorLife.lock.event, [-1])
    column.fire(DoorLife.lock.event, np.array([-2]))
    column.fire(DoorLife.enter.event, [0, 0], 0)

    assert column.where(Door.LOCKED).tolist() == [2, 3]
    assert column.taken[DoorLife.table.rows[1].index] == 2


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64])
def test_column_takes_ids_of_any_integer_type(kind: type[np.integer]) -> None:
    """Arrays of other integer types, and lists of numpy integers, name the same places."""
    column = Column(DoorLife.table, 6)
    ids = np.array([1, 4]).astype(kind)
    column.fire(DoorLife.lock.event, ids)
    column.fire(DoorLife.unlock.event, list(ids), 1)
    column.fire(DoorLife.lock.event, list(ids))

    assert column.where(Door.LOCKED).tolist() == [1, 4]
    assert {str(row): times for row, times in column.row_counts() if times} == {
        "CLOSED --lock--> LOCKED": 4,
        "LOCKED --unlock [knows]--> CLOSED": 2,
    }


def test_column_asks_without_writing() -> None:
    """`ask` only finds rows; `commit` writes them, so that columns can move together."""
    column = Column(DoorLife.table, 3)
    rows = column.ask(DoorLife.enter.event, [0, 1, 2], [1, 0, 1])

    assert rows == [1, 2, 1]
    assert (column.snapshot(), sum(column.taken)) == (bytes(3), 0)
    column.commit([0, 1, 2], rows)
    assert [column.at(place) for place in range(3)] == [Door.OPEN, Door.CLOSED, Door.OPEN]
    assert column.taken == [0, 2, 1, 0, 0, 0]


def test_column_says_one_row_where_all_take_the_same() -> None:
    """A bulk batch of one kind is one number, and is counted as many."""
    column = Column(DoorLife.table, 8)
    ids = np.arange(0, 8, 2)

    assert column.ask(DoorLife.enter.event, ids, 1) == 1
    column.commit(ids, 1)
    column.commit(slice(1, 8, 2), 1)
    column.commit([0], 3)
    assert column.taken == [0, 8, 0, 1, 0, 0]


def test_column_counts_and_finds() -> None:
    """`count` is total over the states; `where` gives places as 64-bit integers."""
    column = Column(DoorLife.table, 5)
    column.fire(DoorLife.enter.event, [1, 3], 1)

    assert len(column) == 5
    assert column.count() == {Door.CLOSED: 3, Door.OPEN: 2, Door.LOCKED: 0}
    assert column.where(Door.OPEN).tolist() == [1, 3]
    assert column.where(Door.OPEN).dtype == np.int64
    assert column.where(Door.LOCKED).tolist() == []


def test_column_goes_back_to_a_snapshot() -> None:
    """A snapshot is a copy; the counters stay."""
    column = Column(DoorLife.table, 3)
    saved = column.snapshot()
    column.fire(DoorLife.lock.event, [2])
    view = column.view
    column.restore(saved)

    assert column.count()[Door.CLOSED] == 3
    assert view.tolist() == [0, 0, 0]
    assert sum(column.taken) == 1
    with pytest.raises(BufferError):
        column.restore(bytes(4))
    assert len(column) == 3


def test_column_may_be_empty() -> None:
    """A column of no places counts nothing."""
    column = Column(DoorLife.table, 0)
    column.fire(DoorLife.lock.event, slice(None))

    assert set(column.count().values()) == {0}


# --- facts -------------------------------------------------------------------------------------------------------------


def test_facts_of_a_payload_are_bits_in_the_order_of_the_guards() -> None:
    """One payload gives a number, arrays give one number per place, and both say the same."""
    event = BlockLife.allocate.event
    assert [each.name for each in event.guards] == ["lendable", "fenced"]
    refs = np.array([0, 1, 0])
    writes = np.array([0, 0, 1])
    together = event.facts({"fence": True, "refs": refs, "writes": writes})
    alone = [event.facts({"fence": True, "refs": r, "writes": w}) for r, w in [(0, 0), (1, 0), (0, 1)]]

    assert alone == [0b11, 0b10, 0b00]
    assert isinstance(together, np.ndarray)
    assert together.tolist() == alone


def test_guard_that_cannot_judge_a_batch_says_so() -> None:
    """A guard written with ``and`` works on one machine; for a batch the message tells how to write it."""
    cautious: Guard[[int, int]] = guard(_both)

    class CautiousLife(Lifecycle, initial=Lamp.OFF):
        @edge(Lamp.OFF, to=Lamp.ON, when=cautious)
        def light(self, watts: int, hands: int) -> None: ...

        @edge(Lamp.ON, to=Lamp.OFF)
        def dim(self) -> None: ...

    pool = Pool(CautiousLife, 2)
    off = pool.handle(Lamp.OFF)

    with pytest.raises(DefinitionError, match=r"guard _both cannot judge a batch: .* .write it with &, | and comparisons."):
        pool.fire_each(CautiousLife.light, off, watts=np.array([1, 1]), hands=np.array([1, 1]))
    assert len(pool.fire(CautiousLife.light, off, 1, 1)) == 2


def _both(watts: int, hands: int) -> bool:
    return watts > 0 and hands > 0


# --- pools -------------------------------------------------------------------------------------------------------------


def test_pool_moves_each_place_with_its_own_payload() -> None:
    """Arrays of values send places of one handle different ways."""
    pool = Pool(DoorLife, 4)
    pool.fire_each(DoorLife.enter, pool.handle(Door.CLOSED), knocks=np.array([0, 1, 2, 0]))

    assert pool.column.where(Door.OPEN).tolist() == [1, 2]


def test_pool_refuses_a_batch_as_a_whole() -> None:
    """One place without a row stops all, nothing has changed, and the handle is still good."""
    pool = Pool(DoorLife, 3)
    locked = pool.fire(DoorLife.lock, pool.handle(Door.CLOSED), CODE)
    before = pool.column.snapshot()

    with pytest.raises(RefusedError, match=r"^door 1: cannot UNLOCK while LOCKED: guard knows does not hold"):
        pool.fire_each(DoorLife.unlock, locked, code=np.array([CODE, 1, CODE]))

    assert pool.column.snapshot() == before
    assert len(pool.fire(DoorLife.unlock, locked, CODE)) == 3


def test_pool_refuses_a_handle_that_was_used_up() -> None:
    """A handle dies with the first step of any of its places, also a step that led back to the same state."""
    pool = Pool(DoorLife, 3)
    everything, one = pool.handle(Door.CLOSED), pool.handle(Door.CLOSED, [1])
    pool.fire(DoorLife.enter, one, 0)

    with pytest.raises(MisuseError, match=r"door 1: this handle was used up, it is CLOSED now .take a new handle."):
        pool.fire(DoorLife.lock, everything, CODE)
    with pytest.raises(MisuseError, match="used up"):
        pool.fire(DoorLife.enter, one, 0)
    assert pool.column.count()[Door.CLOSED] == 3


def test_pool_refuses_a_handle_of_another_pool() -> None:
    """Two pools of one lifecycle do not answer for each other's places (once they did)."""
    here, there = Pool(DoorLife, 3), Pool(DoorLife, 3)

    with pytest.raises(MisuseError, match="the handle belongs to another pool"):
        here.fire(DoorLife.lock, there.handle(Door.CLOSED), CODE)


def test_pool_refuses_an_event_of_another_lifecycle() -> None:
    """An edge fires only in pools of its own lifecycle."""
    pool = Pool(DoorLife, 3)
    fire: Callable[..., object] = pool.fire

    with pytest.raises(MisuseError, match=r"LampLife.light is not an event of DoorLife"):
        fire(LampLife.light, pool.handle(Door.CLOSED))


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([1, 2, 1], "a place is named twice"),
        ([0, 4], "places are 0 to 3"),
        ([-1], "places are 0 to 3"),
        (np.array([2, -4]), "places are 0 to 3"),
        (np.array([2**64 - 1], dtype=np.uint64), "places are 0 to 3"),
        ([3], "place 3 is LOCKED, not CLOSED"),
        (range(4), "place 3 is LOCKED, not CLOSED"),
    ],
    ids=repr,
)
def test_pool_refuses_places_it_cannot_give(ids: Sequence[int], reason: str) -> None:
    """Places must be distinct, exist and stand in the asked state; negative ids are no places."""
    pool = Pool(DoorLife, 4)
    pool.fire(DoorLife.lock, pool.handle(Door.CLOSED, [3]), CODE)

    with pytest.raises(MisuseError, match=reason):
        pool.handle(Door.CLOSED, ids)


@pytest.mark.parametrize(
    "ids", [[1.0], ["1"], np.array([1.0]), np.array([True, False, True, False]), np.array([[1], [2]])], ids=repr
)
def test_pool_never_rounds_ids_or_reads_them_as_a_mask(ids: Sequence[int]) -> None:
    """What is no row of integers is a TypeError (once 1.9 was place 1)."""
    with pytest.raises(TypeError, match="integer"):
        Pool(DoorLife, 4).handle(Door.CLOSED, ids)


@pytest.mark.parametrize(
    "ids",
    [[2, 0], (2, 0), iter([2, 0]), np.array([2, 0]), np.array([2, 0], dtype=np.uint8), [np.int32(2), np.int64(0)]],
    ids=["list", "tuple", "iterator", "array", "small-array", "numpy-integers"],
)
def test_pool_takes_ids_in_any_form_and_in_their_order(ids: Sequence[int]) -> None:
    """A handle keeps the order in which places were named."""
    handle = Pool(DoorLife, 4).handle(Door.CLOSED, ids)

    assert handle.ids.tolist() == [2, 0]
    assert handle.ids.dtype == np.int64


def test_handle_does_not_follow_the_array_it_was_made_of() -> None:
    """A handle owns its places: neither the caller's array nor its own can be changed under it."""
    ids = np.array([2, 0])
    handle = Pool(DoorLife, 4).handle(Door.CLOSED, ids)
    ids[0] = 1

    assert handle.ids.tolist() == [2, 0]
    with pytest.raises(ValueError, match="read-only"):
        handle.ids[0] = 1


def test_pool_takes_and_moves_nothing_at_all() -> None:
    """An empty handle is lawful and moves nothing."""
    pool = Pool(DoorLife, 4)
    nobody = pool.handle(Door.OPEN)
    after = pool.fire(DoorLife.shut, nobody)
    pool.fire_each(DoorLife.enter, pool.handle(Door.CLOSED, []), knocks=np.array([], dtype=np.int64))

    assert (len(nobody), len(after)) == (0, 0)
    assert sum(pool.column.taken) == 0


def test_pool_refuses_a_state_of_another_lifecycle() -> None:
    """A pool of doors has no place that is ON."""
    for ids in (None, [0]):
        with pytest.raises(MisuseError, match="is not a state of DoorLife"):
            Pool(DoorLife, 4).handle(Lamp.ON, ids)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({}, "enter takes knocks; check .'knocks'."),
        ({"knocks": np.ones(3), "force": np.ones(3)}, "enter takes knocks; check .'force'."),
        ({"knocks": np.ones(2)}, r"enter: knocks has shape \(2,\), for 3 places"),
        ({"knocks": np.ones((3, 3))}, r"enter: knocks has shape \(3, 3\), for 3 places"),
        ({"knocks": [0, 1, 2]}, r"enter: knocks is of type list \(give an array: np.asarray\(...\)\)"),
    ],
)
def test_pool_checks_the_names_and_sizes_of_arrays(payload: dict[str, object], reason: str) -> None:
    """A payload of arrays has exactly the event's names, and one value per place."""
    pool = Pool(DoorLife, 3)

    with pytest.raises(MisuseError, match=reason):
        pool.fire_each(DoorLife.enter, pool.handle(Door.CLOSED), **payload)  # type: ignore[arg-type]  # some are wrong

    assert pool.column.count()[Door.CLOSED] == 3


def test_guard_that_judges_all_places_at_once_is_refused() -> None:
    """Its one answer would go to all of them; nothing has moved. A payload for all places is judged once, as ever."""

    @guard
    def brave(watts: int) -> bool:
        return bool(np.all(watts))

    class BraveLife(Lifecycle, initial=Lamp.OFF):
        @edge(Lamp.OFF, to=Lamp.ON, when=brave)
        def light(self, watts: int) -> None: ...

        @edge(Lamp.ON, to=Lamp.OFF)
        def dim(self) -> None: ...

    pool = Pool(BraveLife, 2)
    off = pool.handle(BraveLife.light)

    with pytest.raises(DefinitionError, match="guard brave cannot judge a batch: it answers once for all places"):
        pool.fire_each(BraveLife.light, off, watts=np.array([1, 1]))
    assert pool.column.count()[Lamp.OFF] == 2
    assert len(pool.fire(BraveLife.light, off, 1)) == 2


def test_pool_says_what_an_event_without_payload_takes() -> None:
    """For an event without a payload the message says that it takes nothing."""
    pool = Pool(DoorLife, 3)

    with pytest.raises(MisuseError, match=r"shut takes nothing; check .'code'."):
        pool.fire_each(DoorLife.shut, pool.handle(Door.OPEN), code=np.ones(0))


def test_pool_wrong_arguments_change_nothing() -> None:
    """A payload that does not fit the signature is a TypeError, and the handle is still good."""
    pool = Pool(DoorLife, 3)
    handle = pool.handle(Door.CLOSED)
    fire: Callable[..., object] = pool.fire

    for positional, named, problem in (
        ((), {}, "missing a required argument: 'code'"),
        ((1, 2), {}, "too many positional arguments"),
        ((), {"cod": 1}, "missing a required argument: 'code'"),
        ((1,), {"cod": 1}, "got an unexpected keyword argument 'cod'"),
    ):
        with pytest.raises(TypeError, match=rf"^DoorLife\.lock: {problem} \(behind the handle it takes code, slam\)$"):
            fire(DoorLife.lock, handle, *positional, **named)
    assert len(pool.fire(DoorLife.lock, handle, CODE)) == 3


def test_pool_carries_payloads_called_like_its_own_parameters() -> None:
    """An event may have a payload called *handle* or *fired* (once they collided)."""

    class GripLife(Lifecycle, initial=Lamp.OFF):
        @edge(Lamp.OFF, to=Lamp.ON)
        def grip(self, handle: int, fired: bool) -> None: ...

        @edge(Lamp.ON, to=Lamp.OFF)
        def back(self) -> None: ...

    pool = Pool(GripLife, 2)
    fire: Callable[..., object] = pool.fire
    fire(GripLife.grip, pool.handle(Lamp.OFF), handle=1, fired=True)
    pool.fire(GripLife.back, pool.handle(Lamp.ON))
    each: Callable[..., object] = pool.fire_each
    each(GripLife.grip, pool.handle(Lamp.OFF), handle=np.ones(2), fired=np.ones(2))

    assert pool.column.count()[Lamp.ON] == 2


@pytest.mark.parametrize("size", [0, -3])
def test_pool_has_at_least_one_place(size: int) -> None:
    """A pool without places is a mistake."""
    with pytest.raises(MisuseError, match="a pool of DoorLife: the size must be at least 1"):
        Pool(DoorLife, size)


def test_row_reads_as_an_arrow() -> None:
    """A row prints as it would be drawn."""
    rows: tuple[Row, ...] = DoorLife.unlock.event.rows_of(Door.LOCKED)

    assert [str(row) for row in rows] == ["LOCKED --unlock [knows]--> CLOSED"]
    assert DoorLife.unlock.event.rows_of(Door.OPEN) == ()


def test_event_says_its_name() -> None:
    """Errors print what somebody wrote, and no address of memory."""

    def lonely(_: object) -> None:
        """Stands outside a class."""

    assert repr(DoorLife.unlock) == "DoorLife.unlock"
    assert repr(edge(Door.CLOSED, to=Door.LOCKED)(lonely)) == "<edge lonely>"
