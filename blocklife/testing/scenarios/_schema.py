"""The schema of a scenario file: every verb with its parameters, every expectation and every setting, each with a description.

Rules of this file:

* It is a table. What the words do is in `_stage` and `_judge`; a test checks that none is missing there.
* `specs/scenarios/README.md` prints these descriptions; another test compares.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs
from attrs import field, frozen

from blocklife.ledger import Contract
from blocklife.offload import FullHit, LastStep, Mode
from blocklife.offload.replacement import BUILT_IN
from blocklife.testing.scenarios._driver import EngineSetup

Value: TypeAlias = "str | int | float | bool | Sequence[Value] | Mapping[str, Value]"
"""Any value of a TOML file, except dates."""


class ValueKind(enum.Enum):
    """The kinds of values; the text is what an error message says was expected."""

    TEXT = "a text"
    NUMBER = "a whole number"
    WORKER = "the number of a worker"
    FLAG = "true or false"
    REQUEST = "the name of a request"
    REQUESTS = "a list of requests"
    BLOCK = "a block"
    BLOCKS = "a list of blocks"
    JOB = "a copy"
    JOBS = "a list of copies"
    CONTENT = "a content"
    CONTENTS = "a list of contents"
    TOKENS = "a table of requests with numbers"
    LET_IN = "a list of requests, or a table of them with numbers"
    NUMBERS = "a list of whole numbers"
    RANKS = "a list of tables of numbers"
    EXPECTATIONS = "a table of expectations"
    STATES = "a table of things with their states"
    HOLDS = "a table of blocks with contents"
    HITS = "a table of requests with numbers or 'deferred'"
    SIZES = "a table of copies with lists of numbers"
    PAIRS = "a list of pairs of blocks"
    COUNTS = "a table of counts"
    WINDOWS = "a list of numbers and 'all'"
    HAS = "a table of requests with lists of blocks"
    STEP = "the name of an earlier step"
    LIMITS = "a table of numbers"


@frozen
class Parameter:
    """One parameter of a verb."""

    name: str
    kind: ValueKind
    needed: bool = False
    choices: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    """Methods of a driver that a step with this parameter needs."""


def _needed(name: str, kind: ValueKind) -> Parameter:
    return Parameter(name, kind, needed=True)


@frozen
class Verb:
    """Something that a step can do."""

    name: str
    doc: str
    parameters: tuple[Parameter, ...] = ()
    section: str = "the engine"
    binds: str = ""
    """What ``as`` names: ``blocks`` or ``job``; empty if the verb makes nothing."""
    calls: tuple[str, ...] | None = None
    """Methods of a driver that it needs besides the five required ones; None for the one with its own name."""

    @property
    def known(self) -> Mapping[str, Parameter]:
        """The parameters by name."""
        return {each.name: each for each in self.parameters}

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of a driver that it needs."""
        return (self.name,) if self.calls is None else self.calls


_REQUEST = _needed("request", ValueKind.REQUEST)
_WORKER = Parameter("worker", ValueKind.WORKER)
_COPIES = Parameter("copies", ValueKind.JOBS)
_REPORT = Parameter("report", ValueKind.TEXT, choices=("sent", "twice", "lost"))
_UNTIL = Parameter("until", ValueKind.EXPECTATIONS)
_TIMES = Parameter("times", ValueKind.NUMBER)
_CONTENTS = _needed("contents", ValueKind.CONTENTS)

