"""Checks the expectations of a scenario; a sentence says what was expected and what was found."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest

from blocklife.testing.scenarios import _kinds as kinds
from blocklife.testing.scenarios._driver import LookedUp
from blocklife.testing.scenarios._kinds import COMPARED, GARBAGE, Value
from blocklife.testing.scenarios._names import StageError
from blocklife.testing.scenarios._stage import Stage, worded
from blocklife.testing.scenarios._words import EXPECTATIONS, expectation
from blocklife.testing.scenarios._words import check_expectations as check_expectations  # from here, all of them are known
from blocklife.testing.worlds._device import CopyOrder

_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def judge(stage: Stage, expected: Mapping[str, Value]) -> str:
    """The first unmet expectation, as a sentence; empty if all are met.

    Raises `StageError` if one of them names something that does not exist.
    """
    for key, value in expected.items():
        try:
            if problem := EXPECTATIONS[key].judge(Judge(stage), value):
                return f"{key}: {problem}"
        except StageError as problem:
            raise StageError(f"{key}: {problem}") from problem
    return ""


def missing(stage: Stage, wanted: Mapping[str, Value]) -> str:
    """The same for awaited conditions: what does not exist may still come."""
    try:
        return judge(stage, wanted)
    except StageError as problem:
        return str(problem)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"


def _blocks(stage: Stage, wanted: Sequence[str], jobs: Iterable[int], side: Callable[[CopyOrder], Sequence[int]]) -> str:
    """How the blocks of these jobs differ from these names; empty if they are the same."""
    left = set(stage.names.blocks(wanted))
    right = {block for job in jobs for block in side(stage.names.copies[job].order)}
    if left == right:
        return ""
    return f"expected {_listed(map(stage.names.said, sorted(left)))}; found {_listed(map(stage.names.said, sorted(right)))}"


def _copies(stage: Stage, names: Iterable[str], found: Sequence[int]) -> str:
    """How these jobs differ from these copies; empty if they are the same. Of a copy in several jobs, one is enough."""
    wanted = [stage.names.jobs(name) for name in names]
    if all(set(jobs) & set(found) for jobs in wanted) and set(found) <= {job for jobs in wanted for job in jobs}:
        return ""
    said = [
        _listed(dict.fromkeys(map(stage.names.said_job, sorted(each)))) for each in ((jobs[0] for jobs in wanted), set(found))
    ]
    return f"expected {said[0]}; found {said[1]}"


def _below(stage: Stage, wanted: Sequence[str], kind: str) -> str:
    """How the contents of the copies to the store below, or from there, differ from these; empty if they are the same."""
    seen = [stage.names.copies[job] for job in stage.happened.below]
    left, right = stage.names.contents(wanted), {text for each in seen if each.kind == kind for text in each.contents}
    return "" if set(left) == right else f"expected {_listed(left)}; found {_listed(sorted(right))}"


def _requests(wanted: Sequence[str], found: Iterable[str]) -> str:
    there = list(dict.fromkeys(found))
    return "" if set(wanted) == set(there) else f"expected {_listed(wanted)}; found {_listed(there)}"


def _hits(stage: Stage, expected: Mapping[str, int | str], length: Callable[[LookedUp], int]) -> str:
    for request, wanted in expected.items():
        hit = stage.happened.hits.get(request)
        found: object = "no lookup" if hit is None else "deferred" if hit.deferred else length(hit)
        if found != wanted and (hit is not None or wanted != 0):  # without a lookup nothing is found
            return f"expected {wanted} for {request}; found {found}"
    return ""


def _handed(stage: Stage, blocks: Sequence[str], *, out: bool) -> str:
    """Which of these blocks were not, or were, handed out."""
    found = stage.happened.handed_out
    wrong = [text for text in blocks if (stage.names.block(text) in found) is not out]
    said = "was not" if out else "was"
    return f"{_listed(wrong)} {said} handed out (handed out: {_listed(map(stage.names.said, sorted(found)))})" if wrong else ""


def _findable(stage: Stage, contents: Sequence[str], where: str, *, there: bool) -> str:
    if where == "store below":
        names: Iterable[str] = stage.entries().values()
    else:
        blocks, places = stage.driver.claims()
        names = (places if where == "host" else blocks).values()
    found = {each.partition("@")[0] for each in names}
    for text in contents:
        if (stage.names.content(text) in found) is not there:
            said = "cannot" if there else "can"
            return f"{text} ({stage.names.content(text)}) {said} be found in the {where} (there are: {_listed(sorted(found))})"
    return ""


def _pairs(stage: Stage, pairs: Sequence[Sequence[str]], *, alike: bool) -> str:
    for one, another in pairs:
        if (stage.names.block(one) == stage.names.block(another)) is not alike:
            return f"{one} and {another} are {'two blocks' if alike else 'one block'}"
    return ""


STEP, STATE = "what the step did", "the state"


class Judge:
    """Each method is an expectation of files: it takes what is expected, and says what is not so."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    # --- what the step did --------------------------------------------------------------------------------------------------

    @expectation(STEP)
    def stores(self, blocks: kinds.BlockNames) -> str:
        """The stores planned in it read exactly these blocks, in one copy or in several."""
        return _blocks(self.stage, blocks, self.stage.happened.stores, lambda order: order.source)

    @expectation(STEP)
    def loads(self, blocks: kinds.BlockNames) -> str:
        """The loads planned in it write exactly these blocks, in one copy or in several."""
        return _blocks(self.stage, blocks, self.stage.happened.loads, lambda order: order.target)

    @expectation(STEP)
    def flushes(self, copies: kinds.CopyNames) -> str:
        """Its plans wait for exactly these copies."""
        return _copies(self.stage, copies, self.stage.happened.flushes)

    @expectation(STEP)
    def reads(self, blocks: kinds.BlockNames) -> str:
        """Its forward pass reads these blocks, such as the state that a request goes on from; maybe others, too."""
        read = self.stage.happened.reads
        unread = [text for text in blocks if self.stage.names.block(text) not in read]
        return f"{_listed(unread)} is not read (read: {_listed(map(self.stage.names.said, sorted(read)))})" if unread else ""

    @expectation(STEP)
    def copied(self, pairs: kinds.Pairs) -> str:
        """Exactly these pairs, of a block and the block that it is copied to on the device."""
        left = {tuple(self.stage.names.blocks(each)) for each in pairs}
        right = set(self.stage.happened.block_copies)
        said = [
            _listed(f"{self.stage.names.said(one)} to {self.stage.names.said(to)}" for one, to in each)
            for each in (left, right)
        ]
        return "" if left == right else f"expected {said[0]}; found {said[1]}"

    @expectation(STEP, needs="answer_below")
    def demotes(self, contents: kinds.Contents) -> str:
        """Exactly these contents of the host are to be copied to the store below."""
        return _below(self.stage, contents, "demotion")

    @expectation(STEP, needs="answer_below")
    def promotes(self, contents: kinds.Contents) -> str:
        """Exactly these contents of the store below are to be copied to the host."""
        return _below(self.stage, contents, "promotion")

    @expectation(STEP)
    def hit(self, expected: kinds.Hits) -> str:
        """Length of the prefix hit of a request, in tokens, or `deferred`."""
        return _hits(self.stage, expected, lambda hit: hit.tokens)

    @expectation(STEP)
    def hit_on_device(self, expected: kinds.Hits) -> str:
        """How much of the hit is on the device."""
        return _hits(self.stage, expected, lambda hit: hit.device_tokens)

    @expectation(STEP)
    def no_room(self, requests: kinds.RequestNames) -> str:
        """There was no room for exactly these requests."""
        return _requests(requests, self.stage.happened.no_room)

    @expectation(STEP)
    def handed_out(self, blocks: kinds.BlockNames) -> str:
        """These blocks were handed out, maybe others, too."""
        return _handed(self.stage, blocks, out=True)

    @expectation(STEP)
    def not_handed_out(self, blocks: kinds.BlockNames) -> str:
        """These were not."""
        return _handed(self.stage, blocks, out=False)

    @expectation(STEP)
    def loaded(self, requests: kinds.RequestNames) -> str:
        """The loads of exactly these requests are done."""
        return _requests(requests, self.stage.happened.loaded)

    @expectation(STEP)
    def load_failed(self, requests: kinds.RequestNames) -> str:
        """The loads of exactly these requests have failed."""
        return _requests(requests, self.stage.happened.failed)

    @expectation(STEP)
    def ended(self, requests: kinds.RequestNames) -> str:
        """Exactly these requests ended, which had to wait for this plan."""
        return _requests(requests, self.stage.happened.ended)

    @expectation(STEP)
    def answer(self, expected: kinds.Offer) -> str:
        """What `agree` agreed on."""
        found = self.stage.happened.answer or {}
        wrong = {key: found.get(key) for key, wanted in expected.items() if found.get(key) != wanted}
        return f"found {_listed(f'{key} = {each}' for key, each in wrong.items())}" if wrong else ""

    # --- what holds after it ------------------------------------------------------------------------------------------------

    @expectation(STATE)
    def state(self, expected: kinds.States) -> str:
        """The state of blocks, slots, copies and requests; a list means one of these."""
        for text, wanted in expected.items():
            states = [wanted] if isinstance(wanted, str) else wanted
            kind = self.stage.names.kind(text)
            driver = self.stage.driver
            if kind == "request":
                found = [driver.request_state(text)]
            else:
                ask = {"block": driver.block_state, "job": driver.job_state, "slot": driver.slot_state}[kind]
                found = list(map(ask, self.stage.names.numbers(text)[1]))
            if wrong := [each for each in found if each not in states]:
                return f"expected {text} to be {' or '.join(states)}; it is {wrong[0]}"
        return ""

    @expectation(STATE)
    def holds(self, expected: kinds.Holds) -> str:
        """The content of a block on every worker's device; `garbage` for invalid content."""
        for text, wanted in expected.items():
            block = self.stage.names.block(text)
            content = GARBAGE if wanted == GARBAGE else self.stage.names.content(wanted)
            for worker in self.stage.device.present:
                found = worded(worker.blocks[block])
                if found.partition("@")[0] != content:
                    return f"expected {text} to hold {content}; on worker {worker.rank} it holds {found}"
        return ""

    @expectation(STATE, needs="claims")
    def in_host(self, contents: kinds.Contents) -> str:
        """These are found in the host."""
        return _findable(self.stage, contents, "host", there=True)

    @expectation(STATE, needs="claims")
    def not_in_host(self, contents: kinds.Contents) -> str:
        """These are not."""
        return _findable(self.stage, contents, "host", there=False)

    @expectation(STATE, needs="claims")
    def on_device(self, contents: kinds.Contents) -> str:
        """These are found on the device."""
        return _findable(self.stage, contents, "device", there=True)

    @expectation(STATE, needs="claims")
    def not_on_device(self, contents: kinds.Contents) -> str:
        """These are not."""
        return _findable(self.stage, contents, "device", there=False)

    @expectation(STATE, needs="answer_below")
    def in_store_below(self, contents: kinds.Contents) -> str:
        """The store below has these."""
        return _findable(self.stage, contents, "store below", there=True)

    @expectation(STATE, needs="answer_below")
    def not_in_store_below(self, contents: kinds.Contents) -> str:
        """It does not have these."""
        return _findable(self.stage, contents, "store below", there=False)

    @expectation(STATE)
    def same(self, pairs: kinds.Pairs) -> str:
        """Both names are the same block."""
        return _pairs(self.stage, pairs, alike=True)

    @expectation(STATE)
    def other(self, pairs: kinds.Pairs) -> str:
        """The names are different blocks."""
        return _pairs(self.stage, pairs, alike=False)

    @expectation(STATE)
    def has(self, expected: kinds.HeldBlocks) -> str:
        """A request holds these blocks, maybe others, too."""
        groups = range(len(self.stage.geometry.groups))
        for request, blocks in expected.items():
            held = {block for group in groups for block in self.stage.driver.table(request, group) if block}
            if absent := [text for text in blocks if self.stage.names.block(text) not in held]:
                return f"{request} does not hold {_listed(absent)} (it holds {len(held)} blocks)"
        return ""

    @expectation(STATE, needs="worker_table")
    def worker_table(self, expected: kinds.HeldBlocks) -> str:
        """The blocks of a request by position, as the workers know them, of one group behind the other."""
        groups = range(len(self.stage.geometry.groups))
        for request, blocks in expected.items():
            found = [block for group in groups for block in self.stage.driver.worker_table(request, group)]
            if self.stage.names.blocks(blocks) != found:
                return f"expected {_listed(blocks)} of {request}; the workers have {_listed(map(self.stage.names.said, found))}"
        return ""

    @expectation(STATE)
    def out(self, copies: kinds.CopyNames) -> str:
        """Exactly these copies run on the device."""
        return _copies(self.stage, copies, self.stage.out())

    @expectation(STATE)
    def sizes(self, expected: kinds.Sizes) -> str:
        """How many blocks of each group a copy has."""
        for text, wanted in expected.items():
            seen = [self.stage.names.copies[job] for job in self.stage.names.jobs(text) if job in self.stage.names.copies]
            found = [sum(each) for each in zip_longest(*(each.sizes for each in seen), fillvalue=0)]
            if found != wanted:
                return f"expected {text} to have {wanted}; it has {found}"
            if seen and sum(found) != (moved := sum(len(each.order.source) for each in seen)):
                return f"{text} says {found}, and moves {moved} blocks"
        return ""

    @expectation(STATE, needs="progress")
    def tokens(self, expected: kinds.Hits) -> str:
        """Settled tokens of a request."""
        for request, wanted in expected.items():
            if (found := self.stage.driver.progress(request).computed) != wanted:
                return f"expected {wanted} settled tokens of {request}; it has {found}"
        return ""

    @expectation(STATE, needs="pending")
    def pending(self, expected: bool) -> str:
        """Whether more ticks are needed."""
        found = self.stage.driver.pending()
        return "" if found is expected else f"ticking {'must go on' if found else 'may end'}"

    @expectation(STATE, needs="left_behind")
    def nothing_left(self, expected: bool) -> str:
        """No request, copy or pin is left, and every block and slot is at rest."""
        found = [*self.stage.driver.left_behind(), *(f"copy {self.stage.names.said_job(job)}" for job in self.stage.out())]
        return f"left behind: {_listed(found)}" if bool(found) is expected else ""

    @expectation(STATE, needs="windows")
    def windows(self, expected: kinds.Windows) -> str:
        """Chunks that a hit needs before its end, by group."""
        found = ["all" if each is None else each for each in self.stage.driver.windows()]
        return "" if found == expected else f"expected {expected}; found {found}"

    @expectation(STATE, needs="count")
    def count(self, expected: kinds.Counts) -> str:
        """Counts, see below: a number, or a comparison such as `>= 2`."""
        for what, wanted in expected.items():
            found = self.stage.driver.count(what)
            compared = COMPARED.fullmatch(wanted) if isinstance(wanted, str) else None
            if not (_COMPARISONS[compared[1]](found, int(compared[2])) if compared else found == wanted):
                return f"expected {what} {wanted}; found {found}"
        return ""

    @expectation(STATE, needs="picture")
    def same_as(self, step: kinds.EarlierStep) -> str:
        """Everything is as it was after that step, except job numbers."""
        return "" if self.stage.picture() == self.stage.pictures.get(step) else f"something has changed since {step!r}"
