"""A recorded story as a sequence diagram: which party sends which message, for each event of the four machines.

Rules of this file:

* `SAID` is the whole mapping. The effects of a coupling are not messages: they show as changes of state below their cause.
* A recording contains what the ledger did. A submitted job stands for a plan sent to the copiers, a finished one for the
  workers' reports; when a copy began and ended on the device is not recorded, and not drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import define, evolve, field, frozen

from blocklife.drawing._picture import tone_of
from blocklife.drawing._sequence import Band, Item, Message, Note, Party, Way
from blocklife.drawing._sequence import PartySequence as Diagram
from blocklife.lifecycle import Tone
from blocklife.recording._lives import Life, Lives, RecordedRefusal, RecordedStep
from blocklife.recording._reader import OVER
from blocklife.recording._story import Fold, counted, folded, heading
from blocklife.states import MACHINES

REQUEST, SCHEDULER, LEDGER, COPIER, WORKER = PARTIES = (
    Party("R", "request"),
    Party("S", "scheduler"),
    Party("L", "ledger"),
    Party("C", "copier"),
    Party("W", "worker"),
)

ENTRIES_DRAWN_MAX = 60
"""The most steps drawn of several lives; older lives are left out."""


# --- messages ------------------------------------------------------------------------------------------------------------


@frozen
class Saying:
    """``{place}`` is the place, ``{job}`` the job as *store 5*, ``{size}`` how many blocks it moves."""

    source: Party
    target: Party
    text: str
    way: Way = Way.ASKS
    after: bool = False
    """Whether the message follows the change of state instead of causing it."""


_PLANNED = Saying(SCHEDULER, LEDGER, "plan {job} ({size})")
_COPY = Saying(SCHEDULER, COPIER, "copy {size} as {job}", after=True)
_WAIT = Saying(SCHEDULER, WORKER, "wait for {job} before anything writes", after=True)
_REPORT = Saying(WORKER, SCHEDULER, "last report on {job}", Way.ANSWERS)

SAID: Mapping[str, tuple[Saying, ...]] = {
    # requests
    "request.plan_load": (
        _PLANNED,
        Saying(LEDGER, REQUEST, "wait for {job}", Way.ANSWERS, after=True),
    ),
    "request.loaded, coupled": (Saying(LEDGER, REQUEST, "{job} is there", Way.ANSWERS, after=True),),
    "request.load_failed, coupled": (Saying(LEDGER, REQUEST, "the load is lost", Way.ANSWERS, after=True),),
    "request.finish": (Saying(REQUEST, LEDGER, "finish {place}"),),
    # blocks
    "block.acquire": (Saying(SCHEDULER, LEDGER, "acquire {place}, a hit"),),
    "block.plan_store": (_PLANNED,),
    "block.plan_load": (_PLANNED,),
    # slots
    "slot.reserve": (_PLANNED,),
    "slot.pin": (Saying(SCHEDULER, LEDGER, "look up: pin {place}"),),
    "slot.pin, in the name of a job": (_PLANNED,),
    "slot.unpin": (Saying(SCHEDULER, LEDGER, "look up: unpin {place}"),),
    # jobs
    "job.submit": (Saying(SCHEDULER, LEDGER, "dispatch {job}"), _COPY),
    "job.flush": (Saying(SCHEDULER, LEDGER, "flush {job}"), _WAIT),
    "job.flush, coupled": (_WAIT,),
    "job.finish, more": (Saying(WORKER, SCHEDULER, "a report on {job}", Way.ANSWERS), Saying(SCHEDULER, LEDGER, "settle")),
    "job.finish": (_REPORT, Saying(SCHEDULER, LEDGER, "settle: finish {job}")),
    "job.finish, late": (Saying(WORKER, SCHEDULER, "a late report on {job}", Way.ANSWERS), Saying(SCHEDULER, LEDGER, "settle")),
    "job.quiesce": (
        Saying(WORKER, SCHEDULER, "proof that {job} is quiet", Way.ANSWERS),
        Saying(SCHEDULER, LEDGER, "quiesce {job}"),
    ),
    "job.cancel": (Saying(SCHEDULER, LEDGER, "cancel {job}"),),
    "job.abandon": (Saying(SCHEDULER, LEDGER, "abandon {job}"),),
    "job.expire": (Saying(SCHEDULER, LEDGER, "tick: {job} is past its deadline"),),
}
"""The messages of each step that is not simply asked of the ledger by its name (`_asked`).

