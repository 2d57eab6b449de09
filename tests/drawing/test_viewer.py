"""The page of a run shows what the recording says: asked of its data, and of the page itself in a real browser.

Goal: nobody is shown a state that a place was not in. Method: replays are recorded, one of them with times, and refusals and an
illegal line are planted in a copy. The data is unpacked again and held against the lives; then the page is opened from disk in
a headless Chromium without a network, driven with mouse and keys, and its pixels, words and rows are held against the lives.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import frozen
from numpy.typing import NDArray

from blocklife.cli import main
from blocklife.drawing._theme import STATE_COLOURS, state_colours
from blocklife.drawing.viewer._packing import packed
from blocklife.extras import to_install
from blocklife.recording import Lives, Recorder
from blocklife.states import COUPLINGS, MACHINES
from tests.programs import HANGS_S
from tests.recordings import read
from tests.worlds import make_ledger

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
browsing = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
ARGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
SHORT = (
    "replay --requests 30 --gpu-blocks 72 --host-slots 96 --groups full:128,swa:128:512 --faults fail=0.1,never=0.05,late=0.1 "
    "--abort 0.1 --deadline 24 --max-running 12 --json --seed 3 --times"
)
Page = Any  # playwright is not there everywhere
Capture = pytest.CaptureFixture[str]


# --- recordings and pages ------------------------------------------------------------------------------------------------


@frozen
class Made:
    """A recording, its lives, and its page."""

    recording: Path
    page: Path
    lives: Lives

    @property
    def said(self) -> dict[str, Any]:
        """What the page was told."""
        found = re.search(r'id="recording">(.*?)</script>', self.page.read_text(encoding="utf-8"), re.DOTALL)
        assert found
        told: dict[str, Any] = json.loads(found[1])
        return told

    def state(self, machine: str, place: int, n: int) -> str | None:
        """Where a place stands behind a commit; None where it has taken no step."""
        steps = [index for index in self.lives.steps_of(machine, place) if self.lives.n[index] <= n]
        return self.lives.step(steps[-1]).target if steps else None


def made(folder: Path, name: str, lines: Sequence[str]) -> Made:
    """Write a recording and its page."""
    recording, page = folder / f"{name}.jsonl", folder / f"{name}.html"
    recording.write_text("\n".join(lines) + "\n", encoding="utf-8")

    assert main(["recording", "view", str(recording), "-o", str(page)]) == 0
    return Made(recording, page, read(recording))


def record(folder: Path, options: str) -> list[str]:
    """The lines of a replay."""
    path = folder / "replay.jsonl"
    main([*options.split(), "--record", str(path)])
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of it lies."""
    return tmp_path_factory.mktemp("viewer")


@pytest.fixture(scope="module")
def run(folder: Path) -> Made:
    """A lawful run under pressure and faults, with times."""
    return made(folder, "run", record(folder, SHORT))


@pytest.fixture(scope="module")
def damaged(folder: Path, run: Made) -> Made:
    """The same run with a landing that is called a drop, and with refusals."""
    lines = run.recording.read_text(encoding="utf-8").splitlines()
    out: list[str] = []
    for number, line in enumerate(lines):
        said = json.loads(line)
        if number > len(lines) // 2 and said.get("event") == "land" and said["machine"] == "block":
            out.append(line.replace('"event":"land"', '"event":"drop"'))
            out.extend(lines[number + 1 :])
            return made(folder, "damaged", out)
        out.append(line)
        if said.get("machine") == "block" and number % 200 < 3:
            refused = {"plan": said["plan"], "machine": "block", "id": said["id"], "event": "seal", "from": said["to"]}
            out.append(json.dumps({"blocklife": "refused", **refused}))
    raise LookupError("no block landed in the second half")


def unpacked(text: str) -> list[int]:
    """What `packed` has packed, as the page reads it."""
    values, last, value, shift = [], 0, 0, 0
    for byte in base64.b64decode(text):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            last += -(value + 1) // 2 if value & 1 else value // 2
            values.append(last)
            value = shift = 0
    return values


# --- data ----------------------------------------------------------------------------------------------------------------


def test_packing_keeps_every_number() -> None:
    """Columns come back as they were: small and large, rising and falling, none at all."""
    dice = random.Random(5)
    columns = [[], [0], [-1, 2**53, 0, -(2**53)], [127, 128, -64, -65, 8191, 8192]]
    columns.append([dice.randrange(-(1 << dice.randrange(1, 60)), 1 << dice.randrange(1, 60)) for _ in range(500)])

    for column in columns:
        assert unpacked(packed(column)) == column


def test_data_is_what_the_lives_say(run: Made) -> None:
    """Line, commit, plan, place, row, job, epoch and cause of every step of the page are those of the recording."""
    said, lives = run.said, run.lives
    steps = {key: unpacked(value) for key, value in said["steps"].items() if key != "count"}
    lanes = {key: unpacked(value) for key, value in said["lanes"].items() if key != "count"}

    assert said["steps"]["count"] == len(lives) == len(steps["row"])
    for index in range(len(lives)):
        step = lives.step(index)
        lane = steps["lane"][index]
        machine = said["machines"][lanes["machine"][lane]]
        row = machine["rows"][steps["row"][index]]
        assert (machine["name"], lanes["id"][lane]) == (step.machine, step.id)
        assert (row["event"], row["guard"] or None) == (step.event, step.guard)
        assert [machine["states"][row[key]]["name"] for key in ("from", "to")] == [step.source, step.target]
        assert (steps["line"][index], steps["n"][index], steps["plan"][index]) == (step.line, step.n, step.plan)
        assert (steps["job"][index] or None, steps["epoch"][index]) == (step.job, step.epoch or 0)
        assert (index - steps["cause"][index] if steps["cause"][index] else None) == step.cause
        assert said["couplings"][steps["coupling"][index]]["name"] == step.coupling


