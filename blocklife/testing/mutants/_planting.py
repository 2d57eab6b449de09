"""Mutants: every guard, every effect of a coupling and every cleanup step switched off in turn; each must be found.

Rules of this file:

* Mutants are derived: guards from the tables, effects from `states.COUPLINGS`, cleanup steps from the source of the ledger and
  the scheduler. Only the seeds are listed here. A new rule makes a new mutant.
* A mutant is planted in the running code and always taken out again. It is found if a world that holds without it does not hold
  with it. The search is breadth first, so the counterexample is a shortest one.
* A mutant that no world finds has one of four fates (`_judging.Fate`): *counted* (every rule holds, but numbers that tests pin
  change), *unreached* (no world executes the code), *unchanged*, or *survived* (the same numbers, other values). Each needs a
  test that fails under it (`_table.read_caught`).

Theory. *Guards*: a row is taken although its guard does not hold. *Effects*: one machine takes its step, and the other does
not. *Steps*: a cleanup step is a statement (a call, a deletion, an assignment to state) of a function that can be reached from
a verb that ends a job, a hold, a request or content. An assignment to something that snapshots do not contain (a counter, say)
is not one: nothing later depends on it. If such a function takes an entry out of a table while it reads it (``pop``), that is
a step, too: without it the entry is read, and stays.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
from attrs import frozen

from blocklife.errors import MisuseError
from blocklife.ledger import _snapshot as ledger_snapshot
from blocklife.ledger import _steps as ledger_steps
from blocklife.ledger._journal import Journal
from blocklife.ledger._ledger import Ledger
from blocklife.ledger._places import Blocks, Places, Slots
from blocklife.ledger._ring import Ring
from blocklife.ledger._rules import RULES, CountedEvent, Rule
from blocklife.ledger._state import LedgerData
from blocklife.ledger._steps import Steps
from blocklife.ledger.jobs import JobTable
from blocklife.lifecycle import Event
from blocklife.offload import _search as scheduler_search
from blocklife.offload import _snapshot as scheduler_snapshot
from blocklife.offload._below import TierBelow
from blocklife.offload._host import HostTier
from blocklife.offload._progress import ProgressTable
from blocklife.offload._scheduler import OffloadScheduler
from blocklife.offload._state import SchedulerState
from blocklife.offload._steps import SchedulerSteps
from blocklife.offload._stores import StoreLine
from blocklife.states import COUPLINGS, MACHINES, Coupling, Runs

Undo: TypeAlias = Callable[[], None]


@frozen
class Site:
    """A place in the code: a cleanup step of a function, or a row of a table, by number."""

    owner: type | str
    """A class, or the name of a machine."""
    name: str
    """A function, or an event."""
    number: int
    """The number of the step in its function, or of the row in its table."""


@frozen(eq=False)
class Mutant:
    """One rule, effect or step that can be switched off."""

    name: str
    kind: str
    """``guard``, ``effect``, ``step`` or ``seed``."""
    plant: Callable[[], Undo]
    """Switches it off. Returns what switches it on again."""
    site: Site | None = None
    """Where it is in the code, if it can be watched whether that is executed."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run the body with a mutant in the code."""
    undo = mutant.plant()
    try:
        yield
    finally:
        undo()


@contextmanager
def watched(mutants: Iterable[Mutant]) -> Iterator[set[str]]:
    """Run the body without mutants, and collect the names of those whose site is executed, and of those without a site."""
    names = {each.site: each.name for each in mutants if each.site is not None}
    reached = {each.name for each in mutants if each.site is None}
    undos: list[Undo] = []
    functions = {(site.owner, site.name) for site in names if isinstance(site.owner, type)}
    events = {(site.owner, site.name) for site in names if isinstance(site.owner, str)}
    try:
        for owner, name in functions:
            if isinstance(owner, type):
                undos.append(_note_steps(owner, name, names, reached))
        for machine, event in events:
            if isinstance(machine, str):
                undos.append(_note_rows(machine, event, names, reached))
        yield reached
    finally:
        for undo in reversed(undos):
            undo()


