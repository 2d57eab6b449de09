"""How lifecycles and ledgers are displayed in notebooks.

Rules of this file:

* The core does not depend on this: `Lifecycle` and `Ledger` have the methods that a notebook calls, and those ask
  `lifecycle.painters`, which is empty until this module is imported.
* Without the drawing extra, a table is shown instead of a drawing. Nothing here raises into a notebook.
* IPython is never imported. It passes itself in (``%load_ext blocklife.drawing``), or ``import blocklife`` finds it running, to
  the same effect. It calls no display methods of *classes*, such as ``DoorLife`` without parentheses, so it is told once how to
  show those (`enable`); classes that are not lifecycles are shown as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeAlias

from blocklife.drawing._elements import escaped
from blocklife.drawing._picture import Emphasis, Mark, Marks, Panel, picture, tone_of
from blocklife.drawing._tables import as_html, matrix
from blocklife.drawing._theme import Theme
from blocklife.errors import MisuseError
from blocklife.extras import to_install
from blocklife.ledger import Ledger
from blocklife.lifecycle import Lifecycle, painters
from blocklife.states import COUPLINGS, MACHINES

_BAR_PIXELS = 240


def show_svg(thing: object) -> str | None:
    """A lifecycle, or a machine with its state marked, as a drawing; None for anything else, and without the drawing extra."""
    from blocklife.drawing._svg import svg

    panel = _panel(thing)
    try:
        return None if panel is None else svg([panel])
    except MisuseError:
        return None


def show_html(thing: object) -> str | None:
    """A ledger as a table of counts; a lifecycle as a table if it cannot be drawn; None for anything else."""
    if isinstance(thing, Ledger):
        return _ledger(thing)
    panel = _panel(thing)
    if panel is None or show_svg(thing) is not None:
        return None
    here = "".join(f" is {state}" for state in panel.marks.states)
    why = f"as a table: drawings need {to_install('draw')}"
    return f"<p><b>{escaped(panel.picture.name + here)}</b> ({escaped(why)})</p>{as_html(matrix(panel))}"


def _panel(thing: object) -> Panel | None:
    """A lifecycle, with the state of one machine marked."""
    marks = Marks()
    if isinstance(thing, Lifecycle):
        here = Mark(Emphasis.USED, note="now", weight=1.0)
        marks = Marks(states={thing.state.name: here}, meanings={Emphasis.USED: "it stands here"})
        thing = type(thing)
    if not (isinstance(thing, type) and issubclass(thing, Lifecycle) and hasattr(thing, "table")):
        return None
    name = next((name for name, machine in MACHINES.items() if machine is thing.table), "")
    return Panel(picture(thing.table, name, COUPLINGS if name else ()), marks)


painters.update({"_repr_svg_": show_svg, "_repr_html_": show_html})


# --- IPython -------------------------------------------------------------------------------------------------------------

Show: TypeAlias = Callable[[object], str | None]
_SHOWN: Mapping[str, Show] = {"image/svg+xml": show_svg, "text/html": show_html}


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


class _Classes:
    """Shows classes: lifecycles as drawings, all others as before."""

    def __init__(self, show: Show, before: Show | None) -> None:
        self._show = show
        self.before: Show | None = before.before if isinstance(before, _Classes) else before

    def __call__(self, thing: object) -> str | None:
        shown = self._show(thing)
        return shown if shown is not None or self.before is None else self.before(thing)


def enable(shell: Shell) -> None:
    """Let IPython show lifecycle classes; instances need no help. A second call does nothing."""
    for mime, show in _SHOWN.items():
        formatter = shell.display_formatter.formatters[mime]
        formatter.for_type(type, _Classes(show, formatter.for_type(type)))


def disable(shell: Shell) -> None:
    """Undo `enable`."""
    for mime in _SHOWN:
        formatter = shell.display_formatter.formatters[mime]
        shown = formatter.for_type(type)
        if isinstance(shown, _Classes):
            formatter.for_type(type, shown.before or (lambda _thing: None))


def load_ipython_extension(shell: Shell) -> None:
    """``%load_ext blocklife.drawing``."""
    enable(shell)


def unload_ipython_extension(shell: Shell) -> None:
    """``%unload_ext blocklife.drawing``."""
    disable(shell)


# --- a ledger ------------------------------------------------------------------------------------------------------------


def _ledger(ledger: Ledger) -> str:
    """Places by state with bars, jobs in flight, requests, and errors so far."""
    counts = ledger.statistics()
    jobs = Counter(job.state.name for job in ledger.jobs.alive())
    requests = Counter(ledger.requests.state(name).name for name in ledger.requests)
    health = {
        "violations": counts.violations,
        "blocks in quarantine": counts.quarantined,
        "stale references": counts.stale,
        "late reports": counts.late,
        "repeated reports": counts.duplicate,
        "unknown reports": counts.unknown,
    }
    wrong = ", ".join(f"{what} {count:,}" for what, count in health.items() if count)
    title = f"Ledger, plan {ledger.plans.number}, {ledger.contract.name.lower()}"
    free = f"{counts.free:,} blocks free, {counts.freeing_soon:,} more once their copies have landed"
    rows = [
        *_bars("blocks", "block", counts.blocks),
        *_bars("slots", "slot", counts.slots),
        *_bars("jobs out", "job", jobs),
        *_bars("requests", "request", requests),
    ]
    return (
        f'<div class="blocklife-ledger"><p><b>{escaped(title)}</b>: {free}</p>'
        f'<table style="border-collapse:collapse">{"".join(rows)}</table>'
        f"<p><b>health</b>: {wrong or 'nothing to report'}</p></div>"
    )


def _bars(title: str, machine: str, counts: Mapping[str, int]) -> Iterator[str]:
    """A line for all places of one kind, and one for each state that has any, with a bar as long as their share."""
    table, total = MACHINES[machine], sum(counts.values())
    yield f"<tr><td><b>{title}</b></td><td><b>{total:,}</b></td><td></td></tr>"
    for state in table.states:
        if count := counts.get(state.name, 0):
            tint = Theme.LIGHT.value.tones[tone_of(table, state)].line  # visible on a dark background, too
            style = f"height:10px;border-radius:2px;background:{tint};width:{max(2, round(_BAR_PIXELS * count / total))}px"
            bar = f'<div style="{style}" title="{escaped(str(state.value))}"></div>'
            yield f"<tr><td><code>{state.name}</code></td><td>{count:,}</td><td>{bar}</td></tr>"
