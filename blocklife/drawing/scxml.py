"""Lifecycles as SCXML, the W3C's notation for state machines, for tools that read it.

Rules of this file:

* The document decides as the table does: the transitions of a state stand in the order of the rows, and the first whose event
  and condition fit is taken. An event without such a transition is passed over there; here it is a refusal.
* A guard is a fact of the event: its condition is ``_event.data.NAME``, so whoever sends the event says which guards hold.
* SCXML's ``<final>`` has no way out, not even one back to itself. A final state with rows, such as a job that hears a late
  report, is a ``<state>`` here that our namespace calls final; the document then does not end in it.
* What SCXML has no word for (meanings, payloads, what guards ask, couplings) stands in a namespace of our own, which other
  readers pass over.

Several machines become the regions of one ``<parallel>``, with ids and events such as ``block.FREED`` and ``block.land``. They
run independently there: a coupling moves exactly the places that a job names, and a document with one block and one slot cannot
express which. Couplings are therefore described, not executed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

from blocklife.lifecycle import Guard, Row, Table
from blocklife.states import Coupling

NAMESPACE = "http://www.w3.org/2005/07/scxml"
OURS = "urn:blocklife:lifecycle"


def scxml(tables: Mapping[str, Table], couplings: Sequence[Coupling] = ()) -> str:
    """One document with these lifecycles, by name; one alone has no prefixes."""
    if len(tables) == 1:
        (name, table), *_ = tables.items()
        lines = [
            *_head(f"name={_quoted(name)} initial={_quoted(table.initial.name)}"),
            *_told(table, ""),
            *_states(table, "", 1),
        ]
    else:
        lines = [*_head('name="blocklife" initial="machines"'), '  <parallel id="machines">']
        for name, table in tables.items():
            prefix = f"{name}."
            lines.append(f"    <state id={_quoted(name)} initial={_quoted(prefix + table.initial.name)}>")
            lines += [f"    {line}" for line in _told(table, prefix)]
            lines += _states(table, prefix, 3)
            lines.append("    </state>")
        lines += [f"    {line}" for line in map(_coupling, couplings) if line]
        lines.append("  </parallel>")
    return "\n".join([*lines, "</scxml>"]) + "\n"


def _head(rest: str) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f'<scxml xmlns="{NAMESPACE}" xmlns:bl="{OURS}" version="1.0" datamodel="ecmascript" {rest}>'


def _told(table: Table, prefix: str) -> Iterator[str]:
    """The elements for what SCXML cannot express."""
    yield f"  <bl:about>{_text(table.doc)}</bl:about>"
    for event in table.events.values():
        yield f"  <bl:event of={_quoted(prefix + event.name)} payload={_names(event.parameters)}>{_text(event.doc)}</bl:event>"
    for guard in dict.fromkeys(row.guard for row in table.rows if row.guard is not None):
        yield f"  <bl:guard of={_quoted(guard.name)} reads={_names(guard.parameters)}>{_text(guard.doc)}</bl:guard>"


def _states(table: Table, prefix: str, depth: int) -> Iterator[str]:
    space = "  " * depth
    for state in table.states:
        rows = [row for row in table.rows if row.source is state]
        final = state in table.finals
        tag = "final" if final and not rows else "state"
        ends = ' bl:ends="true"' if final else ""
        head = f"{space}<{tag} id={_quoted(prefix + state.name)}{ends}{_about(state)}"
        if not rows:
            yield f"{head}/>"
            continue
        yield f"{head}>"
        yield from (f"{space}  {_transition(row, prefix)}" for row in rows)
        yield f"{space}</{tag}>"


def _about(state: enum.Enum) -> str:
    return f" bl:about={_quoted(state.value)}" if isinstance(state.value, str) else ""


def _transition(row: Row, prefix: str) -> str:
    condition = "" if row.guard is None else f" cond={_quoted(_condition(row.guard))}"
    target = _quoted(prefix + row.target.name)
    return f'<transition event={_quoted(prefix + row.event)}{condition} target={target} bl:row="{row.index}"/>'


def _condition(guard: Guard[...]) -> str:
    return f"_event.data.{guard.name}"


def _coupling(coupling: Coupling) -> str:
    into = " ".join(state.name for state in coupling.into)
    effects = " ".join(coupling.effects)
    said = f"of={_quoted(coupling.name)} cause={_quoted(coupling.cause)} into={_quoted(into)} effects={_quoted(effects)}"
    return f"<bl:coupling {said}>{_text(coupling.why)}</bl:coupling>"


def _names(names: Sequence[str]) -> str:
    return _quoted(" ".join(names))


def _quoted(text: str) -> str:
    return quoteattr(_plain(text))


def _text(text: str) -> str:
    return escape(_plain(text))


def _plain(text: str) -> str:
    """On one line, without the characters that XML has no place for."""
    return " ".join("".join(each if each.isprintable() or each.isspace() else " " for each in text).split())
