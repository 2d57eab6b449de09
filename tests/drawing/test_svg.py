"""Is a drawing well-formed, readable, the same each time, and does it say what it shows?

Method: the SVG is read with a real XML parser, and its words, ids, boxes and colours are compared with the tables.
"""

from __future__ import annotations

import itertools
import re
import struct
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklife.drawing import Emphasis, Mark, Marks, Panel, Picture, Theme, picture, png, svg
from blocklife.drawing import _elements as elements
from blocklife.drawing._picture import Arrow, Label, Node
from blocklife.drawing._png import SCALE
from blocklife.drawing._svg import row_told, slug
from blocklife.drawing._theme import Tint
from blocklife.lifecycle import Tone
from blocklife.states import COUPLINGS, MACHINES

ROOT = Path(__file__).parents[2]
NS = {"svg": "http://www.w3.org/2000/svg"}

every_machine = pytest.mark.parametrize("name", MACHINES)


def panel_of(name: str, marks: Marks | None = None, *, alone: bool = False) -> Panel:
    drawn = picture(MACHINES[name], name, () if alone else COUPLINGS)
    return Panel(drawn) if marks is None else Panel(drawn, marks)


def read(drawn: str) -> ET.Element:
    return ET.fromstring(drawn)


def words_of(element: ET.Element) -> list[str]:
    return ["".join(each.itertext()) for each in element.iter(f"{{{NS['svg']}}}text")]


def of_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [each for each in root.iter() if name in (each.get("class") or "").split()]


# --- what is shown -----------------------------------------------------------------------------------------------------


def test_svg_tells_what_a_row_is_about() -> None:
    """The tooltip has the arrow, the event, the guard and the couplings in words."""
    panel = panel_of("block")
    arrow = next(each for each in panel.picture.arrows if (each.source, each.target) == ("IN_FLIGHT", "FLUSHED"))
    told = row_told(panel, arrow, arrow.labels[0]).splitlines()

    assert told[0].endswith("IN_FLIGHT → FLUSHED")
    assert told[1] == "allocate: Hand the place to a new tenant."
    assert told[2] == "[lendable]: The contract is fence, nobody holds the life, and no load writes the place."
    assert [line.partition(":")[0] for line in told[3:]] == ["causes life-ends", "causes hand-out-flushes"]


def test_svg_numbers_couplings_on_labels_as_in_the_legend() -> None:
    """Every number that a label has stands below with the name of its coupling, and a tooltip tells the rest."""
    panel = panel_of("block")
    root = read(svg([panel]))
    entries = of_class(root, "bl-coupling")

    assert [each.get("data-coupling") for each in entries] == [each.name for each in panel.picture.couplings]
    for entry, coupling in zip(entries, panel.picture.couplings, strict=True):
        assert words_of(entry)[1] == coupling.name
        tooltip = entry.findtext("svg:title", "", NS)
        assert coupling.why in tooltip
        assert all(effect in tooltip for effect in coupling.effects)
    shown = {text.text for text in of_class(root, "bl-number")}
    assert {str(number) for number in range(1, len(entries) + 1)} <= shown


@every_machine
@pytest.mark.parametrize("alone", [False, True], ids=["coupled", "alone"])
def test_svg_of_one_machine_fits_a_screen(name: str, alone: bool) -> None:
    """It can be read as a whole: 1,200 pixels are the most that stand below each other on a screen."""
    height = float(read(svg([panel_of(name, alone=alone)])).get("height", "inf"))

    assert height <= 1200, (
        f"the drawing of {name} is {height:.0f} pixels high (fewer states, or a denser blocklife/drawing/_layout.py)"
    )


def test_colours_have_one_home() -> None:
    """No file of the package but one names a colour; text on a state is black or white, as its own script computes."""
    package = ROOT / "blocklife"
    files = [path for ending in ("py", "css", "js", "html") for path in package.rglob(f"*.{ending}")]
    named = {str(path.relative_to(package)) for path in files if re.search(r"#[0-9a-fA-F]{6}\b", path.read_text("utf-8"))}

    assert named == {"drawing/_theme.py", "drawing/viewer/paint.js"}


