"""How lifecycles and ledgers are displayed in notebooks.

Rules of this file:

* The core does not depend on this: `Lifecycle` and `Ledger` have the methods that a notebook calls, and those ask
  `lifecycle.painters`, which is empty until this module is imported.
* Without the drawing extra, a table is shown instead of a drawing. Nothing here raises into a notebook.
* IPython is never imported. It passes itself in (``%load_ext blocklife.drawing._notebook``), or ``import blocklife`` finds it
  running, to the same effect.

IPython calls no display methods of *classes*, such as ``DoorLife`` without parentheses. So it is told once how to show classes
(`enable`); classes that are not lifecycles are shown as before.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from blocklife.drawing._elements import escaped
from blocklife.drawing._picture import Emphasis, Mark, Marks, Panel, picture, tone_of
from blocklife.drawing._theme import Theme
from blocklife.errors import MisuseError, to_install
from blocklife.ledger import Ledger
from blocklife.lifecycle import Lifecycle, Row, Table, painters
from blocklife.states import COUPLINGS, MACHINES, Tone

_CELL = "padding:2px 8px;text-align:left;vertical-align:top"
_NUMBER = "padding:2px 8px;text-align:right"
_BAR = "padding:2px 8px;text-align:left;vertical-align:middle"
_BAR_PIXELS = 240


def show_svg(thing: object) -> str | None:
    """A lifecycle, or a machine with its state marked, as a drawing; None for anything else, and without the drawing extra."""
    found = _lifecycle(thing)
    if found is None:
        return None
    from blocklife.drawing._svg import svg

    table, state = found
    name = next((name for name, machine in MACHINES.items() if machine is table), table.name)
    marks = (
        Marks()
        if state is None
        else Marks(states={state.name: Mark(Emphasis.USED, note="now", weight=1.0)}, meanings={Emphasis.USED: "it stands here"})
    )
    try:
        return svg([Panel(picture(table, name, COUPLINGS if name in MACHINES else ()), marks)])
    except MisuseError:
        return None


def show_html(thing: object) -> str | None:
    """A ledger as a table of counts; a lifecycle as a table if it cannot be drawn; None for anything else."""
    if isinstance(thing, Ledger):
        return _ledger(thing)
    found = _lifecycle(thing)
    return None if found is None or show_svg(thing) is not None else _matrix(*found)


def _lifecycle(thing: object) -> tuple[Table, enum.Enum | None] | None:
    """The table of a lifecycle, and the state of one machine."""
    if isinstance(thing, Lifecycle):
        return thing.table, thing.state
    if isinstance(thing, type) and issubclass(thing, Lifecycle) and hasattr(thing, "table"):
        return thing.table, None
    return None


painters.update({"_repr_svg_": show_svg, "_repr_html_": show_html})


# --- IPython -------------------------------------------------------------------------------------------------------------

Show: TypeAlias = Callable[[object], str | None]


class Formatter(Protocol):
    """The used part of IPython's formatter for one MIME type."""

    def for_type(self, typ: type, func: Show | None = None) -> Show | None:
        """Show objects of a type with a function; returns the previous function."""


class _Display(Protocol):
    @property
    def formatters(self) -> Mapping[str, Formatter]: ...


class Shell(Protocol):
    """The used part of IPython's shell."""

    @property
    def display_formatter(self) -> _Display:
        """The formatters by MIME type."""


def enable(shell: Shell) -> None:
    """Let IPython show lifecycle classes; instances need no help. A second call does nothing."""
    for mime, show in (("image/svg+xml", show_svg), ("text/html", show_html)):
        formatter = shell.display_formatter.formatters[mime]
        classes = _Classes(show)
        before = formatter.for_type(type, classes)
        classes.before = before.before if isinstance(before, _Classes) else before


def disable(shell: Shell) -> None:
    """Undo `enable`."""
    for mime in ("image/svg+xml", "text/html"):
        formatter = shell.display_formatter.formatters[mime]
        before = formatter.for_type(type, _nothing)
        formatter.for_type(type, (before.before or _nothing) if isinstance(before, _Classes) else before)


def load_ipython_extension(shell: Shell) -> None:
    """``%load_ext blocklife.drawing._notebook``."""
    enable(shell)