VERBS: Mapping[str, Verb] = {
    each.name: each
    for each in (
        Verb(
            "arrive",
            "A request arrives with a prompt, one letter per token, and waits. `tokens`: it ends when it has so many in all. "
            "`reply`: what it will sample; then it ends.",
            (
                _needed("request", ValueKind.TEXT),
                _needed("prompt", ValueKind.TEXT),
                Parameter("tokens", ValueKind.NUMBER),
                Parameter("reply", ValueKind.TEXT),
            ),
            calls=(),
        ),
        Verb(
            "step",
            "One engine step: preempt, schedule, admit, plan, execute, settle (`async`: settle the previous plan). `compute`: "
            "tokens of running requests, 0 for those not named; without it the engine chooses. `let_in`: the requests to look "
            "up and admit, with a number if not all known tokens are computed at once; without it all that wait. `sampled`: "
            "how many tokens a request gets. `failing`: the copies that the plan waits for fail. `settle = false`: the plan "
            "stays outstanding. `times`, `until`: repeat.",
            (
                Parameter("compute", ValueKind.TOKENS),
                Parameter("let_in", ValueKind.LET_IN),
                Parameter("preempt", ValueKind.REQUESTS),
                Parameter("sampled", ValueKind.TOKENS),
                Parameter("failing", ValueKind.FLAG),
                Parameter("settle", ValueKind.FLAG),
                _TIMES,
                _UNTIL,
            ),
            calls=(),
        ),
        Verb("tick", "A step that computes and admits nothing; then all outstanding plans settle.", (_TIMES, _UNTIL), calls=()),
        Verb(
            "settle",
            "The oldest outstanding plan settles, with all reports. `after`: first the time of so many steps passes.",
            (Parameter("sampled", ValueKind.TOKENS), Parameter("after", ValueKind.NUMBER, calls=("advance",))),
            calls=(),
        ),
        Verb(
            "compute",
            "Steps in which only this request computes, until exactly so many of its tokens are settled and none is in flight.",
            (_REQUEST, _needed("tokens", ValueKind.NUMBER)),
            calls=("progress",),
        ),
        Verb(
            "draft",
            "A drafter guesses tokens behind the known ones of a running request. Its next step computes these too, and what "
            "it samples follows: the right guesses and one token more. Wrong guesses leave wrong content on the device.",
            (_REQUEST, _needed("guess", ValueKind.TEXT)),
        ),
        Verb("lookup", "Look up the prefix hit of a request; the content that was hit stays until the next plan.", (_REQUEST,)),
        Verb("finish", "The engine ends a request.", (_REQUEST,)),
        Verb("abort", "The client of a request is gone.", (_REQUEST,)),
        Verb("preempt", "A request is preempted between two steps, and loses all its blocks.", (_REQUEST,)),
        Verb(
            "land",
            "Copies land on the device: those named, or all that run; on one `worker`, or on all. Their reports come with "
            "the next plan that settles; `report`: `twice`, or `lost`.",
            (_COPIES, _WORKER, _REPORT),
            calls=(),
        ),
        Verb("fail", "As `land`, but the bytes are garbage, and the report says so.", (_COPIES, _WORKER, _REPORT), calls=()),
        Verb(
            "hang",
            "Copies never land by themselves; a wait for them ends them without a report.",
            (_COPIES, _WORKER),
            calls=(),
        ),
        Verb(
            "report",
            "A report comes although nothing lands now: a repeated, late or early one, or one of a copy that `nobody` made.",
            (_needed("copy", ValueKind.JOB), _WORKER, Parameter("failed", ValueKind.FLAG)),
            calls=(),
        ),
        Verb(
            "lose_report",
            "A report that was sent but not delivered yet gets lost.",
            (_needed("copy", ValueKind.JOB), _WORKER),
            calls=(),
        ),
        Verb(
            "reset",
            "All content is forgotten; with `drain` only once no copy is outstanding.",
            (Parameter("drain", ValueKind.FLAG),),
        ),
        Verb(
            "renew", "New weights or another customer: no earlier content is found.", (_needed("generation", ValueKind.TEXT),)
        ),
        Verb(
            "lend",
            "Another owner, such as a second connector, begins to read what is final of a request; it reads in every step, "
            "whatever becomes of the request.",
            (_REQUEST,),
        ),
        Verb("give_back", "That owner is done with it.", (_REQUEST,)),
        Verb("sleep", "The device memory is given up; the host keeps its content."),
        Verb("wake", "The device memory is back, empty."),
        Verb("lose_worker", "A worker is lost, with its copies and its memory.", (_needed("worker", ValueKind.WORKER),)),
        Verb("regain_worker", "It is back, with empty memory.", (_needed("worker", ValueKind.WORKER),)),
        Verb(
            "pass_time",
            "The time of so many steps passes, then a tick.",
            (_needed("steps", ValueKind.NUMBER),),
            calls=("advance",),
        ),
        Verb("prove_quiet", "The device is synchronised with these copies, or with all that run.", (_COPIES,)),
        Verb("drain", "Ticks in which everything lands, until nothing is pending.", calls=("pending",)),
        Verb("agree", "Ranks report what they have; the answer is what all of them use.", (_needed("ranks", ValueKind.RANKS),)),
        Verb("check", "Nothing happens: a step only for expectations.", calls=()),
        Verb(
            "walk",
            "Random actions, drawn with the world's `seed`: requests arrive, grow, are preempted and end; copies land in "
            "any order, fail, hang and report twice; now and then the device's or all content is forgotten. At the end all "
            "requests end, hanging copies are proven quiet, and all others land.",
            (_needed("actions", ValueKind.NUMBER),),
            calls=("finish", "abort", "preempt", "reset", "sleep", "wake", "prove_quiet", "request_state", "pending"),
        ),
        Verb(
            "prepare",
            "The content of a prompt is stored in the host, and the device is empty afterwards. `stride`: tokens per step.",
            (_needed("prompt", ValueKind.TEXT), Parameter("stride", ValueKind.NUMBER)),
            "scenes",
            calls=("finish", "sleep", "wake", "progress", "pending"),
        ),
        Verb(
            "empty_device",
            "The device loses its content, the host does not: sleep, drain, wake.",
            (),
            "scenes",
            calls=("sleep", "wake", "pending"),
        ),
        Verb("fill_host", "Every slot of the host is pinned: all stores are refused.", (), "scenes"),
        Verb("free_host", "The slots are unpinned.", (), "scenes"),
        Verb(
            "crowd_host",
            "So many slots are needed for other content: the least recently used are evicted. `fits`: whether there is room.",
            (_needed("slots", ValueKind.NUMBER), Parameter("fits", ValueKind.FLAG)),
            "scenes",
        ),
        Verb("forget", "The host loses these contents.", (_CONTENTS,), "scenes"),
        Verb("forget_on_device", "The device loses these contents, which no request holds.", (_CONTENTS,), "scenes"),
        Verb(
            "enter",
            "A request runs that is not scheduled: only the verbs of this section act on it. `waiting`: it does not run yet.",
            (_needed("request", ValueKind.TEXT), Parameter("waiting", ValueKind.FLAG)),
            "single blocks",
        ),
        Verb(
            "allocate",
            "Blocks for such a request, named with `as`.",
            (_REQUEST, Parameter("count", ValueKind.NUMBER), Parameter("group", ValueKind.NUMBER)),
            "single blocks",
            "blocks",
        ),
        Verb("acquire", "It takes content that is on the device.", (_REQUEST, _CONTENTS), "single blocks", "blocks"),
        Verb("release", "It releases blocks.", (_REQUEST, _needed("blocks", ValueKind.BLOCKS)), "single blocks"),
        Verb(
            "seal",
            "These blocks are computed, final, and found under these names. `running`: only the next step computes them; they "
            "are sealed before it has settled.",
            (_needed("blocks", ValueKind.BLOCKS), _CONTENTS, Parameter("running", ValueKind.FLAG)),
            "single blocks",
        ),
        Verb(
            "plan_store",
            "Plan a store of blocks to the host, under these names, for the next step.",
            (_REQUEST, _needed("blocks", ValueKind.BLOCKS), _CONTENTS),
            "single blocks",
            "job",
        ),
        Verb(
            "plan_load",
            "Plan a load of contents of the host into blocks of a request, for the next step.",
            (_REQUEST, _needed("blocks", ValueKind.BLOCKS), _CONTENTS),
            "single blocks",
            "job",
        ),
        Verb("cancel", "A store that was not launched is cancelled.", (_needed("copy", ValueKind.JOB),), "single blocks"),
        Verb("submit", "A copy is handed to the workers without a step.", (_needed("copy", ValueKind.JOB),), "single blocks"),
        Verb("abandon", "The result of a store is not wanted any more.", (_needed("copy", ValueKind.JOB),), "single blocks"),
        Verb("flush", "The next plan waits for these copies.", (_needed("copies", ValueKind.JOBS),), "single blocks"),
        Verb(
            "free",
            "The engine's allocator takes blocks back (`pool` is `engine`).",
            (_REQUEST, _needed("blocks", ValueKind.BLOCKS)),
            "single blocks",
        ),
        Verb("pin", "A holder pins contents of the host.", (_needed("holder", ValueKind.TEXT), _CONTENTS), "single blocks"),
        Verb("unpin", "A holder unpins them.", (_needed("holder", ValueKind.TEXT), _CONTENTS), "single blocks"),
        Verb("evict", "Contents of the host are evicted, unless they are pinned.", (_CONTENTS,), "single blocks"),
        Verb(
            "build_job",
            "Build the record of a copy that claims to have these sizes by group.",
            (_needed("blocks", ValueKind.BLOCKS), _needed("sizes", ValueKind.NUMBERS)),
            "single blocks",
        ),
        Verb(
            "swap",
            "A block and the host slot of a content change places.",
            (_needed("block", ValueKind.BLOCK), _needed("content", ValueKind.CONTENT)),
            "of other engines",
        ),
        Verb(
            "split",
            "A node of a prefix tree is split after so many tokens.",
            (_needed("content", ValueKind.CONTENT), _needed("at", ValueKind.NUMBER)),
            "of other engines",
        ),
        Verb("publish", "A node becomes visible in a tier.", (_needed("content", ValueKind.CONTENT),), "of other engines"),
        Verb(
            "attach",
            "A second connector is added beside the first.",
            (_needed("other", ValueKind.TEXT),),
            "of other engines",
        ),
    )
}
"""Every verb by name."""