def test_svg_of_several_machines_has_a_titled_panel_for_each() -> None:
    """Panels stand apart, inside the drawing, and every id is there once."""
    root = read(svg([panel_of(name) for name in MACHINES]))
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    titles = [each.text for each in of_class(root, "bl-head1")]

    assert titles == list(MACHINES)
    assert len(ids) == len(set(ids))
    boxes = []
    for group in root.findall("svg:g", NS):
        rect = group.find("svg:rect[@class='bl-panel']", NS)
        if rect is not None:
            x, y = map(float, re.findall(r"[\d.]+", group.get("transform", "")))
            boxes.append((x, y, x + float(rect.get("width", "")), y + float(rect.get("height", ""))))
    assert len(boxes) == len(MACHINES)
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert all(box[0] >= 0 and box[2] <= width and box[3] <= height for box in boxes)


def test_svg_can_be_read_aloud() -> None:
    """It is an image with a title and a description that an aid can find."""
    root = read(svg([panel_of("job")]))
    ids = {each.get("id"): each.text or "" for each in root.iter() if each.get("id")}
    title, about = root.get("aria-labelledby", "").split()

    assert root.get("role") == "img"
    assert ids[title] == "Lifecycle: job"
    assert "begins in PLANNED and ends in DONE, FAILED, CANCELLED" in ids[about]


@every_machine
def test_svg_fetches_nothing_and_runs_nothing(name: str) -> None:
    root = read(svg([panel_of(name)]))

    assert not {each.tag.partition("}")[2] for each in root.iter()} & {"script", "image", "use", "foreignObject", "a"}
    assert not [key for each in root.iter() for key in each.attrib if key.endswith("href") or key.startswith("on")]
    assert "url(" not in svg([panel_of(name)])


# --- marks -------------------------------------------------------------------------------------------------------------


def test_svg_shows_marks_on_rows_arrows_and_states() -> None:
    """An arrow looks like the strongest mark of its rows; notes stand beside them; the legend explains what is used."""
    drawn = picture(MACHINES["slot"], "slot", COUPLINGS)
    row = {(arrow.source, arrow.target): arrow.labels[0].row for arrow in drawn.arrows}
    marks = Marks(
        "taken in a run",
        {"READY": Mark(Emphasis.ALARM, "17 places", "too many")},
        {
            row["EMPTY", "WRITING"]: Mark(Emphasis.USED, "×12", "a lot", 1.0),
            row["WRITING", "QUARANTINED"]: Mark(Emphasis.UNUSED),
            row["WRITING", "EMPTY"]: Mark(Emphasis.ALARM),
        },
        ["One more thing."],
    )
    root = read(svg([Panel(drawn, marks)]))
    arrows = {(each.get("data-source"), each.get("data-target")): each for each in of_class(root, "bl-arrow")}

    def classes(source: str, target: str) -> set[str]:
        return {name for path in arrows[source, target].findall("svg:path", NS) for name in (path.get("class") or "").split()}

    assert "bl-used" in classes("EMPTY", "WRITING")
    assert "stroke-width:4.2" in [path.get("style") for path in arrows["EMPTY", "WRITING"].findall("svg:path", NS)]
    assert "bl-unused" in classes("WRITING", "QUARANTINED")
    assert "bl-alarm" in classes("WRITING", "EMPTY"), "the stronger of its two rows"
    assert "bl-plain" in classes("READY", "EMPTY")
    ready = next(each for each in of_class(root, "bl-state") if each.get("data-state") == "READY")
    assert "17 places" in words_of(ready)
    assert "17 places: too many" in (ready.findtext("svg:title", namespaces=NS) or "")
    legend = " ".join(words_of(of_class(root, "bl-legend")[0]))
    for said in (
        "taken in a run",
        "One more thing.",
        *(each.value for each in Emphasis if each is not Emphasis.PLAIN),
    ):
        assert said in legend