def all_mutants() -> list[Mutant]:
    """All mutants, in a fixed order; no two have the same name."""
    found = [*guard_mutants(), *effect_mutants(), *step_mutants(), *seed_mutants()]
    twice = [name for name, count in Counter(each.name for each in found).items() if count > 1]
    if twice:
        raise MisuseError(f"mutant {twice[0]}: two have this name")
    return found


def mutant_named(name: str) -> Mutant:
    """The mutant with this name. Raises MisuseError if there is none."""
    mutants = {each.name: each for each in all_mutants()}
    if name not in mutants:
        raise MisuseError(no_mutant(name, mutants))
    return mutants[name]


def no_mutant(name: str, names: Collection[str]) -> str:
    """The message for an unknown name: it suggests the nearest one, preferably one that contains the name."""
    near = difflib.get_close_matches(name, [each for each in names if name in each] or names, n=1, cutoff=0.0)
    return f"no mutant is called {name!r}" + "".join(f" (the nearest is {each!r})" for each in near)


# --- guards -------------------------------------------------------------------------------------------------------------


def guard_mutants() -> Iterator[Mutant]:
    """A mutant for each row with a guard: the row is taken although the guard does not hold."""
    for machine, table in MACHINES.items():
        for row in table.rows:
            if row.guard is not None:
                name = f"{machine}.{row.event} from {row.source.name} to {row.target.name} without {row.guard.name}"
                site = Site(machine, row.event, row.index)
                yield Mutant(name, "guard", functools.partial(_forget_guard, machine, row.index), site)


def _without_guard(machine: str, index: int) -> bytearray:
    """The lookup of an event as if one of its rows had no guard."""
    table = MACHINES[machine]
    row = table.row(index)
    event = table.events[row.event]
    if row.guard is None:
        raise MisuseError(f"row {index} of {machine} has no guard")
    width, bit = len(event.guards), event.bit(row.guard)
    start = table.index[row.source] << width
    wrong = bytearray(event.lut)
    for facts in range(1 << width):
        wrong[start | facts] = event.lut[start | facts | bit]
    return wrong


def _forget_guard(machine: str, index: int) -> Undo:
    return rewire(MACHINES[machine].events[MACHINES[machine].row(index).event], bytes(_without_guard(machine, index)))


def _note_rows(machine: str, name: str, names: Mapping[Site, str], reached: set[str]) -> Undo:
    """Watch where missing guards of one event would make a difference."""
    event = MACHINES[machine].events[name]
    wrong = {
        mutant: bytes(_without_guard(machine, site.number))
        for site, mutant in names.items()
        if (site.owner, site.name) == (machine, name)
    }
    if machine not in RULES:
        return rewire(event, _WatchedPlaces(event.lut, _differing(event.lut, wrong), reached))
    rule = RULES[machine][name]
    tables = {mutant: rule.rows_of(lut) for mutant, lut in wrong.items()}
    return _load(
        rule,
        tuple(
            _WatchedPlaces(right, _differing(right, {mutant: each[at] for mutant, each in tables.items()}), reached)
            for at, right in enumerate(rule.tables)
        ),
    )


def _differing(right: bytes, wrong: Mapping[str, bytes]) -> dict[int, list[str]]:
    """Which mutants would make a difference, by place in the lookup."""
    found: dict[int, list[str]] = {}
    for mutant, table in wrong.items():
        for place, row in enumerate(table):
            if row != right[place]:
                found.setdefault(place, []).append(mutant)
    return found


def _load(rule: Rule, tables: tuple[bytes, ...]) -> Undo:
    """Replace the lookups of blocks or slots."""
    right = rule.tables
    rule.load(tables)
    return functools.partial(rule.load, right)


def rewire(event: Event, lut: bytes) -> Undo:
    """Replace the lookup of an event, for single machines and for places; a table is frozen otherwise."""
    rules = RULES.get(event.table.name.removesuffix("Life").lower(), {})
    right, view = event.lut, event._lut_view
    object.__setattr__(event, "lut", lut)
    object.__setattr__(event, "_lut_view", np.frombuffer(bytes(lut), dtype=np.uint8))
    undo_rule = _load(rule, rule.rows_of(lut)) if (rule := rules.get(event.name)) is not None and rule.event is event else None

    def undo() -> None:
        object.__setattr__(event, "lut", right)
        object.__setattr__(event, "_lut_view", view)
        if undo_rule is not None:
            undo_rule()

    return undo


