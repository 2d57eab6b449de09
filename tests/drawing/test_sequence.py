"""A sequence diagram says what a story says, in Mermaid of its own statements, and in SVG in which no text meets another.

Goal: who sees the diagram sees every step, and can read every word. Method: the mapping is held against the tables of the four
machines; diagrams of a recorded run are taken apart again, Mermaid statement by statement, and SVG by an XML parser, and the
boxes of all texts are measured.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from attrs import frozen

from blocklife.drawing import Theme
from blocklife.drawing._messages import (
    ENTRIES_DRAWN_MAX,
    LEDGER,
    PARTIES,
    SAID,
    _asked,
    diagram,
    said,
)
from blocklife.drawing._sequence import Band, Item, Message, Note, Party, PartySequence, Way, mermaid
from blocklife.drawing._sequence_svg import SIZE, TITLE_SIZE, svg
from blocklife.drawing._text_width import prose_width
from blocklife.ledger import GroupTransfer, Store
from blocklife.lifecycle import Tone
from blocklife.recording import Lives, Recorder, open_recording
from blocklife.recording._lives import RecordedStep
from blocklife.recording._story import ENTRIES_MAX, Fold, folded
from blocklife.states import MACHINES
from tests.recordings import read, recorded
from tests.worlds import keys, make_ledger, ready, report, sealed, store

STATEMENT = re.compile(
    r"sequenceDiagram"
    r"|    participant (?P<key>\w+) as (?P<name>[^;:#\n]+)"
    r"|    (?P<source>\w+)(?P<way>->>|-->>|--x)(?P<target>\w+): (?P<text>(?:[^;#\n]|#\d+;)+)"
    r"|    Note over (?P<over>\w+(?:,\w+)?): (?P<note>(?:[^;#\n]|#\d+;)+)"
)
"""A line of a sequence diagram: a text ends at a semicolon and has no number sign, unless they write an entity."""

TWO = (Party("A", "one"), Party("B", "the other"))
NASTY = "end; #1 <b>&\"' %% :: -->> loop\u2192 \x01\ud800 {[("


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    """A run in which copies fail, hang and come late, and clients go away."""
    path = tmp_path_factory.mktemp("sequence") / "run.jsonl"
    recorded(path, prompts=1_500, seed=3, abort=0.2)
    return read(path)


def drawn(lives: Lives) -> Iterator[PartySequence]:
    """Diagrams of all requests and of many other places."""
    for number, (machine, place) in enumerate(lives.places):
        if machine == "request" or number % 29 == 0:
            yield diagram(lives, lives.place(machine, place), f"{machine} {place}")


# --- what is said ------------------------------------------------------------------------------------------------------


def test_mapping_names_events_and_says_more_than_their_names() -> None:
    """A key of the mapping is an event; one that is only asked for by its name needs no row."""
    events = {f"{name}.{event}" for name, table in MACHINES.items() for event in table.events}

    assert {key.partition(",")[0] for key in SAID} <= events
    assert [key for key, sayings in SAID.items() if sayings == _asked(key.partition(".")[2])] == []


def test_mapping_has_sentences_between_two_parties() -> None:
    """Each asks for nothing but the place, the job and its size, and nobody speaks to himself."""
    for each in itertools.chain.from_iterable(SAID.values()):
        fields = {name for _, name, _, _ in string.Formatter().parse(each.text) if name is not None}
        assert fields <= {"place", "job", "size"}
        assert each.source is not each.target
        assert {each.source, each.target} <= set(PARTIES)


def test_step_in_no_table_is_asked_of_the_ledger() -> None:
    """What another writer calls its events is said as it stands."""
    step = RecordedStep(0, 2, 1, 0, None, "lake", 7, "freeze", "WATER", "ICE", None, None, None, None, "")
    (only,) = said(step)

    assert (only.target, only.text) == (LEDGER, "freeze {place}")


def test_diagram_tells_every_step_once(lives: Lives) -> None:
    """Each change of a place stands in one note, in the order of the file, unless a fold counts it."""
    for machine, place in lives.places[::17]:
        if machine == "job":
            continue
        found = lives.place(machine, place)[:1]
        items = diagram(lives, found).items
        lines = [
            line
            for item in items
            if isinstance(item, Note)
            for line in item.lines
            if line.startswith(lives.step(found[0].steps[0]).place)
        ]
        entries = folded(lives, found[0].steps)
        steps = [lives.step(each) for each in entries if isinstance(each, int)]
        if found[0].end is not None and found[0].end not in found[0].steps:
            steps.append(lives.step(found[0].end))
        expected = [f"stays {s.source}" if s.source == s.target else f"{s.source} \u2192 {s.target}" for s in steps]
        assert len(lines) == len(expected)
        assert all(text in line for text, line in zip(expected, lines, strict=True))
        assert sum(isinstance(each, Fold) for each in entries) == sum(isinstance(item, Band) and item.faint for item in items)


def test_diagram_of_a_job_takes_its_places_together(lives: Lives) -> None:
    """One line says how many blocks take a step; the numbers add up to all of them."""
    job = max(lives.jobs(), key=lambda each: len(each.blocks) if each.kind == "store" and each.state == "DONE" else 0)
    items = diagram(lives, lives.place("job", job.id)).items
    lines = [line for item in items if isinstance(item, Note) for line in item.lines]
    submitted = [line for line in lines if line.endswith("PENDING_STORE \u2192 IN_FLIGHT")]
    told = [item.text for item in items if isinstance(item, Message)]

    assert submitted == [f"{len(job.blocks)} blocks: PENDING_STORE \u2192 IN_FLIGHT"]
    assert told.count(f"plan store {job.id} ({len(job.blocks)} blocks)") == 1
    assert f"dispatch store {job.id}" in told


def test_diagram_of_a_job_leaves_out_no_step_of_its_places(lives: Lives) -> None:
    """Each of its places goes on in the diagram from where it was left, from its reservation to the step that lets go."""
    count = 0
    for job in lives.jobs():
        stands: dict[int, str] = {}
        for step in map(lives.step, job.moves):
            at = lives.at[step.index]
            assert stands.get(at, step.source) == step.source, (job.label, step)
            stands[at] = step.target
        items = diagram(lives, lives.place("job", job.id)).items
        lines = [line for item in items if isinstance(item, Note) for line in item.lines]
        for kind in {lives.kinds[lives.kind[index]] for index in job.between}:
            assert any(f"{kind.source} \u2192 {kind.target}" in line for line in lines), (job.label, kind)
            count += 1
    assert count > 10


def test_diagram_of_a_job_tells_what_others_did_to_its_places(tmp_path: Path) -> None:
    """A seal of what was pledged, and a hand-out under the copy; what comes behind the landing is no more its own."""
    ledger = make_ledger(requests=(), num_blocks=3)
    path = tmp_path / "small.jsonl"
    with path.open("w") as stream:
        Recorder(stream).begin(ledger)
        ledger.add_request("a")
        ledger.admit("a")
        blocks = ledger.allocate("a", 2)
        (job,) = ledger.plan_store(Store.of(blocks, [0, 1], keys("x", "y"))).ids
        ledger.seal(blocks, keys("x", "y"))
        ledger.dispatch(0.0)
        ledger.finish("a")
        ledger.add_request("b")
        ledger.allocate("b", 1)
        ledger.complete(report(job))
        ledger.finish("b")
    with open_recording(str(path)) as recording:
        small = Lives.of(recording)
    items = diagram(small, small.place("job", 1)).items
    lines = [line for item in items if isinstance(item, Note) for line in item.lines]
    assert "seal 2 blocks" in [item.text for item in items if isinstance(item, Message)]
    assert [line for line in lines if "block" in line] == [
        "2 blocks: ALLOCATED \u2192 PLEDGED",
        "2 blocks: PLEDGED \u2192 PENDING_STORE",
        "2 blocks: PENDING_STORE \u2192 IN_FLIGHT",
        "block 1: IN_FLIGHT \u2192 FLUSHED [lendable]",
        "block 1: FLUSHED \u2192 ALLOCATED",
        "block 2: IN_FLIGHT \u2192 CACHED",
    ]


def test_diagram_says_the_cause_before_its_effects(lives: Lives) -> None:
    """What a coupling brings stands behind the message that began it, in the very note of its job."""
    block = next(place for machine, place in lives.places if machine == "block" and lives.place("block", place)[0].jobs)
    items = list(diagram(lives, lives.place("block", block)[:1]).items)
    note = next(
        item for item in items if isinstance(item, Note) and any("PENDING_STORE \u2192 IN_FLIGHT" in e for e in item.lines)
    )
    before, after = items[items.index(note) - 1], items[items.index(note) + 1]

    assert note.lines[0].endswith("PLANNED \u2192 IN_FLIGHT")
    assert isinstance(before, Message)
    assert isinstance(after, Message)
    assert (before.text.split()[0], after.text.split()[0]) == ("dispatch", "copy")


def test_diagram_tells_what_happened_elsewhere_where_that_is_the_cause(tmp_path: Path) -> None:
    """The drop of its source cancels a store: its slot's diagram says so. A request that gives up comes before its load."""
    ledger = make_ledger(requests=(), num_blocks=3)
    path = tmp_path / "small.jsonl"
    with path.open("w") as stream:
        Recorder(stream).begin(ledger)
        ledger.add_request("a")
        ledger.admit("a")
        source = sealed(ledger, "a", keys("x"))
        store(ledger, source, keys("x"), 2)
        ledger.release("a", [0])
        ledger.drop(source.lives)
        ready(ledger)
        ledger.add_request("b")
        (job,) = ledger.plan_load("b", GroupTransfer(ledger.allocate("b", 1), [0])).ids
        ledger.dispatch(0.0)
        ledger.finish("b")
    with open_recording(str(path)) as recording:
        small = Lives.of(recording)
    slot = [item for item in diagram(small, small.place("slot", 2)).items if not isinstance(item, Band)]
    said_of_load = [item.text for item in diagram(small, small.place("job", job.number)).items if isinstance(item, Message)]

    assert [item.text for item in slot if isinstance(item, Message)] == ["plan store 1 (1 block)", "drop block 1"]
    assert isinstance(slot[-1], Note)
    assert slot[-1].lines == (
        "block 1: PENDING_STORE \u2192 FREED [idle]",
        "store 1: PLANNED \u2192 CANCELLED",
        "slot 2: WRITING \u2192 EMPTY",
    )
    assert said_of_load[-1] == "finish request b"
    assert "abandon load 3" not in said_of_load


