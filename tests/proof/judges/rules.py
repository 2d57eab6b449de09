"""The program of a small world, written from the tables and the couplings.

Rules of this file:

* Machines are made from the rows of their tables, effects from the rows of `COUPLINGS`. A fact, effect or coupling without a
  translation here is an error, never left out.
* Counts change first, and guards are evaluated after that, as the tables require.
"""

from __future__ import annotations

import ast
import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import indent

from blocklife.errors import DefinitionError, MisuseError
from blocklife.ledger import Contract
from blocklife.lifecycle import Event, Guard
from blocklife.states import COUPLINGS, MACHINES, Coupling, Job, Slot, Trait, coupled, ends_life, states_with
from tests.proof.judges.model import ModelAction, Predicate, Procedure, Program
from tests.proof.judges.verbs import HANDWRITTEN, action_of, variables
from tests.proof.ledger_world.settings import FAILED, HELD_BACK, IDLE, LANDED, LOAD, NONE, RUNS, STORE, LedgerSettings

_PLACE = {
    "refs": "refs[b] > 0",
    "pins": "pins[b] > 0",
    "writes": "writes[b] > 0",
    "overdue": "overdue[b] > 0",
    "fence": "FENCE == 1",
    "own": "own == 1",
    "ok": "ok == 1",
}
FACTS: Mapping[str, Mapping[str, str]] = {
    "block": _PLACE,
    "slot": {"pins": "spins[s] > 0", "ok": "ok == 1"},
    "job": {"outstanding": "more == 1", "ok": "ok == 1"},
    "request": {},
}
"""The expression of each parameter of an event; counts are only compared with zero."""

_COUNTED = ("refs", "pins", "writes", "overdue", "outstanding")
"""Parameters that are counts."""

INDEX = {"block": "b", "slot": "s", "job": "j", "request": "r"}
"""The variable for a place of each machine."""

_FLAGS = ("own", "more", "ok")
"""Facts that the caller of an event passes in."""

_STARTS_AT = {"job": 1}
"""The number of the first state of a machine, where it is not 0: 0 means that there is no such job."""


def constant(state: enum.Enum) -> str:
    """The name of a state in the program."""
    return f"{type(state).__name__.upper()}_{state.name}"


# --- guards ------------------------------------------------------------------------------------------------------------


def condition(guard: Guard[...], machine: str) -> str:
    """A guard as an expression, made by evaluating the guard for every combination of facts."""
    facts = FACTS[machine]
    if missing := [name for name in guard.parameters if name not in facts]:
        raise DefinitionError(f"guard {guard.name}: {machine} has no translation of {', '.join(missing)} (add it to FACTS)")
    holds = set()
    for values in itertools.product((0, 1), repeat=len(guard.parameters)):
        given = dict(zip(guard.parameters, values, strict=True))
        answer = guard(**given)
        if any(guard(**given | {name: 2}) != answer for name, value in given.items() if value and name in _COUNTED):
            raise DefinitionError(f"guard {guard.name}: it distinguishes 1 from 2, which the program cannot")
        if answer:
            holds.add(values)
    terms = [_term(term, guard.parameters, facts) for term in _cover(holds, len(guard.parameters))]
    return " or ".join(terms) if terms else "0 == 1"


def _cover(holds: set[tuple[int, ...]], width: int) -> list[tuple[int | None, ...]]:
    """The fewest literals, found greedily: terms in which None stands for a fact that does not matter."""
    terms = sorted(itertools.product((None, 0, 1), repeat=width), key=lambda term: sum(each is not None for each in term))

    def meant(term: Sequence[int | None]) -> set[tuple[int, ...]]:
        return set(itertools.product(*((0, 1) if each is None else (each,) for each in term)))

    chosen, left = [], set(holds)
    for term in terms:
        if meant(term) <= holds and meant(term) & left:
            chosen.append(term)
            left -= meant(term)
    return chosen