def test_tables_of_the_page_are_those_of_the_machines(run: Made) -> None:
    """Every row keeps its number, every guard, event and coupling its meaning, and life-ending rows say so."""
    for told, (name, table) in zip(run.said["machines"], MACHINES.items(), strict=True):
        assert told["name"] == name
        assert [row["number"] for row in told["rows"]] == [row.index for row in table.rows]
        assert told["guards"] == {row.guard.name: row.guard.doc for row in table.rows if row.guard}
        assert told["events"] == {event.name: event.doc for event in table.events.values()}
    assert {each["name"]: each["why"] for each in run.said["couplings"] if each["name"]} == {
        each.name: each.why for each in COUPLINGS
    }
    assert any(row["ends"] for row in run.said["machines"][0]["rows"])


def test_jobs_hold_their_places_from_reservation_to_landing(run: Made) -> None:
    """Bars begin with the step that reserves a place and end with the one that lets go, for stores and for loads."""
    said, lives = run.said["touches"], run.lives
    columns = [unpacked(said[key]) for key in ("lane", "begin", "job", "end", "load")]
    lanes = {key: unpacked(run.said["lanes"][key]) for key in ("machine", "id")}
    kinds = {story.id: story.kind for story in lives.jobs()}
    found = set()
    for lane, begin, job, end, load in zip(*columns, strict=True):
        first, last = lives.step(begin - 1), lives.step(end - 1) if end else None
        assert (first.machine, first.id) == (list(MACHINES)[lanes["machine"][lane]], lanes["id"][lane])
        block = first.machine == "block"
        assert first.event == (("plan_load" if block else "pin") if load else ("plan_store" if block else "reserve"))
        assert first.job == job
        assert load == (kinds[job] == "load")
        if last is not None:
            assert (last.machine, last.id, last.job) == (first.machine, first.id, job)
            assert last.event in ("land", "cancel", "unpin")
        found.add((first.machine, load, last is not None))

    assert {(machine, load, True) for machine in ("block", "slot") for load in (0, 1)} <= found


def test_names_of_requests_are_those_of_their_steps(run: Made, tmp_path: Path) -> None:
    """Each step of a request has its name in the page; a part of a run knows also who was there before."""
    part, plan = tmp_path / "part.html", run.lives.plans[1] // 2
    assert main(["recording", "view", str(run.recording), "-o", str(part), "--plans", f"{plan}-{run.lives.plans[1]}"]) == 0
    low = next(index for index, each in enumerate(run.lives.plan) if each >= plan)
    for page, start in ((run, 0), (Made(run.recording, part, run.lives), low)):
        names, ids = page.said["names"], unpacked(page.said["lanes"]["id"])
        lanes, steps, words = (unpacked(names[key]) for key in ("lane", "step", "word"))
        told = {(ids[lane], step): names["words"][word] for lane, step, word in zip(lanes, steps, words, strict=True)}
        wanted = {(run.lives.step(at).id, at - start + 1): name for at, name in run.lives.names.items() if at >= start}
        assert {key: name for key, name in told.items() if key[1]} == wanted
        before = {run.lives.step(at).id: name for at, name in run.lives.names.items() if at < start}
        assert {key[0]: name for key, name in told.items() if not key[1]}.items() <= before.items()
        assert wanted


def test_plans_cut_a_run_and_keep_where_places_stood(run: Made, tmp_path: Path) -> None:
    """A part of a run shows its own steps alone, and begins in the states that the rest had led to."""
    first, last = run.lives.plans[1] // 3, run.lives.plans[1] // 2
    page = tmp_path / "part.html"
    status = main(["recording", "view", str(run.recording), "-o", str(page), "--plans", f"{first}-{last}"])
    said = Made(run.recording, page, run.lives).said
    lanes = {key: unpacked(said["lanes"][key]) for key in ("machine", "id", "start")}
    before = max((n for n, plan in zip(run.lives.n, run.lives.plan, strict=True) if plan < first), default=0)

    assert status == 0
    assert set(unpacked(said["steps"]["plan"])) <= set(range(first, last + 1))
    assert said["steps"]["count"] == sum(first <= plan <= last for plan in run.lives.plan)
    for machine, place, start in zip(*lanes.values(), strict=True):
        told = said["machines"][machine]
        stood = run.state(told["name"], place, before) or MACHINES[told["name"]].initial.name
        assert told["states"][start]["name"] == stood, (told["name"], place)


