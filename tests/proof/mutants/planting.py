"""Mutants: every guard, every effect of a coupling and every cleanup step switched off in turn; each must be found.

Rules of this file:

* Mutants are derived: guards from the tables, effects from `states.COUPLINGS`, cleanup steps from the source of the kernel, the
  ledger and the scheduler. Only the seeds are listed here. A new rule makes a new mutant.
* A guard or effect is taken out of the bytes that the kernel reads (`core._tables.RULES`), a step out of the running code. All
  are put back. A mutant is found if a world that holds without it does not hold with it. The search is breadth first, so the
  counterexample is a shortest one.
* A mutant that no world finds needs a test that fails under it (`table.read_caught`).

Theory. *Guards*: a row is taken although its guard does not hold. *Effects*: one machine takes its step, and the other does
not. *Steps*: a cleanup step is a statement (a call, a deletion, an assignment to state) of a function that can be reached from
a verb that ends a job, a hold, a request or content. State is what snapshots contain: columns, tables and lists, whatever local
name they have. An assignment to something else (a counter, a scratch column) is not a step, and neither is a call of a function
that changes no state: nothing later depends on it. If such a function takes an entry out of a table while it reads it
(``pop``), that is a step, too: without it the entry is read, and stays.

*Names* say what is lost, not how it is written, so that other code in the same place keeps them: a guard by its row
(``block.release from SEALED to SEALED without held``), an effect by its coupling (``life-ends: no job.cancel``), a step by its
function and what it does there: ``moves.write without state =`` (writes a column), ``without free -=`` (counts),
``without blocks.unlink()`` (calls), ``without del planned``, ``without taking out of pinned`` (a ``pop`` whose value is used).
Where a function does the same thing again, `` #2`` follows, in the order of the source.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from attrs import frozen

from blocklife.core import _columns, _couplings, _moves, _plans, _verbs, _visits
from blocklife.core import _steps as _core_steps
from blocklife.core._progress import TokenProgress
from blocklife.core._rules import PlaceMove
from blocklife.core._tables import CAUSES, EFFECTS, EFFECTS_A_ROW, RULES, RULES_OF
from blocklife.errors import MisuseError
from blocklife.ledger import Ledger
from blocklife.ledger import _snapshot as ledger_snapshot
from blocklife.ledger._journal import Journal
from blocklife.ledger._planning import Planning
from blocklife.ledger._rows import RowVerbs
from blocklife.offload import HostTier, OffloadScheduler
from blocklife.offload import _search as scheduler_search
from blocklife.offload import _snapshot as scheduler_snapshot
from blocklife.offload._admissions import Admissions
from blocklife.offload._below import TierBelow
from blocklife.offload._endings import Endings
from blocklife.offload._offers import Offers
from blocklife.offload._state import SchedulerState
from blocklife.offload._stays import Stays, Waits
from blocklife.offload._steps import SchedulerSteps
from blocklife.offload._stores import StoreLine
from blocklife.states import COUPLINGS, MACHINES, BlockLife, Coupling, JobLife

Undo: TypeAlias = Callable[[], None]


@frozen
class Site:
    """A place in the code: a cleanup step of a function, or a row of a table, by number."""

    owner: type | ModuleType | str
    """A class or module, or the name of a machine."""
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
    try:
        undos.append(_note_rows(names, reached))
        for owner, name in {(site.owner, site.name) for site in names}:
            if not isinstance(owner, str):
                undos.append(_note_steps(owner, name, names, reached))
        yield reached
    finally:
        for undo in reversed(undos):
            undo()


@functools.cache
def all_mutants() -> tuple[Mutant, ...]:
    """All mutants, in a fixed order; no two have the same name. They are read off the sources once."""
    found = [*guard_mutants(), *effect_mutants(), *step_mutants(), *seed_mutants()]
    twice = [name for name, count in Counter(each.name for each in found).items() if count > 1]
    if twice:
        raise MisuseError(f"mutant {twice[0]}: two have this name")
    return tuple(found)


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


@frozen(eq=False)
class Patch:
    """Other bytes in a part of a table of the kernel."""

    table: bytearray
    start: int
    instead: bytes


def _written(patches: Sequence[Patch]) -> Undo:
    """Write patches in place, for every kernel of the process; the returned function takes them out again."""
    right = [bytes(each.table[each.start : each.start + len(each.instead)]) for each in patches]

    def write(contents: Iterable[bytes]) -> None:
        for each, content in zip(patches, contents, strict=True):
            each.table[each.start : each.start + len(content)] = content

    write([each.instead for each in patches])
    return functools.partial(write, right)


def guard_mutants() -> Iterator[Mutant]:
    """A mutant for each row with a guard: the row is taken although the guard does not hold."""
    for machine, table in MACHINES.items():
        for row in table.rows:
            if row.guard is not None:
                name = f"{machine}.{row.event} from {row.source.name} to {row.target.name} without {row.guard.name}"
                site = Site(machine, row.event, row.index)
                yield Mutant(name, "guard", functools.partial(_forget_guard, machine, row.index), site)


def _forget_guard(machine: str, index: int) -> Undo:
    return _written(_without_guard(machine, index))


def _without_guard(machine: str, index: int) -> list[Patch]:
    """The look-ups of an event as if one of its rows had no guard."""
    table = MACHINES[machine]
    row = table.row(index)
    event = table.events[row.event]
    if row.guard is None:
        raise MisuseError(f"row {index} of {machine} has no guard")
    width, bit, state = len(event.guards), event.bit(row.guard), table.index[row.source]
    right = event.lut[state << width : state + 1 << width]
    wrong = bytes([right[facts | bit] for facts in range(1 << width)])
    if machine in RULES_OF:
        rule = RULES_OF[machine][row.event]
        lut = event.lut[: state << width] + wrong + event.lut[state + 1 << width :]
        return [Patch(mine, 0, instead) for mine, instead in zip(rule.tables, rule.rows_of(lut), strict=True)]
    rows = {"job": RULES.job_rows, "request": RULES.request_rows}[machine]
    return [Patch(rows, list(table.events).index(row.event) << 6 | state << 2, wrong)]


def _note_rows(names: Mapping[Site, str], reached: set[str]) -> Undo:
    """Watch where missing guards would make a difference."""
    places: dict[int, dict[int, list[str]]] = {}
    for site, mutant in names.items():
        for patch in _without_guard(site.owner, site.number) if isinstance(site.owner, str) else ():
            for place, row in enumerate(patch.instead, patch.start):
                if row != patch.table[place]:
                    places.setdefault(id(patch.table), {}).setdefault(place, []).append(mutant)
    listed = [each for value in vars(RULES).values() for each in (value if isinstance(value, list) else [value])]
    holders = [(each, name) for each in listed if isinstance(each, PlaceMove) for name in ("table", "ours")]
    changes: list[tuple[object, str, object]] = []
    for owner, name in [*holders, (RULES, "job_rows"), (RULES, "request_rows")]:
        table = getattr(owner, name)
        if id(table) in places:
            changes.append((owner, name, _WatchedRows(table, places[id(table)], reached)))
    return _patched(changes)


class _WatchedRows(bytearray):
    """A look-up that records when certain places of it are read."""

    def __init__(self, content: bytes, places: Mapping[int, Sequence[str]], reached: set[str]) -> None:
        super().__init__(content)
        self.places, self.reached = places, reached

    def __getitem__(self, place: Any) -> Any:
        if place in self.places:
            self.reached.update(self.places[place])
        return super().__getitem__(place)


# --- effects of couplings -----------------------------------------------------------------------------------------------

_KINDS = ("store", "load", "demote", "promote")


def effect_mutants() -> Iterator[Mutant]:
    """A mutant for each effect of each coupling: the cause happens, and the effect does not."""
    for coupling in COUPLINGS:
        for effect in coupling.effects:
            yield Mutant(coupling.without(effect), "effect", functools.partial(_drop_effect, coupling, effect))


def _drop_effect(coupling: Coupling, effect: str) -> Undo:
    left = bytes(EFFECTS.index(each) + 1 for each in coupling.effects if each != effect).ljust(EFFECTS_A_ROW, b"\0")
    return _written([Patch(getattr(RULES, table), at, left) for table, at in places_of(coupling)])


def places_of(row: Coupling) -> list[tuple[str, int]]:
    """The tables of `RULES` that have the effects of a row, by name, and where they begin there."""
    found = re.fullmatch(r"job\.(\w+)(?:\((\w+)\))?", row.cause)
    if found:
        cause, kinds = CAUSES.index(found[1]), [_KINDS.index(found[2])] if found[2] else range(len(_KINDS))
        states = [JobLife.table.index[into] for into in row.into]
        return [("effects", ((cause * 4 + kind) * 16 + state) * EFFECTS_A_ROW) for kind in kinds for state in states]
    if row.cause == "block.allocate":
        return [("handed_out", BlockLife.table.index[into] * EFFECTS_A_ROW) for into in row.into]
    return [({"block.*": "life_ends", "ledger.reset": "resets"}.get(row.cause, "gives_up"), 0)]


# --- functions ----------------------------------------------------------------------------------------------------------


def holders(function: object) -> list[tuple[ModuleType, str]]:
    """Every module of the package that has a function, and the name that it has there."""
    modules = [module for name, module in sys.modules.items() if name.startswith("blocklife.")]
    return [(module, name) for module in modules for name, value in list(vars(module).items()) if value is function]


def _patched(changes: Sequence[tuple[object, str, object]]) -> Undo:
    """Replace attributes; that of a module in every module that has imported it. The returned function restores them."""
    former = [(owner, name, inspect.getattr_static(owner, name), instead) for owner, name, instead in changes]
    for owner, name, was, instead in former:
        for holder, there in holders(was) if isinstance(owner, ModuleType) else [(owner, name)]:
            setattr(holder, there, instead)

    def undo() -> None:
        for owner, name, was, instead in reversed(former):
            for holder, there in holders(instead) if isinstance(owner, ModuleType) else [(owner, name)]:
                setattr(holder, there, was)

    return undo


# --- cleanup steps ------------------------------------------------------------------------------------------------------

_Owner: TypeAlias = "type | ModuleType"
_KERNEL: tuple[_Owner, ...] = (
    _moves, _couplings, _verbs, _plans, _core_steps, _visits,
    *(_columns.Core, _columns.Blocks, _columns.Slots, _columns.Contents, _columns.TransferJobs, _columns.Requests),
)  # fmt: skip
_OWNERS: tuple[_Owner, ...] = (
    *_KERNEL, Ledger, RowVerbs, Journal, Planning,
    *(SchedulerSteps, Offers, Admissions, Endings, SchedulerState, OffloadScheduler),
    *(StoreLine, HostTier, TierBelow, TokenProgress, Stays, Waits),
)  # fmt: skip
_ENDINGS = frozenset(
    {"finish", "preempt", "release", "roll_back", "drop", "cancel", "abandon", "complete", "expire", "quiesce"}
    | {"evict", "unpin", "lose", "reset", "settle"}
    | {"abort", "sleep", "wake", "lose_worker", "regain_worker"}
)
"""The verbs with which a job, a hold, a request or content ends."""
_FORGETS = (_couplings, "release_job")
"""And where a job that is over is forgotten: only a draft that becomes a job does that, and a draft ends nothing."""
_PARTS = frozenset(
    {"_state", "_check", "_journal", "_core", "_steps", "_offers", "_admissions", "_endings", "offers", "admissions", "endings"}
    | {"_rows", "_blocks", "_slots", "_jobs", "_ledger", "_stores", "_progress", "_tier", "_stays"}
)
"""Attributes that refer to another part: they count as state, like the contents of the part."""
_TOLD = frozenset({"note", "note_one"})
"""What the journal is told with: no state, but everything that happens is to be told."""
_NOTE = "_mutant_reached"
"""The global name under which a watched function finds the function to call."""
_ASKS = ("check", "_check", "_recheck", "_ask", "ask", "tracked")
"""Prefixes of functions that only check: leaving out a check changes no state."""
_EDGES = frozenset({"edge", "ours", "self._check"})
"""Modules and parts, by their names where they are used, all of whose functions only check."""
_TAKES_OUT = frozenset({"pop", "popleft"})
"""The methods that take an entry out of a table and return it."""
_SELF = frozenset({"self", "core"})
"""Names that say only: of this part."""
_SIGNS: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.BitOr: "|", ast.BitAnd: "&"}


def step_mutants() -> Iterator[Mutant]:
    """A mutant for each cleanup step: the function runs without it. A compiled core has no source to leave it out of."""
    if not isinstance(_moves.write, FunctionType):
        return
    for owner, name in _ending_functions():
        seen: Counter[str] = Counter()
        for number, step in enumerate(_steps(owner, _source_of(owner, name))):
            what = _what(step)
            seen[what] += 1
            again = f" #{seen[what]}" if seen[what] > 1 else ""
            where = owner.__name__.rpartition(".")[2].removeprefix("_")
            plant, site = functools.partial(_drop_step, owner, name, number), Site(owner, name, number)
            yield Mutant(f"{where}.{name} without {what}{again}", "step", plant, site)


def _what(step: ast.stmt | ast.Call) -> str:
    """What a cleanup step writes, takes out or calls: no values, no arguments, and of a long path its end."""
    match step:
        case ast.Call(ast.Attribute(value=table)):
            return f"taking out of {_path(table)[-1]}"
        case ast.Expr(ast.Call(called)):
            return ".".join([each for each in _path(called) if each not in _SELF][-2:]) + "()"
        case ast.Delete(targets):
            return "del " + ", ".join(_path(each)[-1] for each in targets)
        case ast.AugAssign(target, sign) if type(sign) in _SIGNS:
            return f"{_path(target)[-1]} {_SIGNS[type(sign)]}="
        case ast.Assign(targets):
            written = [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
            return ", ".join(_path(each)[-1] for each in written) + " ="
    raise MisuseError(f"{ast.unparse(step)}: a step of this kind has no name (give it one in _what)")


def _path(node: ast.expr) -> list[str]:
    """The names on the way to what an expression reads, without what is between brackets."""
    names = list[str]()
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
        if not isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            return names
        node = node.func if isinstance(node, ast.Call) else node.value
    return [node.id, *names]


@functools.cache
def _functions() -> dict[tuple[_Owner, str], ast.FunctionDef]:
    """Every function of the owners, with its source."""
    return {
        (owner, name): _source_of(owner, name)
        for owner in _OWNERS
        for name, value in vars(owner).items()
        if isinstance(inspect.unwrap(value) if callable(value) else value, FunctionType)
        and (not isinstance(owner, ModuleType) or value.__module__ == owner.__name__)
    }


def _called_in(owner: _Owner, tree: ast.FunctionDef) -> set[tuple[_Owner, str]]:
    """The functions that a function may call: those of modules by what their name stands for, methods by their name alone."""
    known, scope = _functions(), vars(owner if isinstance(owner, ModuleType) else sys.modules[owner.__module__])
    nodes, found = list(ast.walk(tree)), set[tuple[_Owner, str]]()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(called := scope.get(node.id), FunctionType):
            found.add((sys.modules[called.__module__], called.__name__))
        elif isinstance(node, ast.Attribute):
            part = scope.get(node.value.id) if isinstance(node.value, ast.Name) else None
            found.add((part, node.attr) if isinstance(part, ModuleType) else (object, node.attr))
    methods = {name for part, name in found if part is object}
    return {key for key in known if key in found or (isinstance(key[0], type) and key[1] in methods)}


@functools.cache
def _calls() -> dict[tuple[_Owner, str], set[tuple[_Owner, str]]]:
    return {key: _called_in(key[0], tree) for key, tree in _functions().items()}


def _ending_functions() -> list[tuple[_Owner, str]]:
    """Every function that can be called from one of the endings."""
    todo = {key for key in _functions() if key[1] in _ENDINGS and isinstance(key[0], type)} | {_FORGETS}
    wanted = set[tuple[_Owner, str]]()
    while todo:
        wanted |= todo
        todo = {called for key in todo for called in _calls()[key]} - wanted
    return [key for key in _functions() if key in wanted and not key[1].startswith(("__", *_ASKS))]


@functools.cache
def _source_of(owner: _Owner, name: str) -> ast.FunctionDef:
    function = inspect.unwrap(inspect.getattr_static(owner, name))
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise MisuseError(f"{owner.__name__}.{name}: it is not a plain function")
    return tree


@functools.cache
def _state_names(*modules: ModuleType) -> frozenset[str]:
    """Every attribute that is part of these snapshots; no others influence decisions."""
    trees = [ast.parse(inspect.getsource(module)) for module in modules]
    named = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return frozenset(named - _counters())


def _counters() -> set[str]:
    """Attributes that start as empty counters: they only count."""
    trees = [ast.parse(textwrap.dedent(inspect.getsource(owner))) for owner in (SchedulerState, StoreLine)]
    made = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    return {
        each.target.attr
        for each in made
        if isinstance(each.value, ast.Call)
        and isinstance(each.target, ast.Attribute)
        and ast.unparse(each.value.func) == "Counter"
    }


@functools.cache
def _idle() -> frozenset[str]:
    """The functions of the kernel that change no state and tell nothing: they ask, or fill scratch columns."""
    kernel = {key: tree for key, tree in _functions().items() if key[0] in _KERNEL}
    names = {name for _, name in kernel}
    busy = {key for key, tree in kernel.items() if key[1] in _TOLD or any(_changes(key[0], tree, names))}
    more = busy
    while more:
        more = {key for key in kernel if _calls()[key] & busy} - busy
        busy |= more
    return frozenset(names - {name for _, name in busy})


def _steps(owner: _Owner, tree: ast.FunctionDef) -> list[ast.stmt | ast.Call]:
    """The cleanup steps of a function as they stand there: statements, and calls within others that take an entry out."""
    found: list[ast.stmt | ast.Call] = [*_changes(owner, tree, _idle() if owner in _KERNEL else ()), *_taken_out(owner, tree)]
    return sorted(found, key=lambda step: (step.lineno, step.col_offset))


def _changes(owner: _Owner, tree: ast.FunctionDef, idle: Collection[str]) -> Iterator[ast.stmt]:
    """The statements of a function that change something outside it; a call of an *idle* function does not."""
    names = _Named(owner, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Name):
                if called.id not in idle and isinstance(owner, ModuleType):
                    yield node
            elif isinstance(called, ast.Attribute) and called.attr not in idle and not called.attr.startswith(_ASKS):
                yield from [node] if ast.unparse(called.value) not in _EDGES and names.are_state(called.value) else []
        elif isinstance(node, ast.Delete) and all(map(names.are_state, node.targets)):
            yield node
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            targets = [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
            if any(isinstance(each, ast.Attribute | ast.Subscript) and names.are_state(each) for each in targets):
                yield node


def _taken_out(owner: _Owner, tree: ast.FunctionDef) -> Iterator[ast.Call]:
    """The calls that take an entry out of a table outside the function, and whose value is used."""
    names = _Named(owner, tree)
    whole = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TAKES_OUT):
            continue
        if id(node) not in whole and names.are_state(node.func.value):
            yield node


class _Named:
    """What the names in a function stand for."""

    def __init__(self, owner: _Owner, tree: ast.FunctionDef) -> None:
        kernel = owner in _KERNEL
        self.state = _state_names(ledger_snapshot, *(() if kernel else (scheduler_snapshot,)))
        self.made = set[str]()
        """Containers that the function itself makes; filling them is not a step."""
        self.aliases: dict[str, ast.expr] = {}
        """Parts of a kernel that have a shorter name here."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._assigned(target, node.value, kernel)

    def _assigned(self, target: ast.expr, value: ast.expr, kernel: bool) -> None:
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple):
            values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
            pairs = list(zip(target.elts, values, strict=True))
        for each, is_now in pairs:
            if not isinstance(each, ast.Name):
                continue
            made = isinstance(is_now, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
            made |= isinstance(is_now, ast.Call) and isinstance(is_now.func, ast.Name | ast.Subscript)
            if made or (isinstance(value, ast.Tuple) and not kernel):
                self.made.add(each.id)
            elif kernel and isinstance(is_now, ast.Attribute | ast.Subscript):
                self.aliases[each.id] = is_now

    def are_state(self, node: ast.expr) -> bool:
        """Whether an expression names state of an object: not a local container, and part of snapshots."""
        attributes, aliases = list[str](), dict(self.aliases)
        while True:
            attributes += [each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)]
            while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
                node = node.func if isinstance(node, ast.Call) else node.value
            if not isinstance(node, ast.Name) or node.id in self.made:
                return False
            if node.id not in aliases:
                break
            node = aliases.pop(node.id)
        return all(each in self.state or each in _PARTS or _is_function(each) for each in attributes)


