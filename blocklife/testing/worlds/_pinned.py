"""The pinned worlds: small ones that every change is explored in, with their exact numbers of states, and larger ones.

Rules of this file:

* A world is data. `_world` decides what can happen in it and what must hold.
* Counts are exact: a changed rule changes a number here, and shows which worlds it affects. One table has all (`COUNTS`).

Theory. A world is bounded in four ways: places, requests, faults, and policies. Each world is small in all but one of them, so
that combinations of two dangers are covered as well as each alone: *loads* needs requests whose content has left the device,
*overdue* a copy that never lands while its places are wanted, *windows* blocks that leave a running request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from attrs import field, frozen

from blocklife.errors import MisuseError
from blocklife.ledger import Contract
from blocklife.offload import FullHit, LastStep, Mode
from blocklife.testing.worlds._engine import Settings
from blocklife.testing.worlds._world import Faults, WorldSettings

FENCE, HOLD = Contract.FENCE, Contract.HOLD


class Counts(NamedTuple):
    """What an exploration of a whole world counts."""

    states: int
    edges: int
    depth: int


@frozen
class Pinned:
    """A world with a name."""

    name: str
    about: str
    """One sentence: what can happen there that cannot happen in the others."""
    settings: WorldSettings
    large: bool = field(default=False, kw_only=True)
    """Whether the ordinary tests leave it out."""

    @property
    def counts(self) -> Counts | None:
        """Its pinned counts; None if it has not been counted yet."""
        return COUNTS.get(self.name)


def _world(requests: tuple[str, ...], engine: Settings, **faults: int) -> WorldSettings:
    return WorldSettings(engine=engine, requests=requests, faults=Faults(**faults))


_TWO = ("ab.cd", "ab.ce")
_SHORT = ("ab.c", "ab.d")
_OTHERS = ("ab.c", "de.f", "ab.g")
_LONGER = ("ab.c", "ab.de")
_SLIDING = ("abcdefghijkl.mnopq", "wxyz.v")
_HOLES = ("abcdef.g", "abcdef.h")
_PARTS = ("abcd.ef", "abcd.g")
_HYBRID = ("abcd.ef", "abcd.gh")
_GUESSED = ("ab.cDef", "ab.cG")
_ONE = ("ab.cd",)
_INSIDE = ("a.b", "ab.cd")


def _tails(**changes: Any) -> Settings:
    """An engine with blocks of two tokens, in which a prefix may end behind the first."""
    return Settings(**{"groups": "full:2/1", "num_slots": 4, **changes})


def _drafted(**changes: Any) -> Settings:
    """An engine with blocks of three tokens of a drafter's layers, in which a prefix may end behind each."""
    return _tails(**{"groups": "full:3+drafter/1", "num_blocks": 3, "num_slots": 6, **changes})


def _below(demote: str = "eager", *, shared: bool = True, wait: float = 1.0, **changes: Any) -> Settings:
    """An engine with a store below."""
    return Settings(below=demote, below_shared=shared, below_wait=wait, **changes)


def _impatient(**changes: Any) -> Settings:
    """An engine whose requests wait for content on its way until time passes once."""
    return Settings(**{"pending_wait": 1.0, "num_slots": 3, **changes})