def test_pipes_give_the_same_page(run: Made, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> None:
    """The page depends on the recording alone, which may come from standard input, and goes to standard output as well."""
    with run.recording.open("rb") as stream:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
        assert main(["recording", "view", "-", "-o", "-"]) == 0
    out, err = capfdbinary.readouterr()

    assert out.decode().replace("standard input", run.recording.name) == run.page.read_text(encoding="utf-8")
    assert err == b""


def test_page_holds_everything_itself(run: Made) -> None:
    """No address of another file or machine stands in the page, save the names of formats; and its policy forbids any."""
    text = run.page.read_text(encoding="utf-8")

    assert set(re.findall(r"https?://[^\s\"'<>\\]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?!data:)", text)


def test_bad_input_is_one_line_and_no_page(run: Made, tmp_path: Path, capsys: Capture) -> None:
    """What is too much or no range is told in one line; an older page stays."""
    page = tmp_path / "page.html"
    page.write_text("older", encoding="utf-8")
    view = ["recording", "view"]
    cases = {
        "--plans": [*view, str(run.recording), "-o", str(page), "--max-events", "100"],
        "its plans are": [*view, str(run.recording), "-o", str(page), "--plans", "900000-900001"],
        "as 100-180": [*view, str(run.recording), "-o", str(page), "--plans", "9-3"],
        "at least 1": [*view, str(run.recording), "-o", str(page), "--max-events", "0"],
    }
    for words, argv in cases.items():
        status = main(argv)
        found = capsys.readouterr()

        assert status == 2, words
        assert found.out == ""
        assert len(found.err.splitlines()) == 1
        assert words in found.err
    assert page.read_text(encoding="utf-8") == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html"]


def test_recording_with_a_name_that_is_no_text_is_shown(run: Made, tmp_path: Path, capsys: Capture) -> None:
    """Bytes of a file name that are no UTF-8 come into a page and a drawing as signs that can be written."""
    strange = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl"))
    strange.write_bytes(run.recording.read_bytes())
    page, drawn = tmp_path / "page.html", tmp_path / "block.txt"

    assert main(["recording", "view", str(strange), "-o", str(page)]) == 0
    assert main(["draw", "block", "--recording", str(strange), "-o", str(drawn)]) == 0
    assert capsys.readouterr().err == ""
    assert "\ufffd.jsonl</title>" in page.read_text(encoding="utf-8")
    assert "taken in \\udcff.jsonl" in drawn.read_text(encoding="utf-8")


def test_too_much_names_plans_that_fit(run: Made, tmp_path: Path, capsys: Capture) -> None:
    """The remedy for a run that is too long works as it is written."""
    most = len(run.lives) // 2
    argv = ["recording", "view", str(run.recording), "-o", str(tmp_path / "page.html"), "--max-events", str(most)]

    assert main(argv) == 2
    found = re.search(r"--plans (\d+-\d+)", capsys.readouterr().err)
    assert found
    assert main([*argv, "--plans", found[1]]) == 0


def _seen(colour: str, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """A colour in OKLab times 100, as somebody sees it whose eyes do this to linear light."""
    srgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.clip(matrix @ np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4), 0, 1)
    to_cones = np.array([[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]])
    to_lab = np.array([[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]])
    seen: NDArray[np.float64] = to_lab @ np.cbrt(to_cones @ linear) * 100
    return seen


EYES = {
    "all": np.eye(3),
    "no red": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "no green": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "no blue": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}
"""What colour blindness does to linear light, after Machado, Oliveira and Fernandes (2009)."""


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_of_one_machine_stay_apart_for_every_eye(theme: int) -> None:
    """Two states of one machine differ for eyes that see all colours, and for those that miss one of the three."""
    for table in MACHINES.values():
        colours = {state.name: state_colours(state.name)[theme] for state in table.states}
        for pair in itertools.combinations(colours, 2):
            if (apart := _apart(*(colours[name] for name in pair))) <= 7:
                better = " or ".join(f"{_free_colour(colours, name)} for {name}" for name in pair)
                pytest.fail(f"{' and '.join(pair)} look alike ({apart:.1f}): write {better} into STATE_COLOURS (_theme.py)")


def _apart(one: str, other: str) -> float:
    """How far apart two colours are for the eyes that tell them apart least."""
    return min(float(np.linalg.norm(_seen(one, matrix) - _seen(other, matrix))) for matrix in EYES.values())


def _free_colour(colours: dict[str, str], name: str) -> str:
    """The colour nearest to that of a state which stands apart from those of all other states of the machine."""
    others = [colour for state, colour in colours.items() if state != name]
    tried = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in itertools.product(range(0, 256, 17), repeat=3)]
    tried.sort(key=lambda colour: float(np.linalg.norm(_seen(colour, EYES["all"]) - _seen(colours[name], EYES["all"]))))
    return next((colour for colour in tried if min(_apart(colour, other) for other in others) > 8), "no colour")


def test_colour_that_is_proposed_stands_apart() -> None:
    """Who adds a state is told of one that will do."""
    colours = {state.name: state_colours(state.name)[0] for state in MACHINES["block"].states} | {"NEW": "#e6ecf2"}
    proposed = _free_colour(colours, "NEW")

    assert _apart(colours["NEW"], colours["FREED"]) == 0
    assert min(_apart(proposed, colour) for name, colour in colours.items() if name != "NEW") > 7


def test_colours_are_there_for_every_state() -> None:
    """Every state of the four machines has its colour, and a state of nobody gets one as well."""
    assert {state.name for table in MACHINES.values() for state in table.states} == set(STATE_COLOURS)
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in state_colours("NO_SUCH_STATE"))