@frozen
class Expectation:
    """Something that can be checked after a step."""

    name: str
    kind: ValueKind
    doc: str
    about: str = "the state"
    asks: tuple[str, ...] = ()
    """Methods of a driver that answer it; for ``state`` they depend on what is named."""


_STEP = "what the step did"
EXPECTATIONS: Mapping[str, Expectation] = {
    each.name: each
    for each in (
        Expectation(
            "stores",
            ValueKind.BLOCKS,
            "the stores planned in it read exactly these blocks, in one copy or in several",
            _STEP,
        ),
        Expectation(
            "loads",
            ValueKind.BLOCKS,
            "the loads planned in it write exactly these blocks, in one copy or in several",
            _STEP,
        ),
        Expectation("flushes", ValueKind.JOBS, "its plans wait for exactly these copies", _STEP),
        Expectation("hit", ValueKind.HITS, "length of the prefix hit of a request, in tokens, or `deferred`", _STEP),
        Expectation("hit_on_device", ValueKind.HITS, "how much of the hit is on the device", _STEP),
        Expectation("no_room", ValueKind.REQUESTS, "there was no room for exactly these requests", _STEP),
        Expectation("handed_out", ValueKind.BLOCKS, "these blocks were handed out, maybe others, too", _STEP),
        Expectation("not_handed_out", ValueKind.BLOCKS, "these did not", _STEP),
        Expectation("loaded", ValueKind.REQUESTS, "the loads of exactly these requests are done", _STEP),
        Expectation("load_failed", ValueKind.REQUESTS, "the loads of exactly these requests have failed", _STEP),
        Expectation("ended", ValueKind.REQUESTS, "exactly these requests ended, which had to wait for this plan", _STEP),
        Expectation("answer", ValueKind.LIMITS, "what `agree` agreed on", _STEP),
        Expectation("state", ValueKind.STATES, "the state of blocks, slots, copies and requests; a list means one of these"),
        Expectation("holds", ValueKind.HOLDS, "the content of a block on every worker's device; `garbage` for invalid content"),
        Expectation("in_host", ValueKind.CONTENTS, "these are found in the host", asks=("claims",)),
        Expectation("not_in_host", ValueKind.CONTENTS, "these are not", asks=("claims",)),
        Expectation("on_device", ValueKind.CONTENTS, "these are found on the device", asks=("claims",)),
        Expectation("not_on_device", ValueKind.CONTENTS, "these are not", asks=("claims",)),
        Expectation("same", ValueKind.PAIRS, "both names are the same block"),
        Expectation("other", ValueKind.PAIRS, "the names are different blocks"),
        Expectation("has", ValueKind.HAS, "a request holds these blocks, maybe others, too"),
        Expectation("out", ValueKind.JOBS, "exactly these copies run on the device"),
        Expectation("sizes", ValueKind.SIZES, "how many blocks of each group a copy has"),
        Expectation("tokens", ValueKind.HITS, "settled tokens of a request", asks=("progress",)),
        Expectation("pending", ValueKind.FLAG, "whether more ticks are needed", asks=("pending",)),
        Expectation(
            "nothing_left",
            ValueKind.FLAG,
            "no request, copy or pin is left, and every block and slot is at rest",
            asks=("left_behind",),
        ),
        Expectation("windows", ValueKind.WINDOWS, "chunks that a hit needs before its end, by group", asks=("windows",)),
        Expectation("count", ValueKind.COUNTS, "counts, see below: a number, or a comparison such as `>= 2`", asks=("count",)),
        Expectation(
            "same_as", ValueKind.STEP, "everything is as it was after that step, except job numbers", asks=("picture",)
        ),
    )
}
"""Every expectation by name."""