class _WatchedPlaces(bytes):
    """A lookup that records when certain places of it are read."""

    places: Mapping[int, Sequence[str]]
    reached: set[str]

    def __new__(cls, content: bytes, places: Mapping[int, Sequence[str]], reached: set[str]) -> _WatchedPlaces:
        made = super().__new__(cls, content)
        made.places, made.reached = places, reached
        return made

    def __getitem__(self, place: Any) -> Any:
        if place in self.places:
            self.reached.update(self.places[place])
        return super().__getitem__(place)


# --- effects of couplings -----------------------------------------------------------------------------------------------


def effect_mutants() -> Iterator[Mutant]:
    """A mutant for each effect of each coupling: the cause happens, and the effect does not."""
    for coupling in COUPLINGS:
        for effect in coupling.effects:
            yield Mutant(f"{coupling.name}: no {effect}", "effect", functools.partial(_drop_effect, coupling, effect))


_CAUSED_IN = {
    "block.*": (Steps, "cancel_orphans"),
    "block.allocate": (Steps, "hand_out"),
    "job.plan(store)": (Steps, "plan_stores"),
    "job.plan(load)": (Steps, "plan_load"),
    "job.plan(demote)": (Steps, "plan_below"),
    "job.plan(promote)": (Steps, "plan_below"),
    "job.submit": (Steps, "submit"),
    "request.preempt|finish|load_failed": (Steps, "give_up"),
    "ledger.reset": (Steps, "reset"),
}
"""The function with the effects of each cause whose row is marked `BY_HAND`; all others are looked up in the table."""


def _drop_effect(coupling: Coupling, effect: str) -> Undo:
    if coupling.runs is Runs.BY_HAND:
        return _drop_inside(*_CAUSED_IN[coupling.cause], effect)
    effects = ledger_steps._EFFECTS
    changed = {key: value for key, value in effects.items() if value is coupling.effects}
    if not isinstance(effects, dict) or not changed:
        raise MisuseError(f"coupling {coupling.name}: its effects are not looked up, and no function is listed for its cause")
    effects.update(dict.fromkeys(changed, tuple(each for each in coupling.effects if each != effect)))

    def undo() -> None:
        effects.update(changed)

    return undo


def _drop_inside(owner: type, name: str, effect: str) -> Undo:
    """Skip the steps of an effect while one function runs."""
    inside = [0]
    machine, _, events = effect.partition(".")
    wanted = events.split("|")
    whole = getattr(owner, name)

    @functools.wraps(whole)
    def running(self: Steps, *args: Any, **named: Any) -> Any:
        inside[0] += 1
        try:
            return whole(self, *args, **named)
        finally:
            inside[0] -= 1

    def end(self: Steps, job: Any, event: str, facts: int) -> None:
        if not (event in wanted and inside[0]):
            right["end"](self, job, event, facts)

    def flush(self: Steps, job: Any, cause: str) -> None:
        if not inside[0]:
            right["flush"](self, job, cause)

    def abandon(self: Steps, job: Any) -> None:
        if not inside[0]:
            right["abandon"](self, job)

    def fire_request(self: Steps, request: Any, event: str, job: int = 0) -> None:
        if not (event in wanted and inside[0]):
            right["fire_request"](self, request, event, job)

    def give_up(self: Steps, request: Any, event: str) -> None:
        if not (event in wanted and inside[0]):
            right["give_up"](self, request, event)

    def write(places: Any, change: CountedEvent, *args: Any) -> list[int]:
        if inside[0] and change.rule.name in wanted:
            return []
        return list(right["write"](places, change, *args))

    instead: dict[str, Callable[..., Any]] = {}
    if machine == "job":
        instead = {"end": end} if "cancel" in wanted else {}
        instead |= {"flush": flush} if "flush" in wanted else {}
        instead |= {"abandon": abandon} if "abandon" in wanted else {}
    elif machine == "request":
        instead = {"give_up": give_up} if name == "reset" else {"fire_request": fire_request}
    else:
        instead = {"write": write}
    taker = {"block": Blocks, "slot": Slots}.get(machine, Steps)
    right = {each: getattr(taker, each) for each in instead}
    return _patched([(owner, name, running), *((taker, each, function) for each, function in instead.items())])


