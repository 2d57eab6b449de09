"""Does `blocklife draw` draw what is asked, say in one line what it cannot, and leave nothing half-written?

Method: most runs are in this process, in a folder of their own; a terminal, a closed pipe and a bare environment get a process.
"""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklife.cli import main
from blocklife.cli._draw import FORMATS
from blocklife.cli._spec import parts
from blocklife.drawing import _spec as spec
from blocklife.drawing._spec import OURS
from blocklife.extras import to_install
from blocklife.states import MACHINES
from tests.project.run_picture import PICTURE, drawn

ROOT = Path(__file__).parents[2]
SPECS = ROOT / "specs"
MACHINE_NAMES = ", ".join([*OURS, "all"])
COMMAND = [sys.executable, "-m", "blocklife", "draw"]

Capture = pytest.CaptureFixture[str]

DOOR = '''
import enum
from blocklife.lifecycle import Lifecycle, edge

print("noise while it is imported")

class Door(enum.Enum):
    OPEN = "anybody can pass"
    SHUT = "nobody can"

class DoorLife(Lifecycle, initial=Door.OPEN):
    """A door."""

    @edge(Door.OPEN, to=Door.SHUT)
    def push(self) -> None:
        """Push it."""

    @edge(Door.SHUT, to=Door.OPEN)
    def pull(self) -> None:
        """Pull it."""

table = DoorLife.table
number = 3
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own to draw in, with a module that has a lifecycle."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "doors.py").write_text(DOOR, encoding="utf-8")
    yield tmp_path
    for name in ("doors", "broken", "leaving", "needy"):
        sys.modules.pop(name, None)


def call(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    """One run in this process: status, what it printed, and what it said."""
    try:
        status = main(["draw", *argv])
    except SystemExit as left:
        status = int(str(left.code))
    out, err = capsys.readouterr()
    return status, out, err


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("doors.py", "__pycache__"))


# --- formats -----------------------------------------------------------------------------------------------------------

BEGINS = {
    "text": b"slot The life of",
    "table": b"## slot\n",
    "mermaid": b"stateDiagram-v2\n",
    "dot": b'digraph "slot" {\n',
    "svg": b"<svg xmlns=",
    "png": b"\x89PNG",
    "html": b"<!DOCTYPE html>\n",
}


@pytest.mark.parametrize(("name", "ending"), [(name, ending) for name in BEGINS for ending in FORMATS[name]])
def test_draw_follows_the_ending_of_the_file(name: str, ending: str, folder: Path, capsys: Capture) -> None:
    """Each ending is a format, in any case, and nothing is printed."""
    status, out, err = call(capsys, "slot", "-o", f"slot{ending.upper()}")

    assert (status, out, err) == (0, "", "")
    assert left_in(folder) == [f"slot{ending.upper()}"]
    assert (folder / f"slot{ending.upper()}").read_bytes().startswith(BEGINS[name])


def test_draw_formats_are_all_tried() -> None:
    """Whatever is drawn from a picture is tried below; markup is made of the table, and tested on its own."""
    assert FORMATS.keys() - BEGINS.keys() == {"markup"}


@pytest.mark.parametrize("name", [name for name in BEGINS if name != "png"])
def test_draw_prints_the_bytes_that_it_would_write(name: str, folder: Path, capsys: Capture) -> None:
    """Standard output and a file get the same, and so does the next run."""
    status, out, err = call(capsys, "all", "--format", name)
    call(capsys, "all", "--format", name, "-o", "first")
    call(capsys, "all", "--format", name.upper(), "--output", "second")

    assert (status, err) == (0, "")
    assert out.encode() == (folder / "first").read_bytes() == (folder / "second").read_bytes()
    assert all(machine in out for machine in MACHINES)


def test_draw_without_a_format_prints_text_that_a_terminal_shows(capsys: Capture) -> None:
    status, out, err = call(capsys, "request")

    assert (status, err) == (0, "")
    assert out == call(capsys, "request", "--format", "text")[1]
    assert all(event in out for event in MACHINES["request"].events)


def test_draw_plain_leaves_the_couplings_out(capsys: Capture) -> None:
    """Neither a number on a label nor a legend of couplings is left."""
    for name in MACHINES:
        whole = call(capsys, name, "--format", "svg")[1]
        plain = call(capsys, name, "--format", "svg", "--plain")[1]

        assert "bl-coupling" in whole
        assert "bl-coupling" not in plain
        assert plain.encode() == (SPECS / "drawings" / f"{name}-plain.svg").read_bytes()


def test_draw_theme_settles_the_colours(capsys: Capture) -> None:
    light, dark, auto = (call(capsys, "slot", "--format", "svg", "--theme", each)[1] for each in ("light", "dark", "auto"))

    assert len({light, dark, auto}) == 3
    assert ("@media" in auto, "@media" in light) == (True, False)


def test_draw_names_each_machine_once(capsys: Capture) -> None:
    """A machine that is named twice is drawn once, under the name that it has, in the order of the names."""
    status, out, err = call(capsys, "job", "all", "job", "blocklife.states:JobLife", "--format", "dot")

    assert (status, err) == (0, "")
    assert [line.strip() for line in out.splitlines() if line.strip().startswith('label="') and "\\n" not in line] == [
        f'label="{name}"' for name in ("job", "block", "slot", "request")
    ]


# --- lifecycles of a user's own ----------------------------------------------------------------------------------------


def test_draw_draws_a_lifecycle_of_the_present_folder(capsys: Capture) -> None:
    """What the module prints while it is imported does not come into the drawing."""
    status, out, err = call(capsys, "doors:DoorLife", "--format", "svg")
    states = [each.get("data-state") for each in ET.fromstring(out).iter() if each.get("data-state")]

    assert (status, err) == (0, "noise while it is imported\n")
    assert states == ["OPEN", "SHUT"]


def test_draw_draws_lifecycles_of_one_name_apart(folder: Path, capsys: Capture) -> None:
    """The second one has its whole name."""
    shutil.copy("doors.py", folder / "needy.py")
    status, out, _ = call(capsys, "doors:DoorLife", "needy:table", "block", "--format", "dot")

    assert status == 0
    assert [each in out for each in ('label="DoorLife"', 'label="needy:table"', 'label="block"')] == [True] * 3


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "blok",
            f"unknown machine 'blok' (did you mean block? choose from {MACHINE_NAMES}, or give module:Class)",
        ),
        ("", f"unknown machine '' (choose from {MACHINE_NAMES}, or give module:Class)"),
        ("doors:", "doors:: write module:Class"),
        (":DoorLife", ":DoorLife: write module:Class"),
        ("doors.py:DoorLife", "doors.py:DoorLife: a module, not a file (write doors:DoorLife)"),
        ("dors:DoorLife", "dors:DoorLife: no module dors (it is looked for in the present folder too)"),
        ("doors.way:DoorLife", "doors.way:DoorLife: no module doors.way (it is looked for in the present folder too)"),
        ("doors:DorLife", "doors:DorLife: doors has no DorLife (did you mean DoorLife? choose from DoorLife)"),
        ("doors:Door", "doors:Door: Door is not a Lifecycle (it is the class Door; write class Door(Lifecycle, initial=...))"),
        (
            "doors:number",
            "doors:number: number is not a Lifecycle (it is of type int; write class Door(Lifecycle, initial=...))",
        ),
        ("doors:Lifecycle", "doors:Lifecycle: Lifecycle has no states (write class Door(Lifecycle, initial=...))"),
        ("broken:DoorLife", "broken:DoorLife: broken cannot be imported (ZeroDivisionError: division by zero)"),
        ("leaving:DoorLife", "leaving:DoorLife: leaving cannot be imported (SystemExit: 3)"),
        ("needy:DoorLife", "needy:DoorLife: needy cannot be imported (No module named 'nothing_of_that_name')"),
    ],
)
def test_draw_says_which_lifecycles_there_are(name: str, complaint: str, folder: Path, capsys: Capture) -> None:
    """One line on standard error, status 2, and no file."""
    (folder / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    (folder / "leaving.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    (folder / "needy.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    before = left_in(folder)
    status, out, err = call(capsys, name, "-o", "drawn.svg")

    assert (status, out) == (2, "")
    assert err.removeprefix("noise while it is imported\n") == f"blocklife: {complaint}\n"
    assert left_in(folder) == before


# --- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("job", "--format", "markup"), "markup holds one lifecycle, not slot, job (name one of them)"),
        (("--format", "sgv"), "unknown format 'sgv' (did you mean svg? choose from text, table, mermaid, dot, svg, png, html"),
        (("--theme", "drak"), "unknown theme 'drak' (did you mean dark? choose from auto, light, dark)"),
        (("-o", "slot.svg", "--format", "png"), "slot.svg: the ending says svg, --format png (leave one of them out)"),
        (("-o", "slot"), "slot: it has no ending that names a format (choose from .txt, .md, .mmd, "),
        (("-o", "slot.jpg"), "slot.jpg: the ending .jpg names no format (choose from .txt, .md, .mmd, "),
    ],
)
def test_draw_refuses_in_one_line(argv: tuple[str, ...], complaint: str, folder: Path, capsys: Capture) -> None:
    """Status 2, the reason, and nothing is written."""
    status, out, err = call(capsys, "slot", *argv)

    assert (status, out) == (2, "")
    assert err.startswith(f"blocklife: {complaint}")
    assert err.count("\n") == 1
    assert left_in(folder) == []


@pytest.mark.parametrize(("name", "package"), [("svg", "pygraphviz"), ("png", "resvg_py"), ("html", "pygraphviz")])
def test_draw_says_what_it_needs(name: str, package: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a package there is one line with the remedy; what needs no package is drawn all the same."""
    monkeypatch.setitem(sys.modules, package, None)
    status, out, err = call(capsys, "slot", "--format", name)

    assert (status, out) == (2, "")
    assert err.startswith(f"blocklife: drawing {'png' if name == 'png' else 'svg'} needs {package}")
    assert to_install("draw") in err
    for plain in ("text", "table", "mermaid", "dot"):
        assert call(capsys, "slot", "--format", plain)[0] == 0


def test_draw_refuses_pixels_on_a_terminal() -> None:
    """A terminal gets the remedy, a pipe the pixels."""
    ours, theirs = pty.openpty()
    try:
        told = subprocess.run(
            [*COMMAND, "slot", "--format", "png"], stdout=theirs, stderr=subprocess.PIPE, cwd=ROOT, check=False
        )
    finally:
        os.close(theirs)
        os.close(ours)
    piped = subprocess.run([*COMMAND, "slot", "--format", "png"], capture_output=True, cwd=ROOT, check=False)

    assert told.returncode == 2
    assert told.stderr == b"blocklife: png is not text for a terminal (name a file with -o, or pipe it)\n"
    assert (piped.returncode, piped.stderr) == (0, b"")
    assert piped.stdout.startswith(BEGINS["png"])


def test_draw_without_standard_error_keeps_messages_out_of_the_drawing() -> None:
    """Who has closed it is not told, and what is printed stays a drawing or nothing."""
    command = f"{' '.join(COMMAND)} slot blok 2>&-"
    ran = subprocess.run(command, shell=True, stdout=subprocess.PIPE, cwd=ROOT, check=False)

    assert (ran.returncode, ran.stdout) == (2, b"")


def test_draw_writes_the_same_bytes_under_any_locale() -> None:
    """What is drawn is UTF-8, also where the locale knows only ASCII."""
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PATH": os.environ["PATH"]}
    here, there = (
        subprocess.run([*COMMAND, "job", "--format", "text"], capture_output=True, cwd=ROOT, check=True, env=env)
        for env in (None, environment)
    )

    assert here.stdout == there.stdout
    assert there.stderr == b""


def test_draw_needs_no_graphviz_on_the_system(tmp_path: Path) -> None:
    """With nothing on the path at all a drawing is made."""
    environment = {"PATH": str(tmp_path)}
    ran = subprocess.run([*COMMAND, "slot", "--format", "svg"], capture_output=True, cwd=ROOT, check=False, env=environment)

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == (SPECS / "drawings" / "slot.svg").read_bytes()


# --- drawings of the specification -------------------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the pages that a test may spoil."""
    return Path(shutil.copytree(SPECS, tmp_path / "specs"))


def test_drawing_that_is_spoiled_missing_or_strange_is_named_and_repaired(copied: Path) -> None:
    """Each is one line, and writing brings back the very bytes; what has no name there is left to a human."""
    drawings = copied / "drawings"
    before = {path.name: path.read_bytes() for path in drawings.iterdir()}
    (drawings / "job.svg").write_bytes(before["job.svg"] + b" ")
    (drawings / "slot.svg").unlink()
    (drawings / "cat.svg").write_text("meow", encoding="utf-8")
    hint = "(run: blocklife spec --write)"

    assert spec.stale(copied, parts()) == [
        f"{drawings / 'slot.svg'}: the drawing is missing {hint}",
        f"{drawings / 'job.svg'}: the drawing is out of date {hint}",
        f"{drawings / 'cat.svg'}: nothing is drawn under this name (remove it)",
    ]
    assert spec.write(copied, parts()) == [str(drawings / "slot.svg"), str(drawings / "job.svg")]
    (drawings / "cat.svg").unlink()
    assert {path.name: path.read_bytes() for path in drawings.iterdir()} == before
    assert spec.stale(copied, parts()) == []


def test_drawings_are_shown_by_the_pages_that_they_belong_to() -> None:
    """Each machine's page shows its plain drawing, then that with couplings; the README and the front page what a run did."""
    for name in MACHINES:
        page = (SPECS / f"{name}.md").read_text(encoding="utf-8")
        assert 0 < page.find(f"](drawings/{name}-plain.svg)") < page.find(f"](drawings/{name}.svg)")
    assert "](measurements/run.svg)" in (SPECS / "README.md").read_text(encoding="utf-8")
    assert PICTURE.read_bytes() == drawn()
    assert f'src="{PICTURE.relative_to(ROOT).as_posix()}"' in (ROOT / "README.md").read_text(encoding="utf-8")


def test_drawing_page_names_every_format() -> None:
    """The table of formats is that of the command."""
    page = (SPECS / "drawing.md").read_text(encoding="utf-8")

    for name, endings in FORMATS.items():
        assert f"| {name} | {', '.join(f'`{ending}`' for ending in endings)} |" in page