WORLDS: tuple[Pinned, ...] = (
    Pinned("calm-fence", "two requests with a common prefix, and nothing goes wrong", _world(_TWO, Settings(max_jobs=2))),
    Pinned(
        "calm-hold",
        "the same, and a block that a copy reads is not handed out",
        _world(_TWO, Settings(max_jobs=2, contract=HOLD)),
    ),
    Pinned(
        "clients-fence",
        "a request is preempted and a client disconnects, at any time",
        _world(_TWO, Settings(max_jobs=2), abort=1, preempt=1),
    ),
    Pinned(
        "clients-hold",
        "the same while copies hold on to blocks",
        _world(_TWO, Settings(max_jobs=2, contract=HOLD), abort=1, preempt=1),
    ),
    Pinned(
        "loads-fence",
        "content comes back from the host into blocks that were just handed out",
        _world(_OTHERS, Settings(max_jobs=2), fail=1, preempt=1),
    ),
    Pinned(
        "loads-hold",
        "content comes back from the host when blocks are free again",
        _world(_OTHERS, Settings(max_jobs=2, contract=HOLD), fail=1, preempt=1),
    ),
    Pinned(
        "overdue-fence",
        "a copy never lands, and its blocks are handed out behind a wait",
        _world(_OTHERS, Settings(num_blocks=2, num_slots=4), hang=1, preempt=2),
    ),
    Pinned(
        "overdue-hold",
        "a copy never lands, and its blocks are unavailable until the device is proven quiet",
        _world(_OTHERS, Settings(num_blocks=2, num_slots=4, contract=HOLD), hang=1, preempt=1),
    ),
    Pinned(
        "overdue-asleep",
        "a copy never lands while the device is given up",
        _world(_SHORT, Settings(), hang=1, sleep=1, preempt=1),
    ),
    Pinned(
        "reports-lost",
        "a report is lost, and the engine has to find out by its deadline",
        _world(_SHORT, Settings(), lose=1, fail=1, preempt=1),
    ),
    Pinned(
        "reports-twice",
        "reports come once more, before or after the job is over, from either of two workers",
        _world(_SHORT, Settings(num_workers=2), repeat=2, preempt=1),
    ),
    Pinned(
        "upheavals",
        "all content is forgotten, at once or when no copy is out, while copies fail",
        _world(_SHORT, Settings(), fail=1, reset=1, drain=1),
    ),
    Pinned("weights", "the weights change twice", _world(_SHORT, Settings(), renew=2)),
    Pinned(
        "sleep",
        "the device is given up while copies run, and clients disconnect",
        _world(_LONGER, Settings(), sleep=2, abort=1),
    ),
    Pinned(
        "sleep-loads",
        "the device is given up while a load runs, which then hangs, and the same is loaded again",
        _world(_LONGER, Settings(num_slots=3), hang=1, sleep=2, preempt=1),
    ),
    Pinned(
        "two-workers",
        "of two workers one fails, or never reports, and the other does not",
        _world(_SHORT, Settings(num_workers=2), fail=1, hang=1, abort=1),
    ),
    Pinned(
        "two-workers-forget",
        "two workers land one after the other while all content is forgotten",
        _world(_SHORT, Settings(num_workers=2, num_blocks=2), hang=1, abort=1, reset=1),
    ),
    Pinned(
        "lost-worker",
        "one of two workers is lost with its memory, and comes back",
        _world(_SHORT, Settings(num_workers=2), lose_worker=1, preempt=1),
    ),
    Pinned(
        "ahead-fence",
        "each step is planned while the previous one runs",
        _world(_OTHERS, Settings(asynchronous=True, num_blocks=2, num_slots=4), hang=1, preempt=1),
    ),
    Pinned(
        "ahead-hold",
        "the same while copies hold on to blocks",
        _world(_OTHERS, Settings(asynchronous=True, num_blocks=2, num_slots=4, contract=HOLD), hang=1, preempt=1),
    ),
    Pinned(
        "windows",
        "blocks that have left a window go to the same request or to another, before or after they were stored",
        _world(_SLIDING, Settings(groups="swa:4:8", num_slots=1, step_tokens=4), hang=1, preempt=1),
    ),
    Pinned(
        "windows-ahead",
        "the same, planned ahead",
        _world(_SLIDING, Settings(groups="swa:4:8", num_blocks=4, num_slots=1, asynchronous=True), abort=1),
    ),
    Pinned(
        "twins",
        "three requests have the same text, and a report of what they share is lost",
        _world(("abcd.e",) * 3, Settings(groups="full:2", num_blocks=4, num_slots=4), lose=1, preempt=1),
    ),
    Pinned(
        "holes",
        "chunks of two blocks, of which the window has left one",
        _world(_HOLES, Settings(groups="swa:1:3", blocks_per_chunk=2, num_blocks=6, step_tokens=3), preempt=1),
    ),
    Pinned(
        "parts",
        "the same, and what is left of such a chunk is stored",
        _world(
            _HOLES,
            Settings(groups="swa:1:3", blocks_per_chunk=2, num_blocks=6, step_tokens=3, partial_chunks=True),
            preempt=1,
        ),
    ),
    Pinned(
        "local",
        "blocks of a part of local attention go when the next part begins, and a copy never lands",
        _world(_SLIDING, Settings(groups="local:4:8", num_slots=1, step_tokens=4), hang=1, preempt=1),
    ),
    Pinned(
        "local-full",
        "a full group and parts of local attention agree on one length",
        _world(_PARTS, Settings(groups="full:1,local:1:2", num_blocks=9, num_slots=5, step_tokens=3), fail=1, preempt=1),
    ),
    Pinned(
        "local-within",
        "the same, and what a step reads is loaded in that step",
        _world(
            _PARTS,
            Settings(groups="full:1,local:1:2", num_blocks=9, num_slots=5, step_tokens=3, load_within_tokens=2),
            fail=1,
            preempt=1,
        ),
    ),
    Pinned(
        "local-ahead",
        "the same, planned ahead, with parts of three blocks, and clients that disconnect",
        _world(
            ("abcde.f", "abcd.g"),
            Settings(groups="full:1,local:1:3", num_blocks=11, num_slots=6, asynchronous=True),
            abort=1,
            fail=1,
        ),
    ),
    Pinned(
        "hybrid",
        "a full group and a window agree on one length",
        _world(_HYBRID, Settings(groups="full:2,swa:2:2", num_blocks=6, num_slots=4), fail=1, preempt=1, sleep=1),
    ),
    Pinned(
        "hybrid-states",
        "a full group, a window and states agree on one length",
        _world(_HYBRID, Settings(groups="full:2,swa:2:2,mamba:2", num_blocks=9, num_slots=5), fail=1, preempt=1, sleep=1),
    ),
    Pinned(
        "states-ahead",
        "states of a plan whose last token is not known yet, and clients that disconnect",
        _world(_HYBRID, Settings(groups="full:2,mamba:2", num_blocks=8, num_slots=4, asynchronous=True), abort=1),
    ),
    Pinned(
        "roomy",
        "there is a slot for everything, and everything computed must be stored",
        _world(("ab.cd", "ae.f"), Settings(num_slots=8, asynchronous=True), abort=1, preempt=1),
    ),
    Pinned(
        "roomy-chunks",
        "the same with chunks of two blocks",
        _world(("abcd.e", "abcf.g"), Settings(blocks_per_chunk=2, num_blocks=7, num_slots=5, step_tokens=2), preempt=1),
    ),
    Pinned(
        "roomy-states",
        "the same where a full group and states have to agree",
        _world(("abcd.ef", "abx.gh"), Settings(groups="full:2,mamba:2", num_blocks=8, num_slots=12), abort=1, preempt=1),
    ),
    Pinned(
        "last-step-flush",
        "the last request ends while copies are in flight, and one of them never lands: the last plan waits",
        _world(_SHORT, Settings(), hang=1, fail=1, abort=1),
    ),
    Pinned(
        "last-step-drain",
        "the same, without a wait",
        _world(_SHORT, Settings(last_step=LastStep.DRAIN), hang=1, fail=1, abort=1),
    ),
    Pinned(
        "lazy",
        "content is stored when its block is about to go, and all is forgotten meanwhile",
        _world(("ab.c", "de.f"), Settings(mode=Mode.LAZY, lazy_blocks=2), hang=1, reset=1),
    ),
    Pinned(
        "arc",
        "the host evicts by ARC, which remembers what it has evicted",
        _world(_OTHERS, Settings(replacement="arc"), preempt=1, reset=1),
    ),
    Pinned(
        "patient",
        "a load may fail twice before its request computes",
        _world(_LONGER, Settings(max_load_failures=2), fail=3, sleep=1),
    ),
    Pinned(
        "two-owners-fence",
        "a second owner reads blocks of a request that runs, ends or is preempted, and only then gives them back",
        _world(_OTHERS, Settings(max_jobs=2), lend=2, preempt=1),
    ),
    Pinned(
        "two-owners-hold",
        "the same while copies hold on to blocks",
        _world(_OTHERS, Settings(max_jobs=2, contract=HOLD), lend=2, preempt=1),
    ),
    Pinned(
        "recompute",
        "a hit on the whole prompt is taken, and its last token computed once more",
        _world(_LONGER, Settings(full_hit=FullHit.RECOMPUTE_LAST_TOKEN), fail=1, sleep=1, preempt=1),
    ),
    Pinned(
        "drafts",
        "two tokens are guessed in each step, and the third is always wrong, while a copy fails and a client disconnects",
        _world(_GUESSED, Settings(drafts=2, num_blocks=9, num_slots=6), fail=1, abort=1),
    ),
    Pinned(
        "drafts-overdue",
        "a request with wrong guesses is preempted, and a copy never lands",
        _world(("ab.cDe", "ab.c"), Settings(drafts=1, num_blocks=4), hang=1, preempt=1),
    ),
    Pinned(
        "drafter",
        "the drafter has layers of its own: it writes the last position once more, and a hit needs a proof",
        _world(_GUESSED, Settings(groups="full:1+drafter", drafts=2, num_blocks=9, num_slots=6), fail=1, abort=1),
    ),
    Pinned(
        "drafter-windows",
        "the same where a window of the drafter and a full group agree",
        _world(_GUESSED, Settings(groups="full:1,swa:1:2+drafter", drafts=1, num_blocks=16, num_slots=8), fail=1),
    ),
    Pinned(
        "drafts-states",
        "the state of each guess has a block of its own, and only states of known tokens are handed off; requests give way",
        _world(("ab.cDe", "ab.c"), Settings(groups="full:1,mamba:1", drafts=1, num_blocks=9, num_slots=6), fail=1, preempt=1),
    ),
    Pinned(
        "drafts-states-overdue",
        "the same where a copy of a state never lands, and blocks are short",
        _world(("ab.cDe", "ab.c"), Settings(groups="mamba:1", drafts=2, num_blocks=5), hang=1, preempt=1),
    ),
    Pinned(
        "drafter-states",
        "a drafter beside states: what it keeps back, and what only guesses have reached",
        _world(
            ("ab.cDe", "ab.c"), Settings(groups="full:1+drafter,mamba:1", drafts=2, num_blocks=12, num_slots=8), fail=1, abort=1
        ),
    ),
    Pinned(
        "tails-fence",
        "what ends inside a block is loaded, and its request writes on there, while copies never land",
        _world(_INSIDE, _tails(num_blocks=2), hang=1, preempt=1),
    ),
    Pinned(
        "tails-hold",
        "the same while copies hold on to blocks, and copies fail",
        _world(_INSIDE, _tails(num_blocks=2, contract=HOLD), hang=1, fail=1, preempt=1),
    ),
    Pinned(
        "tails-behind",
        "two requests load the same tail behind a block that they share, and write on differently",
        _world(("abc.d", "abcd.ef", "abcx.y"), _tails(), fail=1),
    ),
    Pinned(
        "tails-forget",
        "all is forgotten, or the device is given up, while a tail is stored, loaded or written on",
        _world(_INSIDE, _tails(), reset=1, drain=1, sleep=1),
    ),
    Pinned(
        "tails-ahead",
        "steps planned ahead of each other, with two groups of tails, and clients that disconnect",
        _world(_INSIDE, _tails(groups="full:2,full:2/1", num_blocks=6, num_slots=6, asynchronous=True), abort=1, fail=1),
    ),
    Pinned(
        "tails-roomy",
        "there is a slot for every tail, and every tail that is final on the device must be stored",
        _world(("a.b", "abc.de"), _tails(num_slots=8), abort=1, preempt=1),
    ),
    Pinned(
        "tails-workers",
        "one of two workers fails, or is lost, with its half of a tail",
        _world(("a.b", "ab.c"), _tails(num_workers=2), fail=1, lose_worker=1),
    ),
    Pinned(
        "tails-below",
        "whole blocks go to a store below and come back, and tails do not",
        _world(("abc.d", "abcd.ef"), _below(shared=False, groups="full:2/1", num_slots=2, max_jobs=3), preempt=1),
    ),
    Pinned(
        "tails-drafter-fence",
        "a tail of a drafter's layers, whose key names the token behind it, is loaded while copies never land",
        _world(("abcde.f", "abcdex.g"), _drafted(num_blocks=2), hang=1, preempt=1),
    ),
    Pinned(
        "tails-drafter-hold",
        "the same while copies hold on to blocks, and copies fail",
        _world(("abcde.f", "abcdef.g"), _drafted(contract=HOLD), hang=1, fail=1, preempt=1),
    ),
    Pinned(
        "tails-drafter-proof",
        "a request begins as the tail does, with another token behind it, and computes",
        _world(("ab.c", "ab.d", "ax.y"), _drafted(num_slots=3), fail=1),
    ),
    Pinned(
        "tails-drafter-next",
        "two requests load the same tail with the block before it, and all go on differently behind it",
        _world(("abcde.f", "abcdex.g", "abcde.y"), _drafted(num_blocks=4, num_slots=5)),
    ),
    Pinned(
        "tails-drafter-ahead",
        "steps planned ahead of each other, where a group without a drafter has tails, too",
        _world(
            ("abcde.f", "abcdex.g"),
            _drafted(groups="full:3,full:3+drafter/1", num_blocks=8, asynchronous=True),
            fail=1,
            abort=1,
        ),
    ),
    Pinned(
        "tails-drafter-forget",
        "all is forgotten, the weights change, or the device is given up, meanwhile",
        _world(("abcde.f", "abcdef.g"), _drafted(), reset=1, renew=1, sleep=1),
    ),
    Pinned(
        "tails-drafter-roomy",
        "there is a slot for every tail, and every tail that is final on the device must be stored",
        _world(("abcde.f", "abcdef.g"), _drafted(num_blocks=4, num_slots=9), abort=1, preempt=1),
    ),
    Pinned(
        "tails-drafter-below",
        "whole blocks go to a store below and come back, and serve as the tails of others",
        _world(
            ("abcde.f", "abcde.g"),
            _below(shared=False, groups="full:3+drafter/1", num_blocks=4, max_jobs=3, num_slots=3),
            preempt=1,
        ),
    ),
    Pinned(
        "below-fence",
        "what only a store below has is fetched for two requests, and what they compute goes there",
        _world(_TWO, _below(num_slots=3, max_jobs=3)),
    ),
    Pinned(
        "below-hold",
        "the same while copies hold on to blocks",
        _world(_TWO, _below(num_slots=3, max_jobs=3, contract=HOLD)),
    ),
    Pinned(
        "below-clients",
        "one who waits for the store below disconnects or is preempted, and copies to and from there fail",
        _world(_ONE, _below(num_slots=3, max_jobs=3), abort=1, preempt=1, fail=1),
    ),
    Pinned(
        "below-vanishes",
        "content vanishes below, one worker's part of it or each, before or after it was asked for",
        _world(("ab.c",), _below("never", num_workers=2), vanish=2, fail=1),
    ),
    Pinned(
        "below-crowded",
        "two requests want more from below than the host tier has room for",
        _world(("abc.d", "ay.z"), _below("never", below_job_slots=2)),
    ),
    Pinned(
        "below-down",
        "the store below goes down while it is asked, and while copies run",
        _world(_ONE, _below(), down=1, fail=1, preempt=1),
    ),
    Pinned(
        "below-hangs",
        "a copy from below never lands, and whoever waits for it does not wait longer than allowed",
        _world(("ab.c",), _below("never", wait=2.0), hang=1, abort=1),
    ),
    Pinned(
        "below-hangs-there",
        "a copy in either direction never lands, and the slot that it holds is the only one",
        _world(_ONE, _below(wait=2.0, num_slots=1), hang=1),
    ),
    Pinned(
        "below-twice",
        "reports of copies from below come once more, from either of two workers",
        _world(_ONE, _below("never", num_slots=1, num_workers=2), repeat=1),
    ),
    Pinned(
        "below-forgets",
        "all content is forgotten, or the weights change, while content is fetched: it is never found again",
        _world(("ab.c",), _below("never"), renew=1, reset=1),
    ),
    Pinned(
        "below-drains",
        "the same when no copy is out, with content on its way there",
        _world(_ONE, _below(), drain=1, preempt=1),
    ),
    Pinned(
        "below-sleep",
        "the device is given up while content is fetched from below, or goes there",
        _world(_ONE, _below(), sleep=1, abort=1),
    ),
    Pinned(
        "below-lost-worker",
        "one of two workers is lost, and what only the store below still has of it comes back",
        _world(_ONE, _below(num_workers=2), lose_worker=1),
    ),
    Pinned(
        "below-lazy",
        "content goes below before it is evicted",
        _world(("ab.cd", "x.yz"), _below("lazy", shared=False)),
    ),
    Pinned(
        "below-refuses",
        "the store below takes nothing, once, of what is evicted next, and all is forgotten meanwhile",
        _world(_ONE, _below("lazy", num_slots=3, below_lazy_slots=2), preempt=1, refuse=1, reset=1),
    ),
    Pinned(
        "below-holes",
        "chunks with holes, of which only those that a hit can read go below",
        _world(
            ("abcdef.ghi",),
            _below(groups="swa:1:3", blocks_per_chunk=2, num_blocks=6, step_tokens=3, partial_chunks=True),
            preempt=1,
        ),
    ),
    Pinned(
        "below-ahead",
        "each step is planned while the previous one runs, and its copies to and from below with it",
        _world(_ONE, _below(asynchronous=True, num_blocks=4), abort=1, fail=1),
    ),
    Pinned(
        "within-fence",
        "a plan waits for small loads before its forward pass; one fails, and other copies never land",
        _world(_OTHERS, Settings(num_blocks=2, num_slots=4, load_within_tokens=1), hang=1, fail=1, preempt=2),
    ),
    Pinned(
        "within-hold",
        "the same while copies hold on to blocks, and a hit larger than the budget loads between two steps",
        _world(_LONGER, Settings(contract=HOLD, load_within_tokens=1, max_load_failures=2), fail=2, sleep=1, preempt=1),
    ),
    Pinned(
        "within-lost",
        "the report of such a load is lost, and the request starts again",
        _world(_SHORT, Settings(load_within_tokens=1), lose=1, fail=1, sleep=1, preempt=1),
    ),
    Pinned(
        "within-ahead",
        "such a load fails when the next plan of its request is made already",
        _world(_OTHERS, Settings(asynchronous=True, num_blocks=2, load_within_tokens=1), fail=1, preempt=1),
    ),
    Pinned(
        "within-ahead-hold",
        "the same, and the request is preempted or over meanwhile",
        _world(
            _SHORT,
            Settings(asynchronous=True, num_blocks=2, contract=HOLD, load_within_tokens=1),
            fail=1,
            sleep=1,
            preempt=1,
            abort=1,
        ),
    ),
    Pinned(
        "within-workers",
        "two workers load before the forward pass, and one of their reports is lost",
        _world(_SHORT, Settings(num_workers=2, load_within_tokens=1), fail=1, lose=1, sleep=1),
    ),
    Pinned(
        "within-hybrid",
        "a full group and a window load within the step, and two requests share the budget",
        _world(
            _HYBRID,
            Settings(groups="full:2,swa:2:2", num_blocks=6, num_slots=4, load_within_tokens=2),
            fail=1,
            preempt=1,
            sleep=1,
        ),
    ),
    Pinned(
        "waits-fence",
        "requests lose patience with a load or a store, and compute what it brings later",
        _world(_LONGER, _impatient(), fail=1, sleep=1, preempt=1),
    ),
    Pinned(
        "waits-hold",
        "the same while copies hold on to blocks",
        _world(_LONGER, _impatient(contract=HOLD), sleep=1, preempt=1),
    ),
    Pinned(
        "waits-ahead",
        "the same, planned ahead",
        _world(_LONGER, _impatient(asynchronous=True), sleep=1, preempt=1),
    ),
    Pinned(
        "waits-tails",
        "the same for what ends inside a block",
        _world(_INSIDE, _impatient(groups="full:2/1", num_blocks=2, num_slots=4), sleep=1, preempt=1),
    ),
    Pinned(
        "waits-below",
        "patience with the store below lasts longer than that with the device",
        _world(_SHORT, _below("never", wait=2.0, pending_wait=1.0), sleep=1),
    ),
    Pinned(
        "wide-fence",
        "three requests over three blocks: copies hang and requests are preempted",
        _world(_OTHERS, Settings(), hang=1, preempt=1),
        large=True,
    ),
    Pinned(
        "wide-hold",
        "the same while copies hold on to blocks",
        _world(_OTHERS, Settings(contract=HOLD), hang=1, preempt=1),
        large=True,
    ),
    Pinned(
        "wide-ahead",
        "two workers, planned ahead, and one share of a copy never lands",
        _world(_SHORT, Settings(asynchronous=True, num_workers=2), hang=1, abort=1, preempt=1),
        large=True,
    ),
    Pinned(
        "wide-windows",
        "a window over chunks with holes, and clients that disconnect",
        _world(
            ("abcdefgh.ij", "abcdefgh.ik"),
            Settings(groups="swa:1:2", blocks_per_chunk=2, num_blocks=8, step_tokens=3, contract=HOLD),
            abort=1,
            preempt=1,
        ),
        large=True,
    ),
    Pinned(
        "wide-lazy",
        "lazy stores of which one fails and one never lands, clients that disconnect, and all is forgotten meanwhile",
        _world(("ab.c", "de.f"), Settings(mode=Mode.LAZY, lazy_blocks=2), fail=1, hang=1, abort=1, reset=1),
        large=True,
    ),
    Pinned(
        "wide-below",
        "two requests whose content evicts each other's, from the host tier alone",
        _world(("ab.c", "de.fg"), _below()),
        large=True,
    ),
    Pinned(
        "wide-below-hybrid",
        "a full group and a window agree on a length of what lies below",
        _world(("abcd.efg",), _below(groups="full:2,swa:2:2", num_blocks=6, num_slots=4), preempt=1),
        large=True,
    ),
    Pinned(
        "wide-below-states",
        "a full group and states agree on a length of what lies below",
        _world(("abcd.efg",), _below(groups="full:2,mamba:2", num_blocks=6, num_slots=4), preempt=1),
        large=True,
    ),
    Pinned(
        "wide-below-weights",
        "the weights change twice while content goes below and comes back",
        _world(_ONE, _below(), renew=2),
        large=True,
    ),
)
"""All pinned worlds, from the calmest to the largest."""