def unload_ipython_extension(shell: Shell) -> None:
    """``%unload_ext blocklife.drawing._notebook``."""
    disable(shell)


class _Classes:
    """Shows classes: lifecycles as drawings, all others as before."""

    def __init__(self, show: Show) -> None:
        self.show = show
        self.before: Show | None = None

    def __call__(self, thing: object) -> str | None:
        shown = self.show(thing) if _lifecycle(thing) is not None else None
        return shown if shown is not None or self.before is None else self.before(thing)


def _nothing(_thing: object) -> None:
    """Leave it to the other formats."""


# --- tables --------------------------------------------------------------------------------------------------------------


def _ledger(ledger: Ledger) -> str:
    """Places by state with bars, jobs in flight, requests, and errors so far."""
    counts = ledger.statistics()
    jobs = Counter(job.state.name for job in ledger.jobs.alive())
    requests = Counter(ledger.requests.state(name).name for name in ledger.requests)
    title = f"Ledger, plan {ledger.plans.number}, {ledger.contract.name.lower()}"
    health = {
        "violations": counts.violations,
        "blocks in quarantine": counts.quarantined,
        "stale references": counts.stale,
        "late reports": counts.late,
        "repeated reports": counts.duplicate,
        "unknown reports": counts.unknown,
    }
    free = f"{counts.free:,} blocks free, {counts.freeing_soon:,} more once their copies have landed"
    rows = [
        *_bars("blocks", "block", counts.blocks),
        *_bars("slots", "slot", counts.slots),
        *_bars("jobs out", "job", jobs),
        *_bars("requests", "request", requests),
    ]
    head = f"<p><b>{escaped(title)}</b>: {free}</p>"
    return f'<div class="blocklife-ledger">{head}{_table(rows)}<p>{_health(health)}</p></div>'


def _bars(title: str, machine: str, counts: Mapping[str, int]) -> Iterator[Sequence[tuple[str, str]]]:
    """A line for all places of one kind, and one for each state that has any, with a bar as long as their share."""
    table, total = MACHINES[machine], sum(counts.values())
    yield (_CELL, f"<b>{title}</b>"), (_NUMBER, f"<b>{total:,}</b>"), (_BAR, "")
    for state in table.states:
        if count := counts.get(state.name, 0):
            tint = Theme.LIGHT.value.tones[tone_of(table, state)].line  # visible on a dark background, too
            style = f"height:10px;border-radius:2px;background:{tint};width:{max(2, round(_BAR_PIXELS * count / total))}px"
            bar = f'<div style="{style}" title="{escaped(str(state.value))}"></div>'
            yield (_CELL, f"<code>{state.name}</code>"), (_NUMBER, f"{count:,}"), (_BAR, bar)


def _health(counts: Mapping[str, int]) -> str:
    wrong = [f"{what} {count:,}" for what, count in counts.items() if count]
    return f"<b>health</b>: {', '.join(wrong)}" if wrong else "<b>health</b>: nothing to report"


def _matrix(table: Table, here: enum.Enum | None) -> str:
    """Where each event leads from each state; the state of a machine is marked."""
    rows = [[(_CELL, ""), *((_CELL, f"<b>{event}</b>") for event in table.events)]]
    for state in table.states:
        mark = f"{_CELL};border-left:4px solid {Theme.LIGHT.value.tones[Tone.USE].line}" if state is here else _CELL
        cells = ["<br>".join(_target(row) for row in event.rows_of(state)) for event in table.events.values()]
        rows.append([(mark, f"<b>{escaped(state.name)}</b>"), *((_CELL, cell) for cell in cells)])
    title = table.name if here is None else f"{table.name} is {here.name}"
    why = f"as a table: drawings need {to_install('draw')}"
    return f"<p><b>{escaped(title)}</b> ({escaped(why)})</p>{_table(rows)}"


def _target(row: Row) -> str:
    guard = "" if row.guard is None else f" [{row.guard.name}]"
    return escaped(row.target.name + guard)


def _table(rows: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Rows of cells, each with its style; the content is markup."""
    lines = ("".join(f'<td style="{style}">{content}</td>' for style, content in row) for row in rows)
    return f'<table style="border-collapse:collapse">{"".join(f"<tr>{line}</tr>" for line in lines)}</table>'