COUNTS: Mapping[str, str] = {
    "free": "blocks that can be handed out without a wait",
    "freeing_soon": "blocks that no request holds and that a copy still touches",
    "quarantined": "blocks that a copy past its deadline may still touch",
    "late": "reports of copies that were over already",
    "duplicate": "second reports of one copy by the same worker",
    "unknown": "reports of copies that nobody made",
    "jobs_made": "copies that were ever planned",
    "jobs_out": "copies that are planned or in flight",
    "ready": "host slots with readable content",
    "empty": "host slots without content",
    "stale": "blocks whose life was over when they were to be stored",
    "refused_stores": "times that no store could be planned for lack of room",
    "already_stored": "chunks that were already in the host when they were to be stored",
    "in_flight": "chunks that were already being stored when they were to be stored",
    "partial": "chunks that were not stored because of a hole",
    "requests": "requests that are not over",
}
"""What can be counted."""

SETTINGS: Mapping[str, attrs.Attribute[object]] = {each.name: each for each in attrs.fields(EngineSetup)}
"""Every setting of a world, by name."""


def _names(policy: type[enum.Enum]) -> tuple[str, ...]:
    return tuple(each.name.lower() for each in policy)


CHOICES: Mapping[str, tuple[str, ...]] = {
    "contract": _names(Contract),
    "scheduling": ("sync", "async"),
    "pool": ("own", "engine"),
    "mode": _names(Mode),
    "replacement": BUILT_IN,
    "full_hit": _names(FullHit),
    "last_step": _names(LastStep),
    "events": ("own", "none", "shared"),
}
"""Settings with a fixed set of values."""