# --- the page in a browser -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install -e '.[dev]')")
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=ARGS, timeout=1000 * HANGS_S)
        yield started
        started.close()


@frozen
class Opened:
    """A page that is open, and everything that it complained about or asked the network for."""

    page: Page
    troubles: list[str]

    def js(self, text: str) -> Any:
        """What an expression is worth in the page."""
        return self.page.evaluate(text)

    def painted(self) -> None:
        """Wait until what was asked for is drawn."""
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def shown(self) -> list[str]:
        """The names of the lanes, from top to bottom."""
        names: list[str] = self.js("seen.rows.filter((row) => row.kind === 'lane').map((row) => run.laneName(row.lane))")
        return names

    def where(self, lane: str, position: float) -> tuple[float, float]:
        """The point of the window where a lane stands at a position of the axis."""
        x, y = self.js(
            f"(() => {{ show(run.laneOf.get('{lane}')); const box = find('lanes').getBoundingClientRect();"
            f"const row = seen.rows.find((each) => each.kind === 'lane' && run.laneName(each.lane) === '{lane}');"
            f"return [box.x + GUTTER + ({position} - seen.from) / (seen.to - seen.from) * (look.width - GUTTER),"
            "box.y + RULER + row.y - seen.scroll + row.height / 2]; })()"
        )
        return float(x), float(y)

    def colours(self, x: float, y: float, wide: int, high: int) -> Counter[str]:
        """How often each colour stands in a part of the lanes around a point of the window; read from a copy."""
        data = self.js(
            "(([x, y, wide, high]) => { const box = find('lanes').getBoundingClientRect();"
            "const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});"
            "context.drawImage(find('lanes'), Math.round(box.x - x + wide / 2), Math.round(box.y - y + high / 2));"
            f"return [...context.getImageData(0, 0, wide, high).data]; }})([{x}, {y}, {wide}, {high}])"
        )
        return Counter(f"#{r:02x}{g:02x}{b:02x}" for r, g, b, _ in zip(*[iter(data)] * 4, strict=True))


@pytest.fixture
def opening(browser: Any) -> Iterator[Any]:
    """A function that opens a page; at the end no page may have complained, or asked for anything but itself."""
    contexts, troubles = [], []

    def opens(page: Path, **options: Any) -> Opened:
        size = options.pop("viewport", {"width": 1280, "height": 800})
        context = browser.new_context(viewport=size, offline=True, **options)
        context.set_default_timeout(1000 * HANGS_S)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda problem: troubles.append(str(problem)))
        tab.on(
            "request", lambda request: troubles.append(request.url) if not request.url.startswith(("file:", "data:")) else None
        )
        tab.goto(page.as_uri())
        tab.wait_for_selector("body[data-ready]")
        return Opened(tab, troubles)

    yield opens
    for context in contexts:
        context.close()

    assert troubles == []


@browsing
def test_page_paints_the_state_that_each_place_is_in(run: Made, opening: Any) -> None:
    """At random places and commits, light and dark, the pixel has the colour of the state in the recording."""
    dice = random.Random(11)
    for theme, scheme in enumerate(("light", "dark")):
        page = opening(run.page, color_scheme=scheme)
        checked = set()
        for _ in range(60):
            index = dice.randrange(len(run.lives))
            step = run.lives.step(index)
            page.js(f"look_at({step.n} - 20, {step.n} + 20)")
            x, y = page.where(f"{step.machine} {step.id}", step.n + 0.5)
            page.painted()
            state = run.state(step.machine, step.id, step.n)
            assert state is not None
            # Names, bars and ticks are drawn over it: the colour is that of most of the pixels of this commit.
            near = page.colours(x, y, 14, 14)
            assert near.most_common(1)[0][0] == state_colours(state)[theme], (step, state, near)
            checked.add(state)
        assert len(checked) >= 6


@browsing
def test_page_zooms_at_the_cursor_and_pans_with_the_mouse(run: Made, opening: Any) -> None:
    """What lies under the cursor stays there when the wheel turns, and follows the mouse when it drags."""
    page = opening(run.page)
    wide = page.js("seen.to - seen.from")
    box = page.page.locator("#lanes").bounding_box()
    x, y = box["x"] + 400, box["y"] + 200
    page.page.mouse.move(x, y)
    before = page.js("positionAt(400)")
    page.page.mouse.wheel(0, -600)
    page.painted()

    assert page.js("positionAt(400)") == pytest.approx(before)
    assert page.js("seen.to - seen.from") < wide / 2

    before, above = page.js("positionAt(400)"), page.js("seen.scroll")
    page.page.mouse.down()
    page.page.mouse.move(x - 120, y - 60, steps=4)
    page.page.mouse.up()
    page.painted()

    assert page.js("positionAt(280)") == pytest.approx(before)
    assert page.js("seen.scroll") == above + 60
    assert page.js("seen.selected") == -1  # a drag is no click