*Coupled*: the step was caused by another machine; without such a row it has no message.
"""


def _asked(event: str) -> tuple[Saying, ...]:
    """The message of a step that the scheduler asks of the ledger by its name."""
    return (Saying(SCHEDULER, LEDGER, f"{event} {{place}}"),)


def said(step: RecordedStep) -> tuple[Saying, ...]:
    """The messages of a step."""
    key = f"{step.machine}.{step.event}"
    if step.coupling and step.cause is not None:
        return SAID.get(f"{key}, coupled", ())
    if key == "job.finish" and step.source in OVER:
        key += ", late"
    elif key == "job.finish" and step.source == step.target:
        key += ", more"
    elif key == "slot.pin" and step.job:
        key += ", in the name of a job"
    return SAID.get(key, _asked(step.event))


# --- a story as a diagram ----------------------------------------------------------------------------------------------


def diagram(lives: Lives, chosen: Sequence[Life], title: str = "") -> Diagram:
    """The sequence diagram of lives of one place, oldest first; the oldest are left out where there are too many."""
    shown: list[Life] = []
    size = 0
    for life in reversed(chosen):
        size += len(_entries(lives, life))
        if shown and size > ENTRIES_DRAWN_MAX:
            break
        shown.insert(0, life)
    items = list(_DiagramItems(lives, shown).items())
    if len(shown) < len(chosen):
        items.insert(0, Band(f"{counted(len(chosen) - len(shown), 'older life', 'older lives')} not shown", faint=True))
    return Diagram(_taking_part(items), tuple(items), title)


def _taking_part(items: Sequence[Item]) -> tuple[Party, ...]:
    """The parties that items name, and the ledger always: a story of one place seldom needs all of them."""
    named = {LEDGER.key}
    for item in items:
        if not isinstance(item, Band):
            named |= set(item.over) if isinstance(item, Note) else {item.source, item.target}
    return tuple(party for party in PARTIES if party.key in named)


def _entries(lives: Lives, life: Life) -> list[int | Fold]:
    """The steps of a life, and those of its jobs until they end; what lies within a fold is left out."""
    if life.machine == "job":
        story = lives.job_story(life.id)
        return [*life.steps, *(story.moves if story else ())]
    entries = folded(lives, life.steps)
    hidden = [(entry.steps[0], entry.steps[-1]) for entry in entries if isinstance(entry, Fold)]
    for number in life.jobs:
        story = lives.job_story(number)
        for index in story.steps if story else ():
            late = lives.kinds[lives.kind[index]].source in OVER
            if not late and not any(low < index < high for low, high in hidden):
                entries.append(index)
    return entries


def _first(entry: int | Fold) -> int:
    return entry.steps[0] if isinstance(entry, Fold) else entry


@define(eq=False)
class _DiagramItems:
    """The items of a sequence diagram: some lives of one place, oldest first.

    Invariant: ``told`` are the steps already drawn; ``asked`` the messages sent, with their commits (0: sent only once).
    """

    lives: Lives
    chosen: Sequence[Life]
    told: set[int] = field(factory=set)
    asked: set[tuple[int, str]] = field(factory=set)

    def items(self) -> Iterator[Item]:
        """Every item, in order; consecutive changes are joined into one note, followed by their messages."""
        notes: list[tuple[Note, bool]] = []
        after: list[Item] = []
        for item, own in (*self._items(), (None, False)):
            if isinstance(item, Note):
                notes.append((item, own))
                continue
            if isinstance(item, Message) and own:
                after.append(item)
                continue
            if notes:
                tone = next((note.tone for note, mine in reversed(notes) if mine), notes[-1][0].tone)
                lines = tuple(line for note, _ in notes for line in note.lines)
                yield evolve(notes[0][0], lines=lines, tone=tone)
            yield from after
            notes, after = [], []
            if item is not None:
                yield item

    def _items(self) -> Iterator[tuple[Item, bool]]:
        """Every item, and whether a note is about the place of the story, or a message follows its change."""
        heads = {life.steps[0] if life.steps else -1: life for life in self.chosen}
        entries = {_first(each): each for life in self.chosen for each in _entries(self.lives, life)}
        last = self.chosen[-1]
        if last.end is not None:
            entries.setdefault(last.end, last.end)
        refused = [each for life in self.chosen for each in life.refused]
        if self.chosen[0].machine == "job":  # it begins before its own first step
            yield Band(heading(self.lives, heads.popitem()[1])), False
        for first, entry in sorted(entries.items()):
            while refused and refused[0].index <= first:
                yield from _refusal(refused.pop(0))
            if first in heads:
                yield Band(heading(self.lives, heads[first])), False
            if isinstance(entry, Fold):
                yield Band(entry.text, faint=True), False
            else:
                yield from self._step(entry)
        for each in refused:
            yield from _refusal(each)

    def _step(self, index: int) -> Iterator[tuple[Item, bool]]:
        if index in self.told:
            return
        self.told.add(index)
        step = self.lives.step(index)
        if step.cause is not None and step.coupling:
            yield from self._step(step.cause)
        when = f"plan {step.plan}"
        alike = self._alike(step)
        self.told.update(alike)
        place = f"{len(alike):,} {step.machine}s" if len(alike) > 1 else step.place
        for each in said(step):
            text = each.text.format(place=place, job=self._job(step), size=self._size(step))
            if step.cause is not None and not step.coupling:
                text += f", {self.lives.because(index)}"
            key = (0 if each is _PLANNED else step.n, text)
            if key not in self.asked:
                self.asked.add(key)
                yield Message(each.source.key, each.target.key, text, each.way, when), each.after
        name = self._job(step) if step.machine == "job" else place
        own = step.machine == self.chosen[0].machine and step.id in {life.id for life in self.chosen}
        yield Note((LEDGER.key,), (changed(step, name, many=len(alike) > 1),), tone_at(step), when), own

    def _alike(self, step: RecordedStep) -> list[int]:
        """In the story of a job: all its places that take the same step together."""
        lives = self.lives
        story = lives.job_story(self.chosen[0].id) if self.chosen[0].machine == "job" else None
        if story is None or step.machine == "job":
            return [step.index]
        n, kind = lives.n[step.index], lives.kind[step.index]
        return [each for each in story.moves if lives.n[each] == n and lives.kind[each] == kind]

    def _job(self, step: RecordedStep) -> str:
        story = self.lives.job_story(step.job or 0)
        return f"job {step.job}" if story is None else story.label

    def _size(self, step: RecordedStep) -> str:
        story = self.lives.job_story(step.job or 0)
        return "blocks" if story is None else counted(len(story.blocks), "block")


# --- words ---------------------------------------------------------------------------------------------------------------


def changed(step: RecordedStep, name: str, *, many: bool = False) -> str:
    """What a step did to its place."""
    guard = "" if step.guard is None else f" [{step.guard}]"
    if step.source == step.target:
        return f"{name} {'stay' if many else 'stays'} {step.source}{guard}"
    return f"{name}: {step.source} \N{RIGHTWARDS ARROW} {step.target}{guard}"


def tone_at(step: RecordedStep) -> Tone:
    """The tone of the state that a step leads to."""
    table = MACHINES.get(step.machine)
    state = next((each for each in table.states if each.name == step.target), None) if table else None
    return Tone.REST if table is None or state is None else tone_of(table, state)


def _refusal(refusal: RecordedRefusal) -> Iterator[tuple[Item, bool]]:
    when = f"plan {refusal.plan}"
    yield Message(SCHEDULER.key, LEDGER.key, f"{refusal.event} {refusal.place}", Way.ASKS, when), False
    yield Message(LEDGER.key, SCHEDULER.key, f"refused: it is {refusal.state}", Way.ANSWERS, when), False