SETTING_DOCS: Mapping[str, str] = {
    "groups": "the model's groups, with commas: `full:BLOCK`, `swa:BLOCK:WINDOW`, `local:BLOCK:PART`, `mamba:BLOCK`, in tokens"
    "; `/1` behind them: prefixes in the host may end inside a block, at every token",
    "blocks_per_chunk": "blocks that are stored as one",
    "blocks": "device blocks that can be handed out, without the null block",
    "slots": "host slots, each for one chunk",
    "workers": "ranks; every copy runs on each of them",
    "jobs": "copies that can be outstanding at the same time",
    "contract": "what may happen to a block that a store reads: it is handed out and the step waits, or it is held back",
    "scheduling": "whether a plan settles before the next one is made, or after it",
    "pool": "who hands out blocks: the ledger, or an allocator of the engine (single blocks only)",
    "deadline": "steps until a copy is past its deadline",
    "mode": "when content is stored: when its chunk is full, or shortly before its block is evicted",
    "lazy_blocks": "in lazy mode: how many of the next free blocks are kept stored",
    "replacement": "the eviction policy of the host tier",
    "full_hit": "what happens to a hit on the whole prompt",
    "last_step": "what happens to copies in flight when the last request ends",
    "partial_chunks": "whether a chunk with a hole that a hit could need is stored",
    "prompt_only": "whether only tokens of prompts are stored",
    "step_tokens": "the most tokens that one request computes per step, by the engine's own policy; 0 for no limit",
    "max_load_failures": "failed loads after which a request computes",
    "load_within_tokens": "how many tokens the loads of one step may bring together before its forward pass; 0: every load "
    "takes two steps",
    "state_drafts": "how many drafts a step may compute beside Mamba groups, each with a block for the state after it; 0: none",
    "events": "how copies wait for forward passes: each by its own event, not at all, or all by one event "
    "(then all count as landed when one has)",
    "seed": "the seed for `walk`",
}
"""What each setting means."""


