"""Lifecycles and ledgers show themselves in notebooks, and nothing is drawn or imported where there is none.

Goal: the last line of a cell is enough. Method: what IPython asks for is asked for here, through a stand-in for its formatters
that looks things up as IPython does, and through IPython itself where it is installed.
"""

from __future__ import annotations

import enum
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from blocklife.drawing import _notebook as notebook
from blocklife.extras import to_install
from blocklife.ledger import Contract, Ledger
from blocklife.lifecycle import Lifecycle, edge, guard, painted, painters
from blocklife.states import MACHINES, BlockLife, JobLife
from tests.drawing.outline import Outline
from tests.worlds import in_flight, make_ledger

ROOT = Path(__file__).parents[2]


class Door(enum.Enum):
    """Where a door stands."""

    SHUT = "one cannot <go> through"
    OPEN = "one can"


@guard
def strong(force: int) -> bool:
    """The door gives way."""
    return force > 9


class DoorLife(Lifecycle, initial=Door.SHUT):
    """A door."""

    @edge(Door.SHUT, to=Door.OPEN, when=strong)
    def push(self, force: int) -> None: ...

    @edge(Door.OPEN, to=Door.SHUT)
    def pull(self) -> None: ...


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if what draws were not installed."""
    monkeypatch.setitem(sys.modules, "pygraphviz", None)


def pieces(svg: str) -> str:
    """The text of a drawing; it is parsed as XML."""
    return " ".join(ET.fromstring(svg).itertext())


# --- lifecycles ---------------------------------------------------------------------------------------------------------


def test_lifecycle_is_a_drawing() -> None:
    """A class shows its states and rows; one machine shows also where it stands."""
    pytest.importorskip("pygraphviz", reason=f"drawings need {to_install('draw')}")
    door = DoorLife()
    shut = door._repr_svg_()
    door.push(force=10)
    opened = door._repr_svg_()
    whole = notebook.show_svg(DoorLife)

    assert shut is not None
    assert opened is not None
    assert whole is not None
    for drawing in (shut, opened, whole):
        assert {"SHUT", "OPEN", "push", "pull"} <= set(re.findall(r"\w+", pieces(drawing)))
    assert len({shut, opened, whole}) == 3
    assert re.search(r"\bnow\b", pieces(shut))
    assert not re.search(r"\bnow\b", pieces(whole))
    assert door._repr_html_() is None


def test_machine_of_the_cache_is_drawn_with_its_couplings() -> None:
    """What is drawn of a block's life is what `blocklife draw block` draws, but for the state that is marked."""
    pytest.importorskip("pygraphviz", reason=f"drawings need {to_install('draw')}")
    shown = BlockLife()._repr_svg_()

    assert shown is not None
    assert "hand-out-flushes" in pieces(shown)


@pytest.mark.usefixtures("without_extra")
def test_lifecycle_is_a_table_where_nothing_can_be_drawn() -> None:
    """Without the drawing extra the table of states and events is shown, with a hint; angle brackets and all is escaped."""
    door = DoorLife()
    shown = door._repr_html_()

    assert door._repr_svg_() is None
    assert shown is not None
    said = Outline(shown)
    assert not said.open
    assert "DoorLife is SHUT" in said.said
    assert {"push", "pull", "OPEN", "[strong]", "SHUT"} <= set(said.said)
    assert "resvg-py" in " ".join(said.said)
    assert notebook.show_html(JobLife) is not None


@pytest.mark.parametrize(
    "thing", [3, int, Door, Door.OPEN, Lifecycle, MACHINES], ids=["number", "type", "enum", "state", "base", "tables"]
)
def test_what_is_no_lifecycle_is_left_alone(thing: object) -> None:
    """Anything else is shown as it was before."""
    assert notebook.show_svg(thing) is None
    assert notebook.show_html(thing) is None


def test_nothing_is_shown_where_nothing_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trunk knows no drawing: without one that is imported, a notebook falls back to the repr."""
    for method in list(painters):
        monkeypatch.delitem(painters, method)

    assert DoorLife()._repr_svg_() is None
    assert DoorLife()._repr_html_() is None
    assert make_ledger()._repr_html_() is None
    assert painted("_repr_svg_", DoorLife()) is None


# --- ledgers ---------------------------------------------------------------------------------------------------------


def shown(ledger: Ledger) -> Outline:
    found = ledger._repr_html_()
    assert found is not None
    outline = Outline(found)
    assert not outline.open
    return outline


def test_ledger_shows_places_jobs_requests_and_health() -> None:
    """Every state that something is in has its count and a bar; nothing is wrong, and it says so."""
    ledger = make_ledger(contract=Contract.HOLD)
    in_flight(ledger)
    outline = shown(ledger)
    said = " ".join(outline.said)
    states = Counter(each for each in outline.said if each.isupper())
    counts = ledger.statistics()

    assert "Ledger, plan 1, hold" in said
    assert states == Counter(
        [name for name, count in (*counts.blocks.items(), *counts.slots.items()) if count] + ["IN_FLIGHT", "RUNNING"]
    )
    assert outline.bars == sum(states.values())
    assert outline.said[outline.said.index("jobs out") + 1] == "1"
    assert "health : nothing to report" in said


def test_ledger_tells_what_went_wrong() -> None:
    """What was counted as odd is named with its number."""
    ledger = make_ledger()
    ledger._state.core.late = 2
    ledger._state.violations = 1
    said = " ".join(shown(ledger).said)

    assert "violations 1" in said
    assert "late reports 2" in said


def test_empty_ledger_shows_that_nothing_is_out() -> None:
    """A kind of thing of which there is none has a zero and no bars; and a look leaves no trace."""
    ledger = make_ledger(requests=())
    before = ledger.snapshot()
    outline = shown(ledger)

    assert outline.said[outline.said.index("jobs out") + 1] == "0"
    assert outline.said[outline.said.index("requests") + 1] == "0"
    assert outline.bars == 2
    assert ledger.snapshot() == before


# --- IPython ---------------------------------------------------------------------------------------------------------


class Formatter:
    """Shows by type, as IPython's does: a function for the type, or for one that it inherits from."""

    def __init__(self) -> None:
        self.by_type: dict[type, notebook.Show] = {}

    def for_type(self, typ: type, func: notebook.Show | None = None) -> notebook.Show | None:
        before = self.by_type.get(typ)
        if func is not None:
            self.by_type[typ] = func
        return before

    def show(self, thing: object) -> str | None:
        return next((self.by_type[each](thing) for each in type(thing).__mro__ if each in self.by_type), None)