COUNTS: Mapping[str, Counts] = {
    "calm-fence": Counts(128, 168, 21),
    "calm-hold": Counts(179, 250, 21),
    "clients-fence": Counts(1_550, 2_330, 24),
    "clients-hold": Counts(2_175, 3_698, 24),
    "loads-fence": Counts(3_426, 5_166, 27),
    "loads-hold": Counts(2_073, 3_164, 27),
    "overdue-fence": Counts(7_650, 17_258, 28),
    "overdue-hold": Counts(3_148, 6_389, 31),
    "overdue-asleep": Counts(1_680, 3_430, 25),
    "reports-lost": Counts(949, 1_904, 23),
    "reports-twice": Counts(1_729, 3_380, 17),
    "upheavals": Counts(790, 1_565, 16),
    "weights": Counts(384, 651, 12),
    "sleep": Counts(2_884, 5_351, 32),
    "sleep-loads": Counts(15_248, 34_682, 36),
    "two-workers": Counts(1_559, 3_766, 22),
    "two-workers-forget": Counts(451, 877, 13),
    "lost-worker": Counts(1_746, 3_324, 15),
    "ahead-fence": Counts(12_094, 31_540, 26),
    "ahead-hold": Counts(6_256, 15_025, 29),
    "windows": Counts(11_220, 23_535, 45),
    "windows-ahead": Counts(4_527, 8_228, 31),
    "twins": Counts(1_612, 3_087, 23),
    "holes": Counts(486, 682, 16),
    "parts": Counts(546, 751, 18),
    "local": Counts(6_205, 12_617, 36),
    "local-full": Counts(3_135, 3_964, 30),
    "local-within": Counts(3_130, 3_957, 30),
    "local-ahead": Counts(2_427, 4_175, 24),
    "hybrid": Counts(4_428, 6_875, 33),
    "hybrid-states": Counts(3_127, 4_661, 32),
    "states-ahead": Counts(1_081, 2_062, 16),
    "roomy": Counts(3_085, 5_821, 17),
    "roomy-chunks": Counts(853, 1_128, 18),
    "roomy-states": Counts(2_571, 3_675, 19),
    "last-step-flush": Counts(429, 840, 21),
    "last-step-drain": Counts(1_640, 3_530, 24),
    "lazy": Counts(6_487, 17_731, 33),
    "arc": Counts(7_498, 12_297, 30),
    "patient": Counts(1_552, 2_312, 28),
    "two-owners-fence": Counts(10_702, 17_778, 28),
    "two-owners-hold": Counts(7_190, 12_324, 28),
    "recompute": Counts(3_740, 5_881, 27),
    "drafts": Counts(9_999, 14_364, 22),
    "drafts-overdue": Counts(3_638, 7_529, 39),
    "drafter": Counts(6_281, 8_660, 21),
    "drafter-windows": Counts(7_982, 10_795, 23),
    "drafts-states": Counts(4_366, 5_720, 26),
    "drafts-states-overdue": Counts(4_738, 9_698, 28),
    "drafter-states": Counts(2_665, 3_564, 20),
    "tails-fence": Counts(2_907, 6_821, 32),
    "tails-hold": Counts(11_384, 26_533, 32),
    "tails-behind": Counts(5_839, 10_096, 34),
    "tails-forget": Counts(5_968, 12_572, 25),
    "tails-ahead": Counts(2_900, 5_166, 18),
    "tails-roomy": Counts(1_068, 1_547, 20),
    "tails-workers": Counts(2_178, 4_057, 20),
    "tails-below": Counts(2_627, 4_850, 32),
    "tails-drafter-fence": Counts(1_847, 4_115, 26),
    "tails-drafter-hold": Counts(5_628, 12_265, 30),
    "tails-drafter-proof": Counts(1_904, 2_877, 21),
    "tails-drafter-next": Counts(7_022, 12_051, 30),
    "tails-drafter-ahead": Counts(2_943, 5_109, 25),
    "tails-drafter-forget": Counts(4_871, 10_957, 25),
    "tails-drafter-roomy": Counts(1_211, 1_923, 26),
    "tails-drafter-below": Counts(2_195, 4_342, 24),
    "below-fence": Counts(3_792, 8_263, 31),
    "below-hold": Counts(5_040, 10_793, 38),
    "below-clients": Counts(6_477, 12_178, 28),
    "below-vanishes": Counts(3_991, 12_269, 21),
    "below-crowded": Counts(1_726, 3_279, 31),
    "below-down": Counts(3_977, 8_630, 34),
    "below-hangs": Counts(9_081, 21_091, 42),
    "below-hangs-there": Counts(1_737, 3_343, 42),
    "below-twice": Counts(1_646, 3_678, 27),
    "below-forgets": Counts(3_159, 6_722, 26),
    "below-drains": Counts(2_596, 5_335, 35),
    "below-sleep": Counts(2_126, 4_096, 31),
    "below-lost-worker": Counts(10_590, 23_873, 42),
    "below-lazy": Counts(3_962, 8_381, 36),
    "below-refuses": Counts(9_536, 21_042, 38),
    "below-holes": Counts(3_005, 6_711, 31),
    "below-ahead": Counts(2_688, 5_536, 31),
    "within-fence": Counts(4_733, 9_477, 26),
    "within-hold": Counts(4_314, 6_734, 32),
    "within-lost": Counts(3_768, 8_388, 25),
    "within-ahead": Counts(4_591, 8_845, 20),
    "within-ahead-hold": Counts(3_833, 8_117, 22),
    "within-workers": Counts(3_793, 9_832, 21),
    "within-hybrid": Counts(2_778, 4_343, 28),
    "waits-fence": Counts(3_278, 4_998, 27),
    "waits-hold": Counts(1_956, 3_253, 27),
    "waits-ahead": Counts(5_362, 10_673, 27),
    "waits-tails": Counts(2_068, 3_203, 21),
    "waits-below": Counts(3_717, 7_058, 31),
    "wide-fence": Counts(8_289, 19_667, 41),
    "wide-hold": Counts(8_439, 20_600, 41),
    "wide-ahead": Counts(8_502, 24_923, 22),
    "wide-windows": Counts(22_581, 33_316, 31),
    "wide-lazy": Counts(33_090, 91_177, 34),
    "wide-below": Counts(21_541, 45_284, 47),
    "wide-below-hybrid": Counts(22_646, 57_655, 38),
    "wide-below-states": Counts(24_850, 66_821, 38),
    "wide-below-weights": Counts(17_295, 49_846, 42),
}
"""By name: states, steps between them, and the length of the longest shortest path to a state."""


def pinned_world(name: str) -> Pinned:
    """The world of that name. Raises `MisuseError`, which names the known ones."""
    for each in WORLDS:
        if each.name == name:
            return each
    raise MisuseError(f"world {name!r}: there is none (there are {', '.join(each.name for each in WORLDS)})")


def worlds_table() -> Iterator[str]:
    """The worlds as `specs/testing.md` prints them, line by line."""
    yield from ("| world | what can happen there |", "| --- | --- |")
    yield from (f"| {each.name}{' (large)' if each.large else ''} | {each.about} |" for each in WORLDS)