@frozen
class Common:
    """A key that every step can have."""

    name: str
    doc: str
    choices: tuple[str, ...] = field(default=())


COMMON: Mapping[str, Common] = {
    each.name: each
    for each in (
        Common("do", "the verb"),
        Common("note", "a sentence for the reader; printed with `-v`, and where the step fails"),
        Common("when", "a table of variants in which the step is taken; in others it is skipped"),
        Common("as", "names for what the verb made: blocks in their order, or the copy"),
        Common("remember", "a table of new names for blocks, slots (`the slot of CONTENT`) and copies; `expect` may use them"),
        Common("name", "a name for the step, for `same_as`"),
        Common("refused", "the verb must be refused, and nothing may change", ("misuse", "capacity", "any")),
        Common("says", "part of the refusal's message"),
        Common("fault", "the step must break this rule, as the device or the engine finds; the scenario ends there"),
        Common("expect", "what must hold after the step"),
        Common(
            "policy",
            "in a scenario that tests safety: expectations that engines may meet or not. An unmet one is reported, and the run "
            "goes on; one that the engine cannot answer is skipped",
        ),
    )
}
"""The keys that every step can have besides the parameters of its verb."""

TOP = ("id", "title", "source", "tests", "invariants", "story", "world", "variants", "step", "end")
"""The keys of a file."""

SAFETY, POLICY = "safety", "policy"
TESTS: Mapping[str, str] = {
    SAFETY: "whatever an engine decides, no copy or forward pass touches memory that is no longer its own, nothing is found "
    "that is not there, and no place is lost; an unmet expectation is unsafe",
    POLICY: "what is stored, found, waited for, retried or forgotten, and when; engines may decide otherwise, so an unmet "
    "expectation is another policy",
}
"""What a scenario can test."""

RULES = tuple(f"I{number}" for number in range(1, 16))
"""The invariants."""
MEMORY_RULES = frozenset(RULES) - {"I12", "I14"}
"""Those whose violation is unsafe; the others say that everything ends, and that nothing is copied twice."""


def tables() -> Iterator[str]:
    """All words as the README prints them, line by line."""
    for section in dict.fromkeys(each.section for each in VERBS.values()):
        yield from ("", f"### Verbs: {section}", "", "| verb | takes | does |", "| --- | --- | --- |")
        for verb in VERBS.values():
            if verb.section == section:
                takes = ", ".join(f"`{each.name}`" + ("" if each.needed else "?") for each in verb.parameters)
                yield f"| `{verb.name}` | {takes + (', `as`' if verb.binds else '') or '-'} | {verb.doc} |"
    for about in dict.fromkeys(each.about for each in EXPECTATIONS.values()):
        yield from ("", f"### Expectations: {about}", "", "| key | value | means |", "| --- | --- | --- |")
        for each in EXPECTATIONS.values():
            if each.about == about:
                yield f"| `{each.name}` | {each.kind.value} | {each.doc} |"
    yield from ("", "### Counts", "", "| key | counts |", "| --- | --- |")
    yield from (f"| `{name}` | {doc} |" for name, doc in COUNTS.items())
    yield from ("", "### Keys of every step", "", "| key | means |", "| --- | --- |")
    for common in COMMON.values():
        choices = f" ({', '.join(f'`{each}`' for each in common.choices)})" if common.choices else ""
        yield f"| `{common.name}` | {common.doc}{choices} |"
    yield from ("", "### Settings of a world", "", "| key | default | means |", "| --- | --- | --- |")
    for name, doc in SETTING_DOCS.items():
        choices = f" ({', '.join(f'`{each}`' for each in CHOICES[name])})" if name in CHOICES else ""
        default = SETTINGS[name].default
        said = {True: "true", False: "false"}.get(default, str(default)) if isinstance(default, bool) else str(default)
        yield f"| `{name}` | {said} | {doc}{choices} |"
    yield from ("", "### What a scenario tests", "", "| `tests` | means |", "| --- | --- |")
    yield from (f"| `{name}` | {doc} |" for name, doc in TESTS.items())
    yield ""