def _is_function(name: str) -> bool:
    """Whether some class here has a function with this name."""
    return any(callable(getattr(owner, name, None)) for owner in _OWNERS if isinstance(owner, type))


def _drop_step(owner: _Owner, name: str, number: int) -> Undo:
    """Compile the function again without one statement, or with a lookup where an entry was taken out."""
    tree = _copy_of(owner, name)
    victim = _steps(owner, tree)[number]
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


def _note_steps(owner: _Owner, name: str, names: Mapping[Site, str], reached: set[str]) -> Undo:
    """Compile the function again, with a note before each cleanup step."""
    tree = _copy_of(owner, name)
    notes: dict[int, list[ast.stmt]] = {}
    for number, step in enumerate(_steps(owner, tree)):
        if (mutant := names.get(Site(owner, name, number))) is not None:
            statement = _statement_of(tree, step)
            notes.setdefault(id(statement), [statement])[:0] = ast.parse(f"{_NOTE}({mutant!r})").body
    _put(tree, notes)
    return _patched([(owner, name, _compiled(owner, name, ast.unparse(tree), reached.add))])


def _statement_of(tree: ast.FunctionDef, step: ast.stmt | ast.Call) -> ast.stmt:
    """The innermost statement that contains a step, or is the step."""
    around = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and any(each is step for each in ast.walk(node))]
    return around[-1]  # the walk is breadth first: deeper statements come later