class Display:
    """Its formatters, by MIME type."""

    def __init__(self) -> None:
        self.formatters = {"image/svg+xml": Formatter(), "text/html": Formatter()}


class Shell:
    """Its shell."""

    def __init__(self) -> None:
        self.display_formatter = Display()

    def shown(self, thing: object) -> tuple[str | None, str | None]:
        """As SVG and as HTML."""
        svg, html = self.display_formatter.formatters.values()
        return svg.show(thing), html.show(thing)


@pytest.mark.usefixtures("without_extra")
@pytest.mark.parametrize("before", [None, "class {}"])
def test_enable_shows_classes_that_are_lifecycles(before: str | None) -> None:
    """Also twice; other classes are shown as before, if at all; and it can be taken back, also twice."""
    shell = Shell()
    if before is not None:
        shell.display_formatter.formatters["text/html"].for_type(type, lambda thing: before.format(thing))

    def as_before(thing: object) -> tuple[str | None, str | None]:
        return None, None if before is None else before.format(thing)

    notebook.load_ipython_extension(shell)
    notebook.load_ipython_extension(shell)

    assert "DoorLife" in (shell.shown(DoorLife)[1] or "")
    assert shell.shown(int) == as_before(int)
    assert shell.shown(Lifecycle) == as_before(Lifecycle)
    for _ in range(2):
        notebook.unload_ipython_extension(shell)
        assert shell.shown(DoorLife) == as_before(DoorLife)
        assert shell.shown(int) == as_before(int)


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)


def test_import_outside_of_a_notebook_draws_nothing() -> None:
    """Nothing but its door is imported with the package, also where IPython is installed but not running."""
    script = (
        "import sys, types\n"
        "{before}\n"
        "import blocklife\n"
        "print([name for name in sys.modules if name.startswith('blocklife.')], 'numpy' in sys.modules)\n"
    )
    idle = "sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: None)"
    odd = "sys.modules['IPython'] = types.SimpleNamespace()"

    for before in ("", idle, odd):
        ran = run(script.format(before=before))
        assert (ran.stdout, ran.stderr) == ("['blocklife._doors'] False\n", "")


def test_import_in_a_notebook_is_enough() -> None:
    """Where IPython runs, ``import blocklife`` tells it how classes are shown, and things show themselves."""
    script = (
        "import sys, types\n"
        "from tests.drawing.test_notebook import Shell\n"
        "for name in [name for name in sys.modules if name.split('.')[0] == 'blocklife']:\n"
        "    del sys.modules[name]\n"
        "shell = Shell()\n"
        "sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: shell)\n"
        "sys.modules['pygraphviz'] = None\n"
        "import blocklife\n"
        "from blocklife.states import BlockLife\n"
        "print('FREED' in shell.shown(BlockLife)[1], 'FREED' in BlockLife()._repr_html_())\n"
    )
    ran = run(script)

    assert (ran.stdout, ran.stderr) == ("True True\n", "")


@pytest.mark.skipif(
    importlib.util.find_spec("IPython") is None, reason="IPython is not installed; its part is played by a stand-in"
)
def test_real_ipython_shows_them() -> None:
    """IPython's own display formatter gives a drawing for a class and a machine, and HTML for a ledger."""
    script = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "import json, blocklife\n"
        "from blocklife.states import BlockLife\n"
        "from blocklife.ledger import Ledger, Limits\n"
        "things = [BlockLife, BlockLife(), Ledger(Limits(num_blocks=4, num_slots=2, max_jobs=2, max_requests=2)), int]\n"
        "print(json.dumps([sorted(shell.display_formatter.format(thing)[0]) for thing in things]))\n"
    )
    ran = run(script)

    assert ran.returncode == 0, ran.stderr
    drawn, machine, ledger, other = json.loads(ran.stdout.splitlines()[-1])
    assert drawn == machine
    assert drawn in (["image/svg+xml", "text/plain"], ["text/html", "text/plain"])
    assert ledger == ["text/html", "text/plain"]
    assert other == ["text/plain"]