def _patched(changes: Sequence[tuple[object, str, object]]) -> Undo:
    """Replace attributes; the returned function restores them."""
    former = [(owner, name, inspect.getattr_static(owner, name)) for owner, name, _ in changes]
    for owner, name, instead in changes:
        setattr(owner, name, instead)

    def undo() -> None:
        for owner, name, was in reversed(former):
            setattr(owner, name, was)

    return undo


# --- cleanup steps ------------------------------------------------------------------------------------------------------

_CLASSES: tuple[type, ...] = (
    Steps, Ledger, Journal, JobTable, Places, Blocks, Slots, Ring,
    SchedulerSteps, OffloadScheduler, StoreLine, HostTier, TierBelow, ProgressTable,
)  # fmt: skip
_ENDINGS = frozenset(
    {"finish", "preempt", "release", "release_many", "roll_back", "drop", "cancel", "abandon", "complete", "expire", "quiesce"}
    | {"evict", "unpin", "lose", "reset", "settle"}
    | {"abort", "renew", "sleep", "wake", "lose_worker", "regain_worker"}
)
"""The verbs with which a job, a hold, a request or content ends."""
_PARTS = frozenset(
    {"_state", "_steps", "_check", "_journal", "_blocks", "_slots", "_jobs", "_ledger", "_stores", "_progress", "_tier"}
)
"""Attributes that refer to another part: they count as state, like the contents of the part."""
_COLUMNS = frozenset({"epoch", "refs", "pins", "writes", "overdue", "job"})
"""The columns of blocks that have a second name."""
_NOTE = "_mutant_reached"
"""The global name under which a watched function finds the function to call."""
_ASKS = ("check", "_check", "_recheck", "_ask", "ask", "tracked")
"""Prefixes of functions that only check: leaving out a check changes no state."""
_EDGES = frozenset({"edge", "ours", "self._check"})
"""Modules and parts, by their names where they are used, all of whose functions only check."""
_TAKES_OUT = frozenset({"pop", "popleft"})
"""The methods that take an entry out of a table and return it."""


def step_mutants() -> Iterator[Mutant]:
    """A mutant for each cleanup step: the function runs without it. A compiled core has no source to leave it out of."""
    if not isinstance(inspect.unwrap(inspect.getattr_static(Steps, "end")), FunctionType):
        return
    for owner, name in _ending_functions():
        tree = _source_of(owner, name)
        seen: Counter[str] = Counter()
        for number, step in enumerate(_steps(tree)):
            text = " ".join(ast.unparse(step).split())
            if isinstance(step, ast.Call) and isinstance(step.func, ast.Attribute):
                text = f".{step.func.attr} in {text}"
            seen[text] += 1
            again = f" #{seen[text]}" if seen[text] > 1 else ""
            yield Mutant(
                f"{owner.__name__}.{name} without {text}{again}",
                "step",
                functools.partial(_drop_step, owner, name, number),
                Site(owner, name, number),
            )


def _ending_functions() -> list[tuple[type, str]]:
    """Every function of the classes that can be called from one of the endings, found by the names of calls."""
    functions = {
        (owner, name): _source_of(owner, name)
        for owner in _CLASSES
        for name, value in vars(owner).items()
        if isinstance(inspect.unwrap(value) if callable(value) else value, FunctionType)
    }
    calls = {key: {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} for key, tree in functions.items()}
    wanted, todo = set[str](), set(_ENDINGS)
    while todo:
        wanted |= todo
        todo = {name for key, named in calls.items() if key[1] in wanted for name in named} - wanted
    return [key for key in functions if key[1] in wanted and not key[1].startswith(("__", *_ASKS))]