odd = st.text(st.characters(codec="utf-8"), max_size=12)


@settings(max_examples=40, deadline=None)
@given(odd.filter(bool), odd.filter(bool), odd, odd)
def test_svg_holds_whatever_a_name_holds(state: str, event: str, guard: str, about: str) -> None:
    """Any text is well-formed XML, in the drawing and in its tooltips."""
    label = Label(1, event, guard)
    drawn = Picture(about, about, (Node(state, about, True, True),), (Arrow(state, state, (label,)),))
    root = read(svg([Panel(drawn, Marks(about, {state: Mark(Emphasis.USED, guard, about)}, {}, [about]))]))

    assert len(of_class(root, "bl-state")) == 1


def test_escaped_text_survives_a_parser() -> None:
    """What XML can hold comes back as it was; what it cannot is replaced."""
    text = "a<b & \"c\" > 'd' \N{SNOWMAN}"

    assert ET.fromstring(f'<a b="{elements.escaped(text)}">{elements.escaped(text)}</a>').text == text
    assert elements.escaped("\x00\x1b\ud800") == "\ufffd" * 3
    assert slug("my module:Door") == "my-module-Door"


# --- colours -----------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """As WCAG defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", Theme, ids=lambda theme: theme.name.lower())
def test_theme_has_text_that_can_be_read(theme: Theme) -> None:
    """4.5 to 1 for text on all that it stands on; what never happened may be fainter, though not gone."""
    palette = theme.value
    tints: list[tuple[Tone | Emphasis, Tint]] = [*palette.tones.items(), *palette.emphases.items()]

    for colour in (palette.text, palette.faint, palette.guard):
        assert contrast(colour, palette.ground) >= 4.5
        assert contrast(colour, palette.panel) >= 4.5
    for which, tint in tints:
        least = 3.5 if which is Emphasis.UNUSED else 4.5
        assert contrast(tint.text, palette.panel) >= least, which
        assert contrast(tint.text, tint.fill) >= least, which
        assert contrast(palette.guard, tint.fill) >= least, which
    assert set(palette.tones) == set(Tone)
    assert set(palette.emphases) == set(Emphasis)


def test_svg_follows_the_reader_or_a_theme() -> None:
    """Without a theme both sets of colours are there, one for readers in the dark; with one only its own."""
    both, dark = svg([panel_of("slot")]), svg([panel_of("slot")], Theme.DARK)

    assert "@media (prefers-color-scheme:dark)" in both
    assert Theme.LIGHT.value.ground in both
    assert Theme.DARK.value.ground in both
    assert "@media" not in dark
    assert Theme.LIGHT.value.ground not in dark


# --- pixels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", Theme, ids=lambda theme: theme.name.lower())
def test_png_has_the_size_of_the_drawing_and_is_not_blank(theme: Theme) -> None:
    """What it shows is that of the SVG; letters have soft edges, so that hardly two lines are the same."""
    panel = Panel(picture(MACHINES["request"], "request"))
    root, data = read(svg([panel], theme)), png([panel], theme)
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    pixels = zlib.decompressobj().decompress(data[start + 4 : start + 4 + length])
    lines = {pixels[at : at + 4 * width + 1] for at in range(0, len(pixels), 4 * width + 1)}

    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert width == pytest.approx(float(root.get("width", "")) * SCALE, abs=2)
    assert height == pytest.approx(float(root.get("height", "")) * SCALE, abs=2)
    assert len(lines) > height / 4


def test_png_is_the_same_each_time_and_light_without_a_theme() -> None:
    panel = panel_of("slot", alone=True)

    assert png([panel]) == png([panel]) == png([panel], Theme.LIGHT)
    assert png([panel]) != png([panel], Theme.DARK)
