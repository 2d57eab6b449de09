"""Checks the expectations of a scenario; a sentence says what was expected and what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

from blocklife.testing.scenarios._driver import LookedUp
from blocklife.testing.scenarios._format import COMPARED
from blocklife.testing.scenarios._schema import Value
from blocklife.testing.scenarios._stage import GARBAGE, Stage, StageError, worded
from blocklife.testing.worlds._device import CopyOrder

_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    ">=": lambda found, least: found >= least,
    "<=": lambda found, most: found <= most,
    ">": lambda found, less: found > less,
    "<": lambda found, more: found < more,
}


def judge(stage: Stage, expected: Mapping[str, Value]) -> str:
    """The first unmet expectation, as a sentence; empty if all are met.

    Raises `StageError` if one of them names something that does not exist.
    """
    for key, value in expected.items():
        try:
            if problem := _JUDGES[key](stage, value):
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


def _texts(value: Value) -> list[str]:
    return [str(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else [str(value)]


def _table(value: Value) -> Mapping[str, Value]:
    return value if isinstance(value, Mapping) else {}


def _exactly(wanted: Iterable[int], found: Iterable[int], say: Callable[[int], str]) -> str:
    """How two sets of numbers differ; empty if they are equal."""
    left, right = set(wanted), set(found)
    if left == right:
        return ""
    return f"expected {_listed(map(say, sorted(left)))}; found {_listed(map(say, sorted(right)))}"


def _copies(stage: Stage, names: Iterable[str], found: Sequence[int]) -> str:
    """How these jobs differ from these copies; empty if they are the same. Of a copy in several jobs, one is enough."""
    wanted = list(map(stage.jobs, names))
    if all(set(jobs) & set(found) for jobs in wanted) and set(found) <= {job for jobs in wanted for job in jobs}:
        return ""
    said = [_listed(dict.fromkeys(map(stage.said_job, sorted(each)))) for each in ((jobs[0] for jobs in wanted), set(found))]
    return f"expected {said[0]}; found {said[1]}"


# --- what the step did ------------------------------------------------------------------------------------------------------


_Judge: TypeAlias = Callable[[Stage, Value], str]


def _blocks(side: Callable[[Stage], Sequence[int]], part: Callable[[CopyOrder], Sequence[int]]) -> _Judge:
    def check(stage: Stage, value: Value) -> str:
        found = [block for job in side(stage) for block in part(stage.copies[job].order)]
        return _exactly(stage.blocks(_texts(value)), found, stage.said)

    return check


def _flushes(stage: Stage, value: Value) -> str:
    return _copies(stage, _texts(value), stage.happened.flushes)


def _hit(stage: Stage, value: Value) -> str:
    return _hits(stage, value, lambda hit: hit.tokens)


def _hit_on_device(stage: Stage, value: Value) -> str:
    return _hits(stage, value, lambda hit: hit.device_tokens)


def _hits(stage: Stage, value: Value, length: Callable[[LookedUp], int]) -> str:
    for request, wanted in _table(value).items():
        hit = stage.happened.hits.get(request)
        found: object = "no lookup" if hit is None else "deferred" if hit.deferred else length(hit)
        if found != wanted and (hit is not None or wanted != 0):  # without a lookup nothing is found
            return f"expected {wanted} for {request}; found {found}"
    return ""


def _requests(side: Callable[[Stage], Iterable[str]]) -> _Judge:
    def check(stage: Stage, value: Value) -> str:
        wanted, found = _texts(value), list(dict.fromkeys(side(stage)))
        return "" if set(wanted) == set(found) else f"expected {_listed(wanted)}; found {_listed(found)}"

    return check


def _handed_out(stage: Stage, value: Value) -> str:
    missing = [text for text in _texts(value) if stage.block(text) not in stage.happened.handed_out]
    return f"{_listed(missing)} was not handed out (handed out: {_all_handed(stage)})" if missing else ""


def _not_handed_out(stage: Stage, value: Value) -> str:
    wrong = [text for text in _texts(value) if stage.block(text) in stage.happened.handed_out]
    return f"{_listed(wrong)} was handed out (handed out: {_all_handed(stage)})" if wrong else ""


def _all_handed(stage: Stage) -> str:
    return _listed(map(stage.said, sorted(stage.happened.handed_out)))


def _answer(stage: Stage, value: Value) -> str:
    found = stage.happened.answer or {}
    wrong = {key: found.get(key) for key, wanted in _table(value).items() if found.get(key) != wanted}
    return f"found {_listed(f'{key} = {each}' for key, each in wrong.items())}" if wrong else ""


# --- what holds after it ----------------------------------------------------------------------------------------------------


def _state(stage: Stage, value: Value) -> str:
    for text, wanted in _table(value).items():
        kind = stage.kind(text)
        driver = stage.driver
        if kind == "request":
            found = [driver.request_state(text)]
        else:
            ask = {"block": driver.block_state, "job": driver.job_state, "slot": driver.slot_state}[kind]
            found = list(map(ask, stage.numbers(text)[1]))
        if wrong := [each for each in found if each not in _texts(wanted)]:
            return f"expected {text} to be {' or '.join(_texts(wanted))}; it is {wrong[0]}"
    return ""


def _holds(stage: Stage, value: Value) -> str:
    for text, wanted in _table(value).items():
        block = stage.block(text)
        content = GARBAGE if wanted == GARBAGE else stage.content(str(wanted))
        for worker in stage.device.present:
            found = worded(worker.blocks[block])
            if found.partition("@")[0] != content:
                return f"expected {text} to hold {content}; on worker {worker.rank} it holds {found}"
    return ""


def _findable(where: str, wanted: bool) -> _Judge:
    def check(stage: Stage, value: Value) -> str:
        blocks, places = stage.driver.claims()
        found = {each.partition("@")[0] for each in (places if where == "host" else blocks).values()}
        for text in _texts(value):
            if (stage.content(text) in found) is not wanted:
                there = _listed(sorted(found))
                is_there = "can" if not wanted else "cannot"
                return f"{text} ({stage.content(text)}) {is_there} be found in the {where} (there are: {there})"
        return ""

    return check


def _pairs(same: bool) -> _Judge:
    def check(stage: Stage, value: Value) -> str:
        for pair in value if isinstance(value, Sequence) else ():
            one, other = _texts(pair)
            if (stage.block(one) == stage.block(other)) is not same:
                return f"{one} and {other} are {'two blocks' if same else 'one block'}"
        return ""

    return check


def _has(stage: Stage, value: Value) -> str:
    groups = range(len(stage.geometry.groups))
    for request, blocks in _table(value).items():
        held = {block for group in groups for block in stage.driver.table(request, group) if block}
        missing = [text for text in _texts(blocks) if stage.block(text) not in held]
        if missing:
            return f"{request} does not hold {_listed(missing)} (it holds {len(held)} blocks)"
    return ""


def _out(stage: Stage, value: Value) -> str:
    return _copies(stage, _texts(value), stage.out())


def _sizes(stage: Stage, value: Value) -> str:
    for text, wanted in _table(value).items():
        seen = [stage.copies[job] for job in stage.jobs(text) if job in stage.copies]
        found = [sum(sizes) for sizes in zip_longest(*(each.sizes for each in seen), fillvalue=0)]
        if found != wanted:
            return f"expected {text} to have {wanted}; it has {found}"
        if seen and sum(found) != (moved := sum(len(each.order.source) for each in seen)):
            return f"{text} says {found}, and moves {moved} blocks"
    return ""


def _tokens(stage: Stage, value: Value) -> str:
    for request, wanted in _table(value).items():
        if (found := stage.driver.progress(request).computed) != wanted:
            return f"expected {wanted} settled tokens of {request}; it has {found}"
    return ""


def _pending(stage: Stage, value: Value) -> str:
    found = stage.driver.pending()
    return "" if found is value else f"ticking {'must go on' if found else 'may end'}"


def _nothing_left(stage: Stage, value: Value) -> str:
    found = [*stage.driver.left_behind(), *(f"copy {stage.said_job(job)}" for job in stage.out())]
    if bool(found) is value:
        return f"left behind: {_listed(found)}"
    return ""


def _windows(stage: Stage, value: Value) -> str:
    found = ["all" if each is None else each for each in stage.driver.windows()]
    return "" if found == value else f"expected {value}; found {found}"


def _count(stage: Stage, value: Value) -> str:
    for what, wanted in _table(value).items():
        found = stage.driver.count(what)
        compared = COMPARED.fullmatch(wanted) if isinstance(wanted, str) else None
        holds = _COMPARISONS[compared[1]](found, int(compared[2])) if compared else found == wanted
        if not holds:
            return f"expected {what} {wanted}; found {found}"
    return ""


def _same_as(stage: Stage, value: Value) -> str:
    if stage.picture() == stage.pictures.get(str(value)):
        return ""
    return f"something has changed since {value!r}"


_JUDGES: Mapping[str, _Judge] = {
    "stores": _blocks(lambda stage: stage.happened.stores, lambda order: order.source),
    "loads": _blocks(lambda stage: stage.happened.loads, lambda order: order.target),
    "flushes": _flushes,
    "hit": _hit,
    "hit_on_device": _hit_on_device,
    "no_room": _requests(lambda stage: stage.happened.no_room),
    "handed_out": _handed_out,
    "not_handed_out": _not_handed_out,
    "loaded": _requests(lambda stage: stage.happened.loaded),
    "load_failed": _requests(lambda stage: stage.happened.failed),
    "ended": _requests(lambda stage: stage.happened.ended),
    "answer": _answer,
    "state": _state,
    "holds": _holds,
    "in_host": _findable("host", True),
    "not_in_host": _findable("host", False),
    "on_device": _findable("device", True),
    "not_on_device": _findable("device", False),
    "same": _pairs(True),
    "other": _pairs(False),
    "has": _has,
    "out": _out,
    "sizes": _sizes,
    "tokens": _tokens,
    "pending": _pending,
    "nothing_left": _nothing_left,
    "windows": _windows,
    "count": _count,
    "same_as": _same_as,
}
JUDGED = frozenset(_JUDGES)
"""The expectations that can be judged."""