def _term(term: Sequence[int | None], names: Sequence[str], facts: Mapping[str, str]) -> str:
    parts = []
    for value, name in zip(term, names, strict=True):
        if value is not None:
            text = facts[name]
            parts.append(text if value else text.replace("> 0", "== 0").replace("== 1", "== 0"))
    return " and ".join(parts) or "0 == 0"


# --- machines ----------------------------------------------------------------------------------------------------------


def _flags(event: Event) -> tuple[str, ...]:
    """The facts that the caller passes in."""
    asked = {name for each in event.guards for name in each.parameters}
    given = {"more" if name == "outstanding" else name for name in asked}
    return tuple(name for name in _FLAGS if name in given)


def fire(machine: str, event: Event) -> str:
    """The procedure for one event of a machine: its rows in their order, and a refusal if none fits."""
    index = INDEX[machine]
    lines = [f"def {machine}_{event.name}({', '.join((index, *_flags(event)))}):"]
    for number, row in enumerate(event.rows):
        test = f"{machine}[{index}] == {constant(row.source)}"
        if row.guard is not None:
            test += f" and ({condition(row.guard, machine)})"
        lines.append(f"    {'elif' if number else 'if'} {test}:")
        lines.append(f'        "{row}"')
        lines.append(f"        {machine}[{index}] = {constant(row.target)}")
        if machine == "block" and ends_life(row):
            lines.append("        end_life(b)")
        if machine == "slot" and row.source in _NAMED and row.target not in _NAMED:
            lines.append("        skey[s] = 0")
    return "\n".join([*lines, "    else:", "        refused = 1"])


_NAMED = states_with(Trait.KEYED, Slot)


def can(machine: str, event: Event) -> str:
    """The predicate that tells whether a machine has a row for an event now; only for events without flags."""
    index = INDEX[machine]
    tests: dict[str, None] = {}
    for row in event.rows:
        test = f"{machine}[{index}] == {constant(row.source)}"
        tests[test if row.guard is None else f"({test} and ({condition(row.guard, machine)}))"] = None
    return f"def can_{machine}_{event.name}({index}):\n    return {' or '.join(tests)}"


# --- couplings ---------------------------------------------------------------------------------------------------------

_ON_JOB: Mapping[str, str] = {
    "block.land": "land_{kind}(j, {ok})",
    "block.cancel": "cancel_block(j)",
    "block.expire": "expire_block(j)",
    "slot.land": "land_slot(j, {ok})",
    "slot.cancel": "slot_cancel(jslot[j])",
    "slot.expire": "slot_expire(jslot[j])",
    "slot.unpin": "spins[jslot[j]] = spins[jslot[j]] - 1\nslot_unpin(jslot[j])",
    "slot.drop": "slot_drop(jslot[j])",
    "job.quiesce": "prove_older(j)",
    "request.loaded": "loaded(j)",
    "request.load_failed": "load_failed(j)",
}
"""The call for each effect of a step of a job."""

_ELSE: Mapping[tuple[str, str], str] = {
    ("life-ends", "job.cancel"): "cancel_orphans()",
    ("hand-out-flushes", "job.flush"): "flush_all(b)",
    ("store-planned", "block.plan_store"): "pins[b] = pins[b] + 1\nblock_plan_store(b)",
    ("store-planned", "slot.reserve"): "slot_reserve(s)\nskey[s] = key",
    ("load-planned", "block.plan_load"): "pins[b] = pins[b] + 1\nwrites[b] = writes[b] + 1\nblock_plan_load(b)",
    ("load-planned", "slot.pin"): "spins[s] = spins[s] + 1\nslot_pin(s)",
    ("load-planned", "request.plan_load"): "request_plan_load(r)",
    ("submitted", "block.submit"): "submit_block(j)",
    ("request-gives-up", "job.cancel|abandon"): "give_up_load(r)",
    ("request-gives-up", "block.release"): "release_all(r)",
    ("reset-now", "request.preempt"): "reset_requests()",
    ("reset-now", "job.cancel"): "reset_planned()",
    ("reset-now", "job.abandon"): "reset_submitted()",
    ("reset-now", "block.drop"): "reset_blocks()",
    ("reset-now", "slot.drop"): "reset_slots()",
}
"""The call for each effect of any other coupling."""