@functools.cache
def _source_of(owner: type, name: str) -> ast.FunctionDef:
    function = inspect.unwrap(inspect.getattr_static(owner, name))
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise MisuseError(f"{owner.__name__}.{name}: it is not a plain function")
    return tree


@functools.cache
def _state_names() -> frozenset[str]:
    """Every attribute that is part of snapshots; no others influence decisions."""
    modules = (ledger_snapshot, scheduler_snapshot)
    trees = [ast.parse(inspect.getsource(module)) for module in modules]
    named = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return frozenset(named - _counters())


def _counters() -> set[str]:
    """Attributes that start as empty counters: they only count."""
    trees = [ast.parse(textwrap.dedent(inspect.getsource(owner))) for owner in (LedgerData, SchedulerState, StoreLine)]
    made = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    return {
        each.target.attr
        for each in made
        if isinstance(each.value, ast.Call)
        and isinstance(each.target, ast.Attribute)
        and ast.unparse(each.value.func) == "Counter"
    }


def _steps(tree: ast.FunctionDef) -> list[ast.stmt | ast.Call]:
    """The cleanup steps of a function: whole statements, and calls within others that take an entry out."""
    return [*_cleanups(tree), *_taken_out(tree)]


def _cleanups(tree: ast.FunctionDef) -> Iterator[ast.stmt]:
    """The statements of a function that change something outside it."""
    own = _made_here(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            if not isinstance(called, ast.Attribute) or called.attr.startswith(_ASKS) or ast.unparse(called.value) in _EDGES:
                continue
            if _outside(called.value, own):
                yield node
        elif isinstance(node, ast.Delete) and all(_outside(each, own) for each in node.targets):
            yield node
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if all(isinstance(each, ast.Attribute | ast.Subscript) and _outside(each, own) for each in targets):
                yield node


def _taken_out(tree: ast.FunctionDef) -> Iterator[ast.Call]:
    """The calls that take an entry out of a table outside the function, and whose value is used."""
    own = _made_here(tree)
    whole = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TAKES_OUT):
            continue
        if id(node) not in whole and _outside(node.func.value, own):
            yield node


def _made_here(tree: ast.FunctionDef) -> set[str]:
    """Names of containers that the function itself makes; filling them is not a step."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            made = isinstance(node.value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp | ast.Tuple)
            made |= isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name | ast.Subscript)
            for each in targets:
                names = each.elts if isinstance(each, ast.Tuple) else [each]
                found |= {name.id for name in names if made and isinstance(name, ast.Name)}
    return found


def _outside(node: ast.expr, own: set[str]) -> bool:
    """Whether an expression names state of an object: not a local container, and part of snapshots."""
    attributes = [each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)]
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    if not isinstance(node, ast.Name) or node.id in own:
        return False
    return all(_is_state(each) or each in _PARTS or _is_function(each) for each in attributes)


def _is_state(name: str) -> bool:
    """Whether it is part of snapshots. A column has a second name, with an underscore, for compiled code."""
    return name in _state_names() or name in {"_" + each for each in _COLUMNS}


def _is_function(name: str) -> bool:
    """Whether some class here has a function with this name."""
    return any(callable(getattr(owner, name, None)) for owner in _CLASSES)


def _drop_step(owner: type, name: str, number: int) -> Undo:
    """Compile the function again without one statement, or with a lookup where an entry was taken out."""
    tree = _copy_of(owner, name)
    victim = _steps(tree)[number]
    if isinstance(victim, ast.Call):
        _LookUp(victim).visit(tree)
    else:
        _put(tree, {id(victim): [ast.Pass()]})
    return _patched([(owner, name, _compiled(owner, name, ast.unparse(tree)))])


class _LookUp(ast.NodeTransformer):
    """Replaces ``d.pop(key)`` by ``d[key]``, and ``d.pop(key, other)`` by ``d.get(key, other)``."""

    def __init__(self, call: ast.Call) -> None:
        self.call = call

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Replace only the one call."""
        if node is not self.call or not isinstance(node.func, ast.Attribute):
            self.generic_visit(node)
            return node
        if len(node.args) == 2:
            return ast.Call(ast.Attribute(node.func.value, "get", ast.Load()), node.args, [])
        at = node.args[0] if node.args else ast.Constant(0 if node.func.attr == "popleft" else -1)
        return ast.Subscript(node.func.value, at, ast.Load())