def _copy_of(owner: _Owner, name: str) -> ast.FunctionDef:
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
    owner: _Owner
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
        StoreLine,
        "_columns",
        {"cuts.append(len(lives))": "cuts.append(size * len(keys))"},
    ),
    Seed(
        "S4: a sliding window needs its last chunk only",
        scheduler_search,
        "unit_of",
        {"window = -(-blocks // size)": "window = 1", "tail = blocks - ": "tail = 1 or "},
    ),
    Seed(
        "S5: the last step flushes only where no request is tracked",
        Endings,
        "is_last_step",
        {"and bool(ending or state.outlived)": "and not (ending or state.outlived)"},
    ),
)
"""Five upstream fixes that the project started from, each taken back."""


def seed_mutants() -> Iterator[Mutant]:
    """The code as it was before each of the fixes."""
    for seed in SEEDS:
        yield Mutant(seed.name, "seed", functools.partial(_take_back, seed))


def _take_back(seed: Seed) -> Undo:
    wrong = rewritten(seed.owner, seed.function, seed.instead)
    return _patched([(seed.owner, seed.function, wrong)])


def rewritten(owner: _Owner, name: str, instead: Mapping[str, str]) -> Any:
    """A function of a class or module with other text in place of some of its text, each of which must be there once."""
    static = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(getattr(static, "__func__", static))))
    for text, other in instead.items():
        if source.count(text) != 1:
            raise MisuseError(f"{name} no longer has the text {text!r} once (plant this bug another way)")
        source = source.replace(text, other)
    return _compiled(owner, name, source)
