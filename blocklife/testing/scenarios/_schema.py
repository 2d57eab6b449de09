"""The schema of a scenario file: every verb with what it takes, every expectation, every setting, each with its sentence.

Rules of this file:

* It is a table. What a word does stands elsewhere (`stage`, `judge`); a test sees to it that each is done.
* `specs/scenarios/README.md` prints these sentences; another test compares.
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
"""Whatever a TOML file can say, dates apart."""


class ValueKind(enum.Enum):
    """What a value is; its text is what an error says was expected."""

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
    """One thing that a verb takes."""

    name: str
    kind: ValueKind
    needed: bool = False
    choices: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    """Methods of a driver that a step needs if it says this."""


def _needed(name: str, kind: ValueKind) -> Parameter:
    return Parameter(name, kind, needed=True)


@frozen
class Verb:
    """Something that a step does."""

    name: str
    doc: str
    parameters: tuple[Parameter, ...] = ()
    section: str = "the engine"
    binds: str = ""
    """What ``as`` names: ``blocks`` or ``job``; empty where the verb makes nothing."""
    calls: tuple[str, ...] | None = None
    """Methods of a driver that it needs besides the five that every driver has; None for one of its own name."""

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
            "A request comes with a prompt, one letter a token; it waits. `tokens`: it ends by itself with so many in all. "
            "`reply`: what it will sample; it ends with that.",
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
            "One engine step: preempt, schedule, let in, plan, carry out, settle (`async`: settle the plan before). "
            "`compute`: tokens of running requests, 0 for those not named; left out: the engine's own choice. `let_in`: who is "
            "looked up and let in, with a number where not all known tokens are computed at once; left out: whoever waits. "
            "`sampled`: how many tokens a request gets. `failing`: what the plan waits for lands badly. `settle = false`: the "
            "plan stays out. `times`, `until`: again.",
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
        Verb(
            "tick", "A step in which nobody computes or enters; then all plans that are out settle.", (_TIMES, _UNTIL), calls=()
        ),
        Verb(
            "settle",
            "The oldest plan that is out settles, with all reports. `after`: so many steps' time passes first.",
            (Parameter("sampled", ValueKind.TOKENS), Parameter("after", ValueKind.NUMBER, calls=("advance",))),
            calls=(),
        ),
        Verb(
            "compute",
            "Steps in which this request alone computes, until just so many of its tokens are settled, and none is in flight.",
            (_REQUEST, _needed("tokens", ValueKind.NUMBER)),
            calls=("progress",),
        ),
        Verb("lookup", "Ask how much of a request is there; what was counted stays until the next plan.", (_REQUEST,)),
        Verb("finish", "The engine has seen enough of a request.", (_REQUEST,)),
        Verb("abort", "The client of a request has gone.", (_REQUEST,)),
        Verb("preempt", "A request loses everything, between two steps.", (_REQUEST,)),
        Verb(
            "land",
            "Copies arrive on the device: those named, or all that run; on one `worker`, or on all. Their reports come with "
            "the next plan that settles; `report`: `twice`, or `lost`.",
            (_COPIES, _WORKER, _REPORT),
            calls=(),
        ),
        Verb("fail", "As `land`, but the bytes are garbage, and the report says so.", (_COPIES, _WORKER, _REPORT), calls=()),
        Verb(
            "hang", "Copies will never land by themselves; a wait for them ends them unreported.", (_COPIES, _WORKER), calls=()
        ),
        Verb(
            "report",
            "A report comes although nothing landed now: once more, late, too early, or of a copy that `nobody` made.",
            (_needed("copy", ValueKind.JOB), _WORKER, Parameter("failed", ValueKind.FLAG)),
            calls=(),
        ),
        Verb(
            "lose_report",
            "A report that was sent, and has not been told yet, gets lost.",
            (_needed("copy", ValueKind.JOB), _WORKER),
            calls=(),
        ),
        Verb(
            "reset", "All content is forgotten; with `drain` only when no copy is out.", (Parameter("drain", ValueKind.FLAG),)
        ),
        Verb("renew", "Other weights, or another customer.", (_needed("generation", ValueKind.TEXT),)),
        Verb("sleep", "The device is given up; the host keeps what it has."),
        Verb("wake", "The device is there again, empty."),
        Verb("lose_worker", "A worker is gone, and what ran and lay there.", (_needed("worker", ValueKind.WORKER),)),
        Verb("regain_worker", "It is there again, with empty memory.", (_needed("worker", ValueKind.WORKER),)),
        Verb("pass_time", "So many steps' time passes, and a tick.", (_needed("steps", ValueKind.NUMBER),), calls=("advance",)),
        Verb("prove_quiet", "The device is synchronised with these copies, or with all that run.", (_COPIES,)),
        Verb("drain", "Ticks in which everything lands, until nothing is pending.", calls=("pending",)),
        Verb("agree", "Ranks say what they have; the answer is what all go by.", (_needed("ranks", ValueKind.RANKS),)),
        Verb("check", "Nothing happens: a place for expectations.", calls=()),
        Verb(
            "walk",
            "So many random actions, drawn with the world's `seed`: requests come, grow, are preempted and end, copies land in "
            "any order, fail, hang and report twice, the device or everything is forgotten now and then. At the end all "
            "requests end, what hangs is proven quiet, and all copies land.",
            (_needed("actions", ValueKind.NUMBER),),
            calls=("finish", "abort", "preempt", "reset", "sleep", "wake", "prove_quiet", "request_state", "pending"),
        ),
        Verb(
            "prepare",
            "The content of a prompt comes to the host, and the device is empty afterwards. `stride`: tokens in a step.",
            (_needed("prompt", ValueKind.TEXT), Parameter("stride", ValueKind.NUMBER)),
            "scenes",
            calls=("finish", "sleep", "wake", "progress", "pending"),
        ),
        Verb(
            "empty_device",
            "The device loses all content, the host none: sleep, drain, wake.",
            (),
            "scenes",
            calls=("sleep", "wake", "pending"),
        ),
        Verb("fill_host", "Somebody counts on every slot of the host: it refuses all stores.", (), "scenes"),
        Verb("free_host", "Nobody counts on them any more.", (), "scenes"),
        Verb(
            "crowd_host",
            "So many slots are wanted for something else: what was used least recently goes. `fits`: whether there is room.",
            (_needed("slots", ValueKind.NUMBER), Parameter("fits", ValueKind.FLAG)),
            "scenes",
        ),
        Verb("forget", "The host loses these contents.", (_CONTENTS,), "scenes"),
        Verb("forget_on_device", "The device loses these contents, which nobody holds.", (_CONTENTS,), "scenes"),
        Verb(
            "enter",
            "A request runs for which no scheduler acts, only the verbs of this section; with `waiting` it does not run yet.",
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
        Verb("acquire", "It takes content that lies on the device.", (_REQUEST, _CONTENTS), "single blocks", "blocks"),
        Verb("release", "It lets go of blocks.", (_REQUEST, _needed("blocks", ValueKind.BLOCKS)), "single blocks"),
        Verb(
            "seal",
            "These blocks are computed, final, and found under these names. `running`: it is the next step that computes them, "
            "and they are called final before it has settled.",
            (_needed("blocks", ValueKind.BLOCKS), _CONTENTS, Parameter("running", ValueKind.FLAG)),
            "single blocks",
        ),
        Verb(
            "plan_store",
            "Blocks are to be copied to the host under these names, from the next step on.",
            (_REQUEST, _needed("blocks", ValueKind.BLOCKS), _CONTENTS),
            "single blocks",
            "job",
        ),
        Verb(
            "plan_load",
            "Contents of the host are to be brought into blocks of a request, from the next step on.",
            (_REQUEST, _needed("blocks", ValueKind.BLOCKS), _CONTENTS),
            "single blocks",
            "job",
        ),
        Verb("cancel", "A store that was not launched is given up.", (_needed("copy", ValueKind.JOB),), "single blocks"),
        Verb("submit", "A copy is handed to the workers without a step.", (_needed("copy", ValueKind.JOB),), "single blocks"),
        Verb("abandon", "Nobody wants the result of a store any more.", (_needed("copy", ValueKind.JOB),), "single blocks"),
        Verb("flush", "The next plan waits for these copies.", (_needed("copies", ValueKind.JOBS),), "single blocks"),
        Verb(
            "free",
            "The engine's allocator takes blocks back (`pool` is `engine`).",
            (_REQUEST, _needed("blocks", ValueKind.BLOCKS)),
            "single blocks",
        ),
        Verb(
            "pin", "Somebody counts on contents of the host.", (_needed("holder", ValueKind.TEXT), _CONTENTS), "single blocks"
        ),
        Verb("unpin", "And no longer does.", (_needed("holder", ValueKind.TEXT), _CONTENTS), "single blocks"),
        Verb("evict", "Contents of the host are forgotten, unless somebody counts on them.", (_CONTENTS,), "single blocks"),
        Verb(
            "build_job",
            "The record of a copy is built whose sizes by group are said to be these.",
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
        Verb("attach", "A second connector stands beside the first.", (_needed("other", ValueKind.TEXT),), "of other engines"),
    )
}
"""Every verb by name."""


@frozen
class Expectation:
    """Something that can be asked after a step."""

    name: str
    kind: ValueKind
    doc: str
    about: str = "the state"
    asks: tuple[str, ...] = ()
    """Methods of a driver that answer it; of ``state`` they depend on what is named."""


_STEP = "what the step did"
EXPECTATIONS: Mapping[str, Expectation] = {
    each.name: each
    for each in (
        Expectation(
            "stores",
            ValueKind.BLOCKS,
            "exactly these blocks are read by stores that were planned in it, in one copy or in several",
            _STEP,
        ),
        Expectation(
            "loads",
            ValueKind.BLOCKS,
            "exactly these blocks are written by loads that were planned in it, in one copy or in several",
            _STEP,
        ),
        Expectation("flushes", ValueKind.JOBS, "its plans wait for exactly these copies", _STEP),
        Expectation("hit", ValueKind.HITS, "length of what was found for a request, in tokens, or `deferred`", _STEP),
        Expectation("hit_on_device", ValueKind.HITS, "how much of that lies on the device", _STEP),
        Expectation("no_room", ValueKind.REQUESTS, "exactly these requests found no room", _STEP),
        Expectation("handed_out", ValueKind.BLOCKS, "these blocks got a new tenant, maybe others too", _STEP),
        Expectation("not_handed_out", ValueKind.BLOCKS, "these did not", _STEP),
        Expectation("loaded", ValueKind.REQUESTS, "the loads of exactly these requests are done", _STEP),
        Expectation("load_failed", ValueKind.REQUESTS, "the loads of exactly these requests are lost", _STEP),
        Expectation("ended", ValueKind.REQUESTS, "exactly these had waited for a plan to end", _STEP),
        Expectation("answer", ValueKind.LIMITS, "what `agree` agreed on", _STEP),
        Expectation("state", ValueKind.STATES, "the state of blocks, slots, copies and requests; a list: one of these"),
        Expectation(
            "holds", ValueKind.HOLDS, "what lies in a block on the device of every worker; `garbage` for nothing of use"
        ),
        Expectation("in_host", ValueKind.CONTENTS, "these can be found in the host", asks=("claims",)),
        Expectation("not_in_host", ValueKind.CONTENTS, "these cannot", asks=("claims",)),
        Expectation("on_device", ValueKind.CONTENTS, "these can be found on the device", asks=("claims",)),
        Expectation("not_on_device", ValueKind.CONTENTS, "these cannot", asks=("claims",)),
        Expectation("same", ValueKind.PAIRS, "two names of one block"),
        Expectation("other", ValueKind.PAIRS, "names of two blocks"),
        Expectation("has", ValueKind.HAS, "a request holds these blocks, maybe others too"),
        Expectation("out", ValueKind.JOBS, "exactly these copies run on the device"),
        Expectation("sizes", ValueKind.SIZES, "blocks of each group that a copy has"),
        Expectation("tokens", ValueKind.HITS, "settled tokens of a request", asks=("progress",)),
        Expectation("pending", ValueKind.FLAG, "whether ticking must go on", asks=("pending",)),
        Expectation(
            "nothing_left",
            ValueKind.FLAG,
            "no request, copy or pin is left, and every block and slot is at rest",
            asks=("left_behind",),
        ),
        Expectation("windows", ValueKind.WINDOWS, "chunks that a hit needs before its end, by group", asks=("windows",)),
        Expectation("count", ValueKind.COUNTS, "numbers, see below; a text like `>= 2` compares", asks=("count",)),
        Expectation(
            "same_as", ValueKind.STEP, "everything is as it was after that step, the numbers of jobs apart", asks=("picture",)
        ),
    )
}
"""Every expectation by name."""

COUNTS: Mapping[str, str] = {
    "free": "blocks that can be handed out without a wait",
    "freeing_soon": "blocks that nobody holds and that a copy still touches",
    "quarantined": "blocks of which nobody knows whether the device is done",
    "late": "reports of copies whose verdict was known",
    "duplicate": "second reports of a worker",
    "unknown": "reports of copies that nobody made",
    "jobs_made": "copies that were ever planned",
    "jobs_out": "copies that are planned or under way",
    "ready": "host slots with readable content",
    "empty": "host slots without content",
    "stale": "blocks whose life was over when their turn to be stored came",
    "refused_stores": "times that no store could be planned for lack of room",
    "already_stored": "chunks that were in the host when their turn came",
    "in_flight": "chunks of which a store was under way when their turn came",
    "partial": "chunks that were left out because of what they lack",
    "requests": "requests that are not over",
}
"""What can be counted."""

SETTINGS: Mapping[str, attrs.Attribute[object]] = {each.name: each for each in attrs.fields(EngineSetup)}
"""What a world can be told, by name."""


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
"""Settings that have a few values."""

SETTING_DOCS: Mapping[str, str] = {
    "groups": "groups of the model, as `full:BLOCK`, `swa:BLOCK:WINDOW` or `mamba:BLOCK` in tokens, with commas between",
    "blocks_per_chunk": "blocks that are stored as one",
    "blocks": "device blocks that can be handed out; the null block comes on top",
    "slots": "host slots, each for one chunk",
    "workers": "ranks; every copy runs on each of them",
    "jobs": "copies that can be out at the same time",
    "contract": "what may happen to a block that a store reads: it is handed out and the step waits, or it is held back",
    "scheduling": "whether a plan settles before the next one is made, or after it",
    "pool": "who hands out blocks: the ledger, or an allocator of the engine (single blocks only)",
    "deadline": "steps that a copy may run",
    "mode": "content is stored as its chunk fills, or when its block is about to go",
    "lazy_blocks": "lazy: how many of the blocks that go next are kept stored",
    "replacement": "what the host forgets first",
    "full_hit": "what happens to a hit on the whole prompt",
    "last_step": "what happens to copies that are out when the last request ends",
    "partial_chunks": "whether a chunk with a hole that a hit could need is stored",
    "prompt_only": "whether only tokens of prompts are stored",
    "step_tokens": "tokens that one request computes in one step at most, by the engine's own policy; 0: no limit",
    "max_load_failures": "failed loads after which a request computes",
    "events": "how copies wait for forward passes: each by its own event, not at all, or all by one event "
    "(when one has landed, all are said to have)",
    "seed": "for `walk`",
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
        Common("when", "a table of variants in which the step is taken; in the others it is left out"),
        Common("as", "names for what the verb made: blocks in their order, or the copy"),
        Common("remember", "a table of new names for blocks, slots (`the slot of CONTENT`) and copies; `expect` may use them"),
        Common("name", "the name of the step, for `same_as`"),
        Common("refused", "the verb must be refused, and nothing may change", ("misuse", "capacity", "any")),
        Common("says", "part of the refusal's message"),
        Common("fault", "the step must break this rule, as the device or the engine sees it; the scenario ends there"),
        Common("expect", "what must hold after the step"),
        Common(
            "policy",
            "in a scenario that tests safety: what engines may do otherwise. What is not so is told, and the run goes on; what "
            "the engine cannot answer is left out",
        ),
    )
}
"""What every step can say besides what its verb takes."""

TOP = ("id", "title", "source", "tests", "invariants", "story", "world", "variants", "step", "end")
"""The keys of a file."""

SAFETY, POLICY = "safety", "policy"
TESTS: Mapping[str, str] = {
    SAFETY: "whatever an engine decides, no bytes are read or written that are not its own by then, nothing is found that is "
    "not there, and no place is lost; what is not as expected is unsafe",
    POLICY: "what is stored, found, waited for, retried or forgotten, and when; an engine may well decide otherwise, and what "
    "is not as expected is another policy",
}
"""What a scenario can test."""

RULES = tuple(f"I{number}" for number in range(1, 16))
"""The invariants."""
MEMORY_RULES = frozenset(RULES) - {"I12", "I14"}
"""Those whose breach is unsafe; the others say that everything comes to an end, and that nothing is copied twice."""


def tables() -> Iterator[str]:
    """The vocabulary as the README prints it, line by line."""
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