NOT_MODELLED = ("(demote)", "(promote)")
"""Kinds of jobs that the model leaves out: it has no store below the slots (`LedgerSettings.below` has one)."""


def effects(name: str) -> str:
    """The effects of a coupling whose cause is not a step of a job, in its order."""
    return "\n".join(_translated(_ELSE, (name, effect)) for effect in _coupling(name).effects)


def _coupling(name: str) -> Coupling:
    found = [each for each in COUPLINGS if each.name == name]
    if len(found) != 1:
        raise DefinitionError(f"coupling {name}: found {len(found)} times")
    return found[0]


def _translated(table: Mapping[tuple[str, str], str], key: tuple[str, str]) -> str:
    if key not in table:
        raise DefinitionError(f"coupling {key[0]}: {key[1]} has no translation (add it to rules.py)")
    return table[key]


def _job_step(event: str, kind: str) -> str:
    """A step of a job that has couplings: the job's event, and then for each state the effects, in the order of the table."""
    flags = _flags(MACHINES["job"].events[event])
    call = ", ".join(("j", *flags))
    lines = [f"def {event}_{kind}({call}):", f"    job_{event}({call})"]
    cause = "finish" if event == "quiesce" else event
    word = "if"
    for into in dict.fromkeys(row.target for row in MACHINES["job"].events[event].rows):
        found = coupled(f"job.{cause}({kind})", into)
        if not found:
            continue
        (name,) = (each.name for each in COUPLINGS if each.cause == f"job.{cause}({kind})" and into in each.into)
        lines += [f"    {word} job[j] == {constant(into)}:", f'        "coupling {name}"']
        for effect in found:
            if effect not in _ON_JOB:
                raise DefinitionError(f"coupling {name}: {effect} has no translation (add it to rules.py)")
            text = _ON_JOB[effect].format(kind=kind, ok=int(into is Job.DONE))
            lines.append(indent(text, " " * 8))
        lines.append("        over(j)" if into in MACHINES["job"].finals else "        expired[j] = 1")
        word = "elif"
    return "\n".join(lines)


def check_translated() -> None:
    """Refuse couplings without a translation, and translations of couplings that no longer exist."""
    known = {name for name, _ in _ELSE}
    for each in COUPLINGS:
        if each.cause.endswith(NOT_MODELLED):
            continue
        if not each.cause.startswith(("job.finish(", "job.cancel(", "job.expire(")) and each.name not in known:
            raise DefinitionError(f"coupling {each.name}: it has no translation (add it to rules.py)")
    wanted = {(each.name, effect) for each in COUPLINGS for effect in each.effects}
    if gone := sorted(set(_ELSE) - wanted):
        raise DefinitionError(f"coupling {gone[0][0]}: it has no effect {gone[0][1]} any more (take it out of rules.py)")


# --- the whole ---------------------------------------------------------------------------------------------------------