def _note_steps(owner: type, name: str, names: Mapping[Site, str], reached: set[str]) -> Undo:
    """Compile the function again, with a note before each cleanup step."""
    tree = _copy_of(owner, name)
    notes: dict[int, list[ast.stmt]] = {}
    for number, step in enumerate(_steps(tree)):
        if (mutant := names.get(Site(owner, name, number))) is not None:
            statement = _statement_of(tree, step)
            notes.setdefault(id(statement), [statement])[:0] = ast.parse(f"{_NOTE}({mutant!r})").body
    _put(tree, notes)
    return _patched([(owner, name, _compiled(owner, name, ast.unparse(tree), reached.add))])


def _statement_of(tree: ast.FunctionDef, step: ast.stmt | ast.Call) -> ast.stmt:
    """The innermost statement that contains a step, or is the step."""
    around = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and any(each is step for each in ast.walk(node))]
    return around[-1]  # the walk is breadth first: deeper statements come later


def _copy_of(owner: type, name: str) -> ast.FunctionDef:
    tree = ast.parse(ast.unparse(_source_of(owner, name))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise MisuseError(f"{owner.__name__}.{name}: it is not a plain function")
    return tree


def _put(tree: ast.FunctionDef, instead: Mapping[int, list[ast.stmt]]) -> None:
    """Replace some statements, given by their identity."""
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                statements[:] = [new for old in statements for new in instead.get(id(old), [old])]


def _compiled(owner: object, name: str, source: str, reached: Callable[[str], None] | None = None) -> object:
    """A function with changed source, compiled in the module of the original."""
    module = inspect.unwrap(getattr(owner, name)).__globals__
    made: dict[str, Any] = {}
    if reached is not None:
        module[_NOTE] = reached  # it stays: only watched functions use it
    exec(compile("from __future__ import annotations\n" + source, f"<mutant of {name}>", "exec"), module, made)
    return made[name]


# --- the seeds ----------------------------------------------------------------------------------------------------------


@frozen
class Seed:
    """One released fix taken back: some text of one function is replaced."""

    name: str
    owner: object
    function: str
    instead: Mapping[str, str]


SEEDS: tuple[Seed, ...] = (
    Seed(
        "S1: an entry of the line is taken for fresh although its life is over",
        StoreLine,
        "_judge",
        {"if at is None:": "if False:"},
    ),
    Seed(
        "S2: what is on its way is stored again",
        StoreLine,
        "_judge",
        {"if at in _COPYING:": "if False:"},
    ),
    Seed(
        "S3: a chunk counts as whole, holes or not",
        JobTable,
        "add",
        {"names, groups, slot": "names, 3 * columns.slot_groups[there], slot"},
    ),
    Seed(
        "S4: a sliding window needs its last chunk only",
        scheduler_search,
        "unit_of",
        {"window = -(-blocks // size)": "window = 1", "tail = blocks - ": "tail = 1 or "},
    ),
    Seed(
        "S5: the last step flushes only where no request is tracked",
        SchedulerSteps,
        "is_last_step",
        {"and bool(state.ending or state.outlived)": "and not (state.ending or state.outlived)"},
    ),
)
"""Five upstream fixes that the project started from, each taken back."""


def seed_mutants() -> Iterator[Mutant]:
    """The code as it was before each of the fixes."""
    for seed in SEEDS:
        yield Mutant(seed.name, "seed", functools.partial(_take_back, seed))


def _take_back(seed: Seed) -> Undo:
    original = inspect.unwrap(getattr(seed.owner, seed.function))
    source = textwrap.dedent(inspect.getsource(original))
    for text, instead in seed.instead.items():
        if source.count(text) != 1:
            raise MisuseError(f"{seed.name}: {seed.function} no longer has the text {text!r} once (plant the bug another way)")
        source = source.replace(text, instead)
    return _patched([(seed.owner, seed.function, _compiled(seed.owner, seed.function, source))])