def test_diagram_leaves_out_what_is_too_much(lives: Lives) -> None:
    """Older lives are counted, not drawn; the latest one is always there."""
    chosen = max(lives.places, key=lambda each: len(lives.place(*each)))
    found = lives.place(*chosen)
    items = diagram(lives, found).items
    bands = [item.text for item in items if isinstance(item, Band) and not item.faint]

    assert isinstance(items[0], Band)
    assert items[0].text == f"{len(found) - len(bands)} older lives not shown"
    assert 1 <= len(bands) < len(found)
    assert bands[-1].startswith(f"life {len(found)}")
    assert sum(isinstance(item, Note) for item in items) <= ENTRIES_DRAWN_MAX + 1


def test_long_lives_are_folded_with_a_count(lives: Lives) -> None:
    """A row of loops becomes one line, and so does the middle of what is still too long; no step is lost."""
    everything = list(range(len(lives)))
    stories = [life.steps for machine, place in lives.places for life in lives.place(machine, place)]
    for steps in (*stories, everything):
        entries = folded(lives, steps)
        unfolded = [index for each in entries for index in (each.steps if isinstance(each, Fold) else (each,))]
        assert unfolded == list(steps)
        assert len(entries) <= ENTRIES_MAX + 1
    (middle,) = [each for each in folded(lives, everything) if isinstance(each, Fold) and len(each.steps) > len(lives) / 2]
    loops = [each for steps in stories for each in folded(lives, steps) if isinstance(each, Fold) and " in " in each.text]

    assert sum(int(each.replace(",", "")) for each in re.findall(r"([\d,]+) [a-z]", middle.text)[1:]) == len(middle.steps)
    assert loops
    for each in loops:
        kinds = {lives.kinds[lives.kind[index]] for index in each.steps}
        assert len({state for kind in kinds for state in (kind.source, kind.target)}) == 1