def program(settings: LedgerSettings) -> Program:
    """The program of one world. Raises MisuseError for a world with what the model lacks."""
    if settings.below or settings.bulk:
        raise MisuseError("the model for SPIN has no store below the slots, and no reports in bulk (leave out below and bulk)")
    check_translated()
    text = "\n\n".join([*_machines(), *_steps(), *(_filled(part, settings) for part in HANDWRITTEN)])
    predicates: dict[str, Predicate] = {}
    procedures: dict[str, Procedure] = {}
    actions: list[ModelAction] = []
    invariants: list[tuple[str, str]] = []
    calls: dict[str, list[str]] = {}
    written: list[ast.FunctionDef] = []

    def add(name: str, node: ast.FunctionDef, body: list[ast.stmt]) -> None:
        written.append(ast.FunctionDef(name, node.args, body, [], lineno=0))
        calls[name] = [
            each.func.id for each in ast.walk(written[-1]) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
        ]
        if isinstance(body[0], ast.Return) and body[0].value is not None:
            predicates[name] = Predicate(name, _params(node), body[0].value)
        else:
            procedures[name] = Procedure(name, _params(node), tuple(body))

    for node in ast.parse(text).body:
        match node:
            case ast.FunctionDef(name, body=[ast.Expr(ast.Constant(str(doc))), ast.Assert(test), *body]):
                if (action := action_of(name, _params(node), doc, settings)) is not None:
                    actions.append(action)
                add(f"may_{name}", node, [ast.Return(test)])
                add(f"do_{name}", node, body)
            case ast.FunctionDef(name, body=[ast.Expr(ast.Constant(str(doc))), ast.Return() as answer]):
                invariants.append((name, doc))
                add(name, node, [answer])
            case ast.FunctionDef(name, body=body):
                add(name, node, body)
            case _:
                raise DefinitionError(f"line {node.lineno}: a program consists of functions only")
    order = _in_order(calls)
    return Program(
        settings,
        constants(settings),
        variables(settings),
        tuple(predicates[name] for name in order if name in predicates),
        tuple(procedures[name] for name in order if name in procedures),
        tuple(actions),
        tuple(invariants),
        "\n\n".join(map(ast.unparse, written)),
    )


def _params(node: ast.FunctionDef) -> tuple[str, ...]:
    return tuple(each.arg for each in node.args.args)


def constants(settings: LedgerSettings) -> dict[str, int]:
    """Every named number: sizes, states, and the stages of a job on a worker."""
    found = {
        "BLOCKS": settings.blocks,
        "SLOTS": settings.slots,
        "JOBS": settings.jobs,
        "REQUESTS": settings.requests,
        "WORKERS": settings.workers,
        "PLANS": settings.plans,
        "FENCE": int(settings.contract is Contract.FENCE),
        "NONE": NONE,
        "STORE": STORE,
        "LOAD": LOAD,
        "IDLE": IDLE,
        "HELD_BACK": HELD_BACK,
        "RUNS": RUNS,
        "LANDED": LANDED,
        "FAILED": FAILED,
    }
    for machine, lifecycle in MACHINES.items():
        start = _STARTS_AT.get(machine, 0)
        found |= {constant(state): start + number for state, number in lifecycle.index.items()}
    return found


def _machines() -> Iterator[str]:
    for machine, lifecycle in MACHINES.items():
        for event in lifecycle.events.values():
            yield fire(machine, event)
            if not _flags(event):
                yield can(machine, event)


def _steps() -> Iterator[str]:
    for event in ("finish", "cancel", "expire", "quiesce"):
        for kind in ("store", "load"):
            yield _job_step(event, kind)


def _filled(text: str, settings: LedgerSettings) -> str:
    """Replace the names of couplings by their effects."""
    lines = []
    for line in text.splitlines():
        name = line.strip()
        if name.startswith("{") and name.endswith("}"):
            lines.append(indent(effects(name[1:-1].replace("_", "-")), line[: len(line) - len(name)]))
        else:
            lines.append(line.replace("{letter}", "1" if settings.shared else "r + 1"))
    return "\n".join(lines)


def _in_order(calls: Mapping[str, Iterable[str]]) -> list[str]:
    """The functions in an order in which each comes after those that it calls."""
    order: list[str] = []
    open_now: list[str] = []

    def visit(name: str) -> None:
        if name in open_now:
            raise DefinitionError(f"{name} calls itself, through {' and '.join(open_now)}")
        if name in order or name not in calls:
            return
        open_now.append(name)
        for each in calls[name]:
            visit(each)
        open_now.pop()
        order.append(name)

    for name in calls:
        visit(name)
    return order