@browsing
def test_page_can_be_used_with_keys_alone(run: Made, opening: Any) -> None:
    """Keys zoom, pan, scroll, select a step, and walk along a place and across places."""
    page = opening(run.page)
    page.page.locator("#lanes").focus()
    wide = page.js("seen.to - seen.from")
    page.page.keyboard.press("+")
    page.page.keyboard.press("+")
    assert page.js("seen.to - seen.from") == pytest.approx(wide / 4)
    left = page.js("seen.from")
    page.page.keyboard.press("ArrowRight")
    assert page.js("seen.from") > left
    page.page.keyboard.press("PageDown")
    assert page.js("seen.scroll") > 0
    page.page.keyboard.press("PageUp")
    page.page.keyboard.press("Enter")
    first = page.js("[seen.lane, run.rank[seen.selected]]")
    page.page.keyboard.press("Shift+ArrowRight")
    assert page.js("[seen.lane, run.rank[seen.selected]]") == [first[0], first[1] + 1]
    page.page.keyboard.press("Shift+ArrowDown")
    assert page.js("seen.lane") == first[0] + 1
    assert page.js("find('told').textContent").startswith("block 2: ")
    page.page.keyboard.press("Escape")
    assert page.js("seen.lane") == -1
    page.page.keyboard.press("0")
    assert page.js("seen.to - seen.from") == pytest.approx(wide)
    page.page.keyboard.press("/")
    page.page.keyboard.type("job 2-3")
    assert page.shown() == ["job 2", "job 3"]


@browsing
def test_page_zooms_with_two_fingers(run: Made, opening: Any) -> None:
    """Two fingers that part zoom in."""
    page = opening(run.page, has_touch=True)
    wide = page.js("seen.to - seen.from")
    send = page.page.context.new_cdp_session(page.page).send

    def touch(kind: str, *at: int) -> None:
        points = [{"x": x, "y": 400, "id": number} for number, x in enumerate(at)]
        send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 380, 420)
    for away in range(10, 110, 20):
        touch("touchMove", 380 - away, 420 + away)
    touch("touchEnd")
    page.painted()

    assert page.js("seen.to - seen.from") < wide / 2