# --- Mermaid -------------------------------------------------------------------------------------------------------------


def parsed(text: str) -> list[re.Match[str]]:
    found = []
    for line in text.splitlines():
        match = STATEMENT.fullmatch(line)
        assert match, line
        found.append(match)
    assert found[0].group() == "sequenceDiagram"
    return found


def unescaped(text: str) -> str:
    return re.sub(r"#(\d+);", lambda each: chr(int(each.group(1))), text)


def test_sequence_has_the_parties_that_take_part(lives: Lives) -> None:
    """In their order; none without a message or a note, but the ledger; and not all stories need the same ones."""
    told = list(drawn(lives))
    for sequence in told:
        named = {LEDGER.key}
        for item in sequence.items:
            if isinstance(item, Message):
                named |= {item.source, item.target}
            elif isinstance(item, Note):
                named |= set(item.over)
        assert sequence.parties == tuple(party for party in PARTIES if party.key in named)
    assert len({sequence.parties for sequence in told}) > 1


def test_mermaid_says_what_the_sequence_says(lives: Lives) -> None:
    """Parties, messages and notes come back as they were, in order; nothing else stands there, and it is ASCII."""
    for sequence in drawn(lives):
        text = mermaid(sequence)
        found = parsed(text)
        messages = [item for item in sequence.items if isinstance(item, Message)]
        told = [each for each in found if each["way"]]
        assert text.isascii()
        assert [(each["key"], each["name"]) for each in found if each["key"]] == [(p.key, p.name) for p in sequence.parties]
        assert [(each["source"], each["target"], each["way"]) for each in told] == [
            (item.source, item.target, item.way.value) for item in messages
        ]
        assert all(unescaped(each["text"]).endswith(item.text) for each, item in zip(told, messages, strict=True))
        notes = [unescaped(each["note"]).split("<br/>") for each in found if each["note"]]
        lines = [
            list(item.lines) if isinstance(item, Note) else [item.text]
            for item in sequence.items
            if not isinstance(item, Message)
        ]
        assert len(notes) == len(lines) + bool(sequence.title)
        for one, other in zip(notes[bool(sequence.title) :], lines, strict=True):
            assert [each.removeprefix(one[0][: len(one[0]) - len(other[0])]) for each in one] == other