@browsing
def test_page_filters_by_place_job_request_state_and_plans(run: Made, opening: Any) -> None:
    """Each filter leaves exactly the places that the lives know to fit; bad text is told; clear shows all again."""
    page, lives = opening(run.page), run.lives
    everything = page.shown()
    count = page.page.locator("#count")
    assert len(everything) == len(set(lives.places)) == int(count.text_content().split(" ")[0])

    page.page.fill("#places", "block 3-5, 9; slots 2, request")
    assert page.shown()[:5] == ["block 3", "block 4", "block 5", "block 9", "slot 2"]
    assert {name.split()[0] for name in page.shown()[5:]} == {"request"}
    page.page.fill("#places", "blok 3")
    assert "places are written as" in page.page.locator("#problem").text_content()
    assert page.page.get_attribute("#places", "aria-invalid") == "true"
    page.page.click("#clear")
    assert page.shown() == everything

    load, request = next((story, story.request) for story in lives.jobs() if story.request is not None)
    touched = {f"block {block}" for block in load.blocks} | {f"slot {slot}" for slot in load.slots}
    page.page.fill("#job", str(load.id))
    assert set(page.shown()) == touched | {f"job {load.id}", f"request {request.id}"}
    page.page.fill("#job", "999999")
    assert "no job 999999" in page.page.locator("#problem").text_content()
    page.page.click("#clear")
    page.page.fill("#request", str(request.id))
    assert touched | {f"job {load.id}", f"request {request.id}"} <= set(page.shown()) < set(everything)
    page.page.click("#clear")

    names: list[str] = page.js("[...document.querySelectorAll('#legend [data-keep]')].map((each) => each.textContent)")
    assert sorted(names) == sorted({state.name for table in MACHINES.values() for state in table.states})
    page.page.click("#legend button:has-text('QUARANTINED')")  # of every machine that has it
    wanted = {
        f"{machine} {place}"
        for machine, place in lives.places
        if any(lives.step(index).target == "QUARANTINED" for index in lives.steps_of(machine, place))
    }
    assert set(page.shown()) == wanted
    assert {"block", "job"} <= {lane.split()[0] for lane in wanted}
    page.page.click("#clear")
    assert page.shown() == everything

    low = lives.plan[len(lives) // 3]  # something moves in this plan, whatever the run does
    high = low + 20
    page.page.fill("#plans", f"{low}-{high}")
    moved = {
        f"{lives.step(index).machine} {lives.step(index).id}" for index in range(len(lives)) if low <= lives.plan[index] <= high
    }
    assert set(page.shown()) == moved
    seen = page.js("[run.plan[above(run.axes.commits, seen.from) - 1], run.plan[above(run.axes.commits, seen.to) - 2]]")
    assert low <= seen[0] <= seen[1] <= high


@browsing
def test_page_tells_a_step_with_its_guard_and_its_cause(run: Made, opening: Any, tmp_path: Path) -> None:
    """A click shows the step under the cursor as the recording has it; its buttons lead to the cause, the job and back."""
    page, lives = opening(run.page), run.lives
    index = next(
        index
        for index in range(len(lives) // 2, len(lives))
        for step in [lives.step(index)]
        if step.guard and step.coupling and step.cause is not None and step.job and step.machine == "block"
    )
    step = lives.step(index)
    assert step.cause is not None
    cause = lives.step(step.cause)
    page.js(f"look_at({step.n} - 8, {step.n} + 8)")
    x, y = page.where(step.place, step.n + 0.1)
    page.page.mouse.click(x, y)
    page.page.screenshot(path=str(tmp_path / "step.png"))
    told = page.page.locator("#panel").inner_text()

    assert page.js("seen.selected") == index
    guard = next(row.guard for row in MACHINES["block"].rows if row.guard and row.guard.name == step.guard)
    why = next(each.why for each in COUPLINGS if each.name == step.coupling)
    for words in (
        step.place,
        step.event,
        guard.name,
        guard.doc,
        step.coupling,
        why,
        step.source,
        step.target,
        f"job {step.job}",
    ):
        assert words in told, words
    assert f"n {step.n:,}, plan {step.plan:,}" in told
    assert f"line {step.line:,}" in told
    assert page.js("document.querySelector('#diagram .here').dataset.state") == step.target
    row = next(
        row for row in MACHINES["block"].rows if str(row) == f"{step.source} --{step.event} [{step.guard}]--> {step.target}"
    )
    drawn = page.js("document.querySelector('#diagram .bl-row.taken')?.dataset.row ?? ''")
    assert drawn in ("", str(row.index)), "an SVG is there only with Graphviz"

    page.page.click("#cause button")
    assert page.js("seen.selected") == step.cause
    assert cause.place in page.page.locator("#panel h2").inner_text()
    page.page.click("#panel [data-go='back']")
    assert page.js("run.laneName(seen.lane)") == cause.place
    assert page.js("seen.selected") < step.cause
    page.js(f"look_at({step.n} - 8, {step.n} + 8)")  # the cause may lie far away
    x, y = page.where(step.place, step.n + 0.1)
    page.page.mouse.click(x, y)
    page.page.click(f"#panel button:has-text('job {step.job}') >> nth=0")
    assert page.js("run.laneName(seen.lane)") == f"job {step.job}"


@browsing
def test_page_tells_requests_by_their_names(run: Made, opening: Any, tmp_path: Path) -> None:
    """In the panel, under the cursor, for the loads that they wait for, and in the filter; a row is found as well."""
    page, lives = opening(run.page), run.lives
    load, request = next((story, story.request) for story in lives.jobs() if story.request is not None)
    name = str(request.name)
    page.page.fill("#request", name)
    shown = page.shown()
    assert f"job {load.id}" in shown
    assert [each for each in shown if each.startswith("request")] == [f"request {request.id}"]
    index = lives.called(name)[0].steps[0]
    page.js(f"goTo({index})")
    page.painted()
    page.page.screenshot(path=str(tmp_path / "names.png"))
    assert page.page.locator("#panel h2").inner_text().startswith(f"request {name} (row {request.id})")
    page.js(f"goTo({lives.steps_of('job', load.id)[0]})")
    assert f"for request {name} (row {request.id})" in page.page.locator("#panel").inner_text()
    step = lives.step(index)
    page.js(f"look_at({step.n} - 8, {step.n} + 8)")
    page.page.mouse.move(*page.where(f"request {step.id}", step.n + 0.1))
    assert f"request {name} (row {step.id})" in page.page.locator("#tip").inner_text()
    page.page.fill("#request", "nobody")
    assert "no such request" in page.page.locator("#problem").text_content()


@browsing
def test_page_runs_no_name_of_a_client(folder: Path, run: Made, opening: Any) -> None:
    """Markup in a name is text, signs that steer a terminal are question marks, and what is long is cut."""
    evil = "<img src=x onerror=alert(1)>"
    lines = run.recording.read_text(encoding="utf-8").splitlines()
    name = run.lives.names[min(run.lives.names)]
    evils = [line.replace(f'"name":"{name}"', f'"name":{json.dumps(evil + chr(0x202E) + "x" * 100)}') for line in lines]
    page = opening(made(folder, "evil", evils).page)
    page.js(f"goTo({min(run.lives.names)})")
    page.painted()

    assert f"request {evil}?xxx" in page.page.locator("#panel h2").inner_text()
    assert "…" in page.page.locator("#panel h2").inner_text()
    assert page.js("document.querySelectorAll('img').length") == 0


@browsing
def test_page_tells_what_lies_under_the_cursor(run: Made, opening: Any) -> None:
    """The tooltip names the place and its state, and the diagram follows; outside it is gone."""
    page, lives = opening(run.page), run.lives
    step = lives.step(lives.steps_of("slot", 1)[0])
    page.js(f"look_at({step.n} - 8, {step.n} + 8)")
    page.page.mouse.move(*page.where(step.place, step.n + 0.1))
    tip = page.page.locator("#tip")

    assert f"{step.place} {step.target}" in tip.inner_text()
    assert f"since {step.event}" in tip.inner_text()
    assert page.js("seen.tab") == 1
    page.page.mouse.move(600, 5)
    assert not tip.is_visible()


@browsing
def test_page_keeps_the_commits_in_sight_when_the_axis_changes(run: Made, opening: Any) -> None:
    """Commits, plans and time are three scales of the same run; the plan of every commit stands where the axis says."""
    page = opening(run.page)
    page.js("look_at(200, 260)")
    for axis in ("plans", "time", "commits"):
        page.page.click(f"[data-axis={axis}]")
        edges = page.js("[above(run.axes[seen.axis], seen.from + 1e-6) - 1, above(run.axes[seen.axis], seen.to - 1e-6) - 1]")
        assert page.js(f"run.n[{edges[0]}]") == pytest.approx(200, abs=1)
        assert page.js(f"run.n[{edges[1]}]") == pytest.approx(260, abs=1)

    assert page.js("run.axes.plans.every((at, i) => i === run.commits || Math.floor(at) === run.plan[i])")
    assert page.js("['plans', 'time', 'commits'].every((axis) => run.axes[axis].every((at, i, all) => !i || at > all[i - 1]))")


@browsing
def test_page_without_times_has_no_axis_of_time(folder: Path, run: Made, opening: Any) -> None:
    """A recording that tells no time is shown by commits and plans alone."""
    lines = [line for line in run.recording.read_text(encoding="utf-8").splitlines() if '"at"' not in line]
    page = opening(made(folder, "timeless", lines).page)

    assert page.js("Object.keys(run.axes)") == ["commits", "plans"]


@browsing
def test_page_folds_a_group_into_its_counts(run: Made, opening: Any) -> None:
    """A click on a heading hides the lanes; the counts that stand there instead are those of the recording."""
    page = opening(run.page)
    box = page.page.locator("#lanes").bounding_box()
    page.page.mouse.click(box["x"] + 40, box["y"] + 34)
    assert not [name for name in page.shown() if name.startswith("block")]
    assert page.js("seen.rows[1].kind") == "sum"

    n = run.lives.n[len(run.lives) // 2]
    counts = page.js(f"Array.from(counted({{...scene(), from: {n}, to: {n + 0.5}}}, 0, 1)).slice(0, run.states[0])")
    names = page.js("run.machines[0].states.map((state) => state.name)")
    stands = [run.state("block", place, n) or "FREED" for machine, place in run.lives.places if machine == "block"]

    assert dict(zip(names, counts, strict=True)) == {name: stands.count(name) for name in names}


def busiest(lives: Lives, low: int = 0) -> dict[str, int]:
    """How many places of each machine were at most neither new nor over behind one commit, from step *low* on."""
    stands: dict[tuple[str, int], str] = {}
    found = dict.fromkeys(MACHINES, 0)
    rest = {name: {table.initial.name, *(state.name for state in table.finals)} for name, table in MACHINES.items()}
    count: Counter[str] = Counter()
    for index in range(len(lives)):
        step = lives.step(index)
        count[step.machine] -= stands.get((step.machine, step.id), step.source) not in rest[step.machine]
        count[step.machine] += step.target not in rest[step.machine]
        stands[step.machine, step.id] = step.target
        if index >= low - 1 and (index + 1 == len(lives) or lives.n[index + 1] != step.n):
            found = {name: max(most, count[name]) for name, most in found.items()}
    return found


_PEAKS = """
(() => {
  const positions = run.axes.commits;
  const scene = {run, positions, axis: "commits", from: positions[0], to: positions[run.commits]};
  return run.machines.map((machine, m) => [1, 7, 200].map((wide) => {
    const counts = counted(scene, m, wide);
    const sums = Array.from({length: wide}, (_, x) => machine.states.reduce(
      (sum, state, i) => sum + (state.initial || state.final ? 0 : counts[x * machine.states.length + i]), 0));
    return Math.max(...sums);
  }));
})()
"""


@browsing
def test_overview_tells_the_most_that_ever_were_busy(folder: Path, run: Made, opening: Any, tmp_path: Path) -> None:
    """In a run of a few steps whose peak lies between its ends, in one of some thousand, and in a part of it."""
    short = io.StringIO()
    ledger = make_ledger(requests=())
    Recorder(short).begin(ledger)
    for request in ("a", "b"):
        ledger.add_request(request)
        ledger.allocate(request, 2)
    for request in ("a", "b"):
        ledger.finish(request)
    part, plan = tmp_path / "part.html", run.lives.plans[1] // 2
    assert main(["recording", "view", str(run.recording), "-o", str(part), "--plans", f"{plan}-{run.lives.plans[1]}"]) == 0
    low = next(index for index, each in enumerate(run.lives.plan) if each >= plan)
    brief = made(folder, "brief", short.getvalue().splitlines())

    for made_page, start in ((brief, 0), (run, 0), (Made(run.recording, part, run.lives), low)):
        page, wanted = opening(made_page.page), list(busiest(made_page.lives, start).values())
        assert page.js("Array.from(run.most)") == wanted
        assert page.js(_PEAKS) == [[most] * 3 for most in wanted]
    assert busiest(brief.lives)["block"] == 4


_WORDS_OF_OVERVIEW = """
(() => {
  const told = [], fill = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, most = Infinity) {
    const wide = Math.min(most, this.measureText(text).width);
    told.push([text, this.textAlign === "right" ? x - wide : x, this.textAlign === "right" ? x : x + wide]);
    fill.call(this, text, x, y, most);
  };
  run.most.fill(1234567);
  overviewImage = null;
  paintOverview();
  CanvasRenderingContext2D.prototype.fillText = fill;
  return told;
})()
"""


@browsing
def test_overview_has_its_words_left_of_the_frame(run: Made, opening: Any) -> None:
    """The name and the number of each machine, however large, lie beside each other and not below the frame."""
    page = opening(run.page)
    told, gutter = page.js(_WORDS_OF_OVERVIEW), page.js("GUTTER")

    assert [text for text, _, _ in told] == [text for name in MACHINES for text in (f"{name}s", "≤ 1,234,567")]
    for (_, _, ends), (_, begins, last) in zip(told[::2], told[1::2], strict=True):
        assert ends < begins < last < gutter - 2  # the frame is a line of 1.5


@browsing
def test_page_says_why_it_has_lists_instead_of_diagrams(
    run: Made, opening: Any, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Graphviz there is a list of states, and above it what to install; with it there is no such word."""
    page = tmp_path / "list.html"
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    assert main(["recording", "view", str(run.recording), "-o", str(page)]) == 0
    why = opening(page).page.locator("#diagram p").inner_text()

    assert why.startswith("No diagrams, lists instead: drawing svg needs pygraphviz")
    assert to_install("draw") in why
    assert why[1:].rstrip(".") in capsys.readouterr().err
    if find_spec("pygraphviz"):
        assert run.said["undrawn"] == ""


@browsing
def test_page_marks_what_is_not_legal_and_what_was_refused(damaged: Made, opening: Any, tmp_path: Path) -> None:
    """The banner names the first illegal line and leads to it; lane and overview are red there; refusals are shown."""
    page = opening(damaged.page)
    banner = page.page.locator("#banner")
    violation = damaged.said["violation"]
    step = damaged.lives.step(violation["step"])
    assert f"line {violation['line']:,}" in banner.inner_text()
    assert step.line == violation["line"]
    assert step.event == "drop"

    page.page.click("#banner button")
    page.painted()
    page.page.screenshot(path=str(tmp_path / "violation.png"))
    assert page.js("seen.selected") == violation["step"]
    assert "there is no row" in page.page.locator("#panel").inner_text()
    assert "the table has no such row" in page.page.locator("#panel").inner_text()
    x, y = page.where(step.place, step.n)
    assert page.js("look.alarm") in page.colours(x, y, 4, 10)
    red = page.js(
        "(() => { const copy = document.createElement('canvas'); copy.width = find('overview').width;"
        "const context = copy.getContext('2d', {willReadFrequently: true}); context.drawImage(find('overview'), 0, 0);"
        "const data = context.getImageData(0, 0, copy.width, 80).data; let red = 0;"
        "for (let i = 0; i < data.length; i += 4) red += data[i] > 180 && data[i + 1] < 60 && data[i + 2] < 60;"
        "return red; })()"
    )
    assert red > 20
    assert page.js("[...run.refusals.values()].flat().length") == len(damaged.lives.refused) >= 10
    refusal = damaged.lives.refused[0]
    page.js("look_at(...limits())")
    at = page.js(f"run.axes.commits[run.commit[{refusal.index}]]")
    page.js(f"look_at({at} - 6, {at} + 6)")
    page.page.mouse.move(*page.where(f"block {refusal.id}", at))
    assert f"refused: seal in {refusal.state}" in page.page.locator("#tip").inner_text()


@browsing
def test_page_shows_what_no_table_knows_and_runs_none_of_it(folder: Path, run: Made, opening: Any) -> None:
    """Machines, states and events that nobody knows are shown by their names, which are text and never markup."""
    evil = "<img src=x onerror=alert(1)>"
    lines = run.recording.read_text(encoding="utf-8").splitlines()[:-1]
    n, plan = run.lives.n[-1] + 1, run.lives.plan[-1]
    odd = {"n": n, "plan": plan, "machine": evil, "id": 1, "event": evil, "from": evil, "to": "</script>", "guard": evil}
    page = opening(made(folder, "odd", [*lines, json.dumps(odd)]).page)
    page.page.click("#banner button")

    assert evil in page.page.locator("#panel h2").inner_text()
    assert "</script>" in page.page.locator("#panel").inner_text()
    page.page.mouse.move(*page.where(f"{evil} 1", n + 0.5))
    assert evil in page.page.locator("#tip").inner_text()
    assert page.js("document.querySelectorAll('img').length") == 0


@browsing
def test_page_of_other_plans_says_that_the_run_is_not_legal(damaged: Made, opening: Any, tmp_path: Path) -> None:
    """What is illegal outside the plans that are shown is told, and marked nowhere."""
    page = tmp_path / "part.html"
    assert main(["recording", "view", str(damaged.recording), "-o", str(page), "--plans", "0-20"]) == 0
    shown = opening(page)

    assert "outside the plans" in shown.page.locator("#banner").inner_text()
    assert shown.page.locator("#banner button").count() == 0


@browsing
@pytest.mark.sampled
@pytest.mark.parametrize("size", [(1280, 800), (1024, 600), (700, 900)], ids=["laptop", "small", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_the_window(run: Made, opening: Any, size: tuple[int, int], scheme: str, tmp_path: Path) -> None:
    """Nothing sticks out of the window, lanes and panel have room, the theme is the system's; a lawful run raises no alarm."""
    page = opening(run.page, viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce")
    page.page.screenshot(path=str(tmp_path / f"{scheme}.png"))
    ground = page.js("getComputedStyle(document.body).backgroundColor")
    box = page.page.locator("#lanes").bounding_box()

    assert page.js("document.documentElement.scrollWidth") <= size[0]
    assert page.js("document.documentElement.scrollHeight") <= size[1]
    assert box["height"] >= 120
    assert page.page.locator("#panel").bounding_box()["height"] >= 100
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert page.js("look.dark") == (scheme == "dark")
    assert not page.page.locator("#banner").is_visible()
    assert page.js("run.broken.length") == 0