def test_mermaid_survives_any_text() -> None:
    """Whatever a recording or a story calls things, every line stays one statement."""
    items = (Message("A", "B", NASTY, Way.LOST, NASTY), Note(("A", "B"), (NASTY, "two")), Band(NASTY))
    found = parsed(mermaid(PartySequence(TWO, items, NASTY)))
    timed = parsed(mermaid(PartySequence(TWO, (Message("A", "B", "x", when="plan 7"),) * 2)))

    assert [unescaped(each["text"]) for each in timed[3:]] == ["plan 7: x", "x"]
    assert len(found) == 7
    assert unescaped(found[4]["text"]).count("loop\u2192") == 2


# --- SVG -----------------------------------------------------------------------------------------------------------------


@frozen
class Box:
    """Where something stands."""

    name: str
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether two boxes share more than an edge."""
        apart = min(self.right, other.right) - max(self.left, other.left)
        return apart > 0.01 and min(self.bottom, other.bottom) - max(self.top, other.top) > 0.01

    def within(self, other: Box) -> bool:
        return (
            other.left <= self.left + 0.01
            and self.right <= other.right + 0.01
            and other.top <= self.top
            and self.bottom <= other.bottom
        )


SVG = "{http://www.w3.org/2000/svg}"


def lines_of(text: str) -> Iterator[Box]:
    """The shafts of all arrows."""
    for each in ET.fromstring(text).iter(f"{SVG}path"):
        if shaft := re.fullmatch(r"M(\S+) (\S+)H(\S+)", each.attrib["d"]):
            start, y, stop = (float(found) for found in shaft.groups())
            yield Box(each.attrib["d"], min(start, stop), y - 0.5, max(start, stop), y + 0.5)


def boxes(text: str) -> tuple[Box, list[Box], list[Box]]:
    """The canvas, all texts and all visible rectangles of a drawing."""
    root = ET.fromstring(text)
    canvas = Box("canvas", *(float(each) for each in root.attrib["viewBox"].split()))
    texts, rects = [], []
    for each in root.iter(f"{SVG}text"):
        name, x, y = each.attrib["class"], float(each.attrib["x"]), float(each.attrib["y"])
        size = TITLE_SIZE if name == "title" else SIZE
        width = prose_width(each.text or "", size)
        left = {"title": x, "when": x - width}.get(name, x - width / 2)
        texts.append(Box(f"{name}: {each.text}", left, y - 0.76 * size, left + width, y + 0.24 * size))
    for each in root.iter(f"{SVG}rect"):
        if each.attrib["class"] != "ground":
            x, y, width, height = (float(each.attrib[key]) for key in ("x", "y", "width", "height"))
            rects.append(Box(each.attrib["class"], x, y, x + width, y + height))
    return canvas, texts, rects


def check_boxes(text: str) -> None:
    """No text meets another or leaves the canvas; one that touches a box lies within it; boxes do not meet, nor do arrows."""
    canvas, texts, rects = boxes(text)
    for one, other in itertools.combinations(texts, 2):
        assert not one.meets(other), (one, other)
    for one, other in itertools.combinations(rects, 2):
        assert not one.meets(other), (one, other)
    for each in (*texts, *rects):
        assert each.within(canvas), each
    for shaft in lines_of(text):
        assert not any(shaft.meets(each) for each in (*texts, *rects)), shaft
    for each in texts:
        assert all(each.within(rect) for rect in rects if each.meets(rect)), each


def test_svg_has_no_overlapping_text(lives: Lives) -> None:
    """Measured with widths that no usual font exceeds."""
    count = 0
    for sequence in drawn(lives):
        check_boxes(svg(sequence))
        count += len(sequence.items)

    assert count > 1000


@pytest.mark.parametrize("parties", [1, 2, 3, 9])
def test_svg_has_no_overlapping_text_whatever_is_said(parties: int) -> None:
    """Long words, long texts, long times; any number of parties, at the edges too."""
    who = tuple(Party(f"P{at}", f"participant {at} with a name that is rather long") for at in range(parties))
    long = "word " * 40 + "W" * 90
    items: list[Item] = []
    for one, other in itertools.permutations([each.key for each in who], 2):
        items.append(Message(one, other, long, Way.LOST, "plan 1000000000"))
        items.append(Message(one, other, "short", Way.ANSWERS, one + other))
    for each in who:
        items += [Note((each.key,), (long, "x"), Tone.TROUBLE, "plan 7"), Band(long), Band("x", faint=True)]
    items.append(Note((who[0].key, who[-1].key), (long,), Tone.OVER))

    check_boxes(svg(PartySequence(who, tuple(items), long)))


def test_svg_overlap_is_found_where_there_is_one() -> None:
    """The check of the boxes can fail: a text that is moved onto the next one is noticed."""
    drawing = svg(PartySequence(TWO, (Message("A", "B", "first"), Message("A", "B", "second")), "title"))
    (y,) = re.findall(r'<text class="text" x="[\d.]+" y="([\d.]+)">second', drawing)
    (other,) = re.findall(r'<text class="text" x="[\d.]+" y="([\d.]+)">first', drawing)

    check_boxes(drawing)
    with pytest.raises(AssertionError):
        check_boxes(drawing.replace(f'y="{other}"', f'y="{y}"'))


def test_svg_says_every_word(lives: Lives) -> None:
    """All that the sequence says stands in the drawing, in order, with an arrow for each message."""
    for sequence in itertools.islice(drawn(lives), 12):
        root = ET.fromstring(svg(sequence))
        words = [
            word
            for each in root.iter(f"{SVG}text")
            if each.attrib["class"] not in ("when", "name", "title")
            for word in (each.text or "").split()
        ]
        expected = [
            word
            for item in sequence.items
            for line in (item.lines if isinstance(item, Note) else (item.text,))
            for word in line.split()
        ]
        assert words == expected
        lines = [each for each in root.iter(f"{SVG}path") if re.fullmatch(r"M\S+ \S+H\S+", each.attrib["d"])]
        assert len(lines) == sum(isinstance(item, Message) for item in sequence.items)


def test_svg_arrows_lead_from_one_party_to_the_other() -> None:
    """An arrow begins at the lifeline of who speaks, and its head is at the other one; what is lost ends before it."""
    ways = [Message("A", "B", "x"), Message("B", "A", "x", Way.ANSWERS), Message("A", "B", "x", Way.LOST)]
    root = ET.fromstring(svg(PartySequence(TWO, tuple(ways))))
    paths = {
        name: [each.attrib["d"] for each in root.iter(f"{SVG}path") if each.attrib["class"] == name]
        for name in ("lifeline", "head")
    }
    left, right = (float(re.split("[M ]", each)[1]) for each in paths["lifeline"])
    starts = [float(each.attrib["d"][1:].split()[0]) for each in root.iter(f"{SVG}path") if "H" in each.attrib["d"]]

    assert starts == [left, right, left]
    assert [float(each[1:].split()[0]) for each in paths["head"]] == [right]


def test_svg_survives_any_text() -> None:
    """Characters that XML cannot have are replaced; markup stays text; nothing but ASCII is written."""
    text = svg(PartySequence(TWO, (Message("A", "B", NASTY),), NASTY))
    root = ET.fromstring(text)
    said_words = " ".join(each.text or "" for each in root.iter(f"{SVG}text"))

    assert text.isascii()
    assert "<b>&\"'" in said_words
    assert "loop\u2192 \ufffd\ufffd" in said_words


@pytest.mark.parametrize("theme", [None, *Theme], ids=lambda each: "auto" if each is None else each.name)
def test_svg_has_the_colours_of_its_theme(theme: Theme | None) -> None:
    """Without one it has both, and asks the reader's system; every class that is used has a colour."""
    items = [Note(("A",), (tone.name,), tone) for tone in Tone] + [Band("a"), Band("b", faint=True)]
    text = svg(PartySequence(TWO, (*items, Message("A", "B", "x", Way.LOST)), "title"), theme)
    style = text.partition("<style>")[2].partition("</style>")[0]
    used = {name for names in re.findall(r'class="([^"]+)"', text) for name in names.split()}

    assert ("prefers-color-scheme:dark" in style) is (theme is None)
    for each in Theme:
        assert (each.value.ground in style) is (theme in (None, each))
    for name in used:
        assert re.search(rf"\.{name}\b", style), name
