"""The interface through which scenarios run against an engine: a class with those methods of `Driver` that it supports.

Rules of this file:

* Plain data only: requests are names, blocks and host places are numbers, copies are the numbers of their jobs.
  Types of `kinds` are plain ones, too: `kinds.Blocks` are numbers, and a file names blocks there.
* A driver schedules; it never copies. The runner has the device (`device.Device`), carries every plan out on it, lets copies
  land as the scenario says, and judges by what the driver *told the workers*, not by its internal state.
* A method that an engine does not support is left out, or raises `Unsupported` with the reason: the scenario is then reported
  as *not applicable*. A call that is refused by rule raises `MisuseError`, `CapacityError` or one of the driver's `refusals`,
  and has changed nothing.

Required are `start`, `arrive`, `step`, `settle` and `table`. Every other method is one verb or one query, and is needed only by
scenarios that use it. One that is marked as a `verb` is a verb of files, with the same parameters: the runner translates names
and calls it. ``blocklife scenario list`` says which methods a scenario needs, and ``list --methods`` which scenarios a
method opens. ``blocklife scenario run --driver your_module:YourDriver`` runs them.

Content. A prompt is text, one letter a token. A block that is full with the tokens up to some point of a request holds the text
``GROUP:all tokens up to there``, and so does, in a forward pass, a block that is full in part. The same text is the name under
which content is found again; what follows an @ in it (weights, say) is up to the driver. A driver whose requests sample tokens
makes these up, different ones for each request (`tokens`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Annotated, NoReturn

from attrs import evolve, field, frozen

from blocklife.knobs import Knob, Plain, knob, knobs, written
from blocklife.policies import BUILT_IN, Policies
from blocklife.testing.scenarios import _kinds as kinds
from blocklife.testing.scenarios._words import verb
from blocklife.testing.worlds._device import Device, Landing, Orders, Pass

NOBODY = 0
"""The number of a job that does not exist: a report of it is a stray one."""


class Unsupported(Exception):  # noqa: N818 - it is an answer, not an error
    """This engine cannot do what a scenario asks for; the message says why."""

    def __init__(self, message: str = "", *, method: str = "") -> None:
        """*method*: the one of `Driver` that the driver does not have; empty where the engine itself lacks something."""
        super().__init__(message)
        self.method = method


NUMBER_MAX = 10**9
USUAL = Policies(pending_wait=inf)
"""The policies of a scenario that says nothing."""
UNSAID: Mapping[str, str] = {
    "plans_ahead": "`scheduling` says it: one plan ahead, or none",
    "pending_wait": "the steps of a scenario are no measure for it",
}
"""Policies that are no setting, and why."""


@frozen(kw_only=True)
class EngineSetup:
    """How the engine is to be set up; settings that a scenario leaves out have these values."""

    groups: str = knob(
        "full:4",
        "the model's groups, with commas: `full:BLOCK`, `swa:BLOCK:WINDOW`, `local:BLOCK:PART`, `mamba:BLOCK`, in tokens; `/1` "
        "behind them: prefixes in the host may end inside a block, at every token",
    )
    blocks_per_chunk: int = knob(1, "blocks that are stored as one", least=1, most=64)
    blocks: int = knob(15, "device blocks that can be handed out, without the null block", least=1, most=100_000)
    slots: int = knob(8, "host slots, each for one chunk", least=1, most=100_000)
    workers: int = knob(1, "ranks; every copy runs on each of them", least=1, most=64)
    jobs: int = knob(16, "copies that can be outstanding at the same time", least=1, most=100_000)
    contract: str = knob(
        "fence",
        "what may happen to a block that a store reads: it is handed out and the step waits, or it is held back",
        among=("fence", "hold"),
    )
    scheduling: str = knob("sync", "whether a plan settles before the next one is made, or after it", among=("sync", "async"))
    pool: str = knob(
        "own",
        "who hands out blocks: the ledger, or an allocator of the engine (single blocks only)",
        among=("own", "engine"),
    )
    deadline: int = knob(1000, "steps until a copy is past its deadline", least=1)
    replacement: str = knob("lru", "the eviction policy of the host tier", among=BUILT_IN)
    step_tokens: int = knob(0, "the most tokens that one request computes per step, by the engine's own policy; 0 for no limit")
    below: int = knob(0, "how many contents a store below the host tier can hold; 0: there is no such store", most=100_000)
    events: str = knob(
        "own",
        "how copies wait for forward passes: each by its own event, not at all, or all by one event (then all count as landed "
        "when one has)",
        among=("own", "none", "shared"),
    )
    seed: int = knob(0, "the seed for `walk`")
    policies: Policies = USUAL
    """Those of the scheduler, each a setting under its own name; `UNSAID` are none."""

    @classmethod
    def of(cls, words: Mapping[str, object]) -> EngineSetup:
        """The setup that these settings describe, as a scenario has them. Raises `MisuseError` for a value that cannot be."""
        made = {name: SETTINGS[name].read(value, name, NUMBER_MAX) for name, value in words.items()}
        policies = {each.name: made.pop(each.name) for each in POLICIES if each.name in made}
        told: Callable[..., Policies] = partial(evolve, USUAL)  # each value is read for its field
        make: Callable[..., EngineSetup] = cls
        return make(policies=told(**policies), **made)

    def words(self) -> dict[str, Plain]:
        """Every setting, as a scenario has it; None is a number without a limit."""
        own = {each.name: written(getattr(self, each.name)) for each in knobs(EngineSetup)}
        return own | {each.name: written(getattr(self.policies, each.name)) for each in POLICIES}

    def changed(self) -> dict[str, Plain]:
        """The settings that a scenario has changed."""
        usual = EngineSetup().words()
        return {name: value for name, value in self.words().items() if value != usual[name]}


POLICIES = tuple(each for each in knobs(Policies) if each.name not in UNSAID)
"""The policies that are settings."""
SETTINGS: Mapping[str, Knob] = {each.name: each for each in (*knobs(EngineSetup), *POLICIES)}
"""Every setting of a world, by name."""


@frozen
class LookedUp:
    """The result of a lookup for a request."""

    tokens: int
    """Length of the hit."""
    device_tokens: int = 0
    """How many of these tokens are on the device."""
    deferred: bool = False
    """The result is unknown until a copy in flight has landed."""


@frozen(kw_only=True)
class EngineStep:
    """One step: what the workers are told to do, and what became of the requests."""

    orders: Orders
    """Waits, loads, stores and the forward pass. One side of a copy are blocks, the other host places (slot x blocks of a
    chunk + position in the chunk). In `below` are entries of the store below where blocks stand otherwise (number of the
    entry x blocks of a chunk + position); `block_copies` run on the device ahead of the forward pass."""
    ahead: tuple[Orders, ...] = ()
    """What the workers were told ahead of these orders, in this order and under the number of the same plan: copies that the
    engine launches, and waits for, while it schedules. Their stores are launched with the orders behind them."""
    handed_out: tuple[int, ...] = ()
    """Blocks that were handed out since the step before, without prefix hits."""
    owners: Mapping[int, str] = field(factory=dict)
    """The request of each copy in the orders, by job, as `arrive` has named it; left out, or `""`, if the copy has none."""
    sharers: Mapping[int, tuple[str, ...]] = field(factory=dict)
    """Further requests whose blocks a copy moves, by job."""
    sizes: Mapping[int, tuple[int, ...]] = field(factory=dict)
    """How many blocks of each group a copy has, by job; of those left out, what their orders say."""
    contents: Mapping[int, tuple[str, ...]] = field(factory=dict)
    """What each copy to or from the store below moves, by job."""
    hits: Mapping[str, LookedUp] = field(factory=dict)
    """The lookups of the step, by request."""
    no_room: tuple[str, ...] = ()
    """Running and waiting requests for which there was no room."""


@frozen(kw_only=True)
class SettledPlan:
    """What changed when a plan settled."""

    loaded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """Requests whose load has failed; they wait again."""
    ended: tuple[str, ...] = ()
    """Requests whose end had to wait for this plan."""


@frozen
class RequestProgress:
    """The progress of a request, in tokens."""

    known: int
    computed: int
    """Tokens of settled plans."""
    in_flight: int = 0


@frozen
class Problem:
    """A rule that the engine itself finds violated."""

    rule: str
    """`I1` to `I15`."""
    message: str


def forward_pass(
    computes: Iterable[tuple[Sequence[int], str, int, int]], size: int, *, group: int = 0, weights: str = ""
) -> Pass:
    """The forward pass of a group with full attention: what each request reads and writes in it.

    *computes*: the blocks of a request by position, all its tokens, and from which to which it computes. *size*: tokens of a
    block. *weights* stand behind the content of each block, with an @ before them.
    """
    reads: list[tuple[int, str]] = []
    writes: list[tuple[int, str]] = []
    for blocks, said, start, stop in computes:
        for position, block in enumerate(blocks):
            first, last = position * size, (position + 1) * size
            if first < start:
                reads.append((block, f"{group}:{said[: min(last, start)]}{weights}"))
            if start < last and first < stop:
                writes.append((block, f"{group}:{said[: min(last, stop)]}{weights}"))
    return Pass(tuple(reads), tuple(writes))


class Driver:
    """An engine as scenarios see it. Subclass it, or write a class with the methods that you have."""

    engine_name: str = ""
    """The name of the engine, for reports."""
    version: str = ""
    """The release of the engine, for reports and for lists of known failures."""

    own_words = False
    """Whether refusals have blocklife's messages; otherwise the wording that a scenario expects is not compared."""

    refusals: tuple[type[Exception], ...] = ()
    """The engine's own errors by which it refuses a call, having changed nothing: the refusal that a scenario expects."""

    block_tokens: int | None = None
    """Tokens of a block, for an engine that cannot have another size. Worlds are scaled to it, with all that counts tokens:
    `full:4` becomes `full:16`, and a prompt has four equal letters for each of its own. None: blocks are as a world says."""

    @staticmethod
    def only(world: EngineSetup, **settings: str | int | bool) -> None:
        """For `start`: raises `Unsupported` unless the world has these settings, which the engine cannot change."""
        here = world.words()
        for name, value in settings.items():
            if here[name] != value:
                raise Unsupported(f"{name} is always {value} here")

    # --- required ------------------------------------------------------------------------------------------------------------

    def start(self, world: EngineSetup) -> None:
        """Make a new engine. Raises `Unsupported` for a setting that it does not have."""
        self._not("start")

    def arrive(self, request: str, prompt: str, tokens: int | None = None, reply: str = "") -> None:
        """Add a request. It finishes when it has *tokens* in all; with None it runs until `finish` or `abort`.

        With a *reply* it samples these letters, and then finishes.
        """
        self._not("arrive")

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        """Preempt, schedule and admit requests, and make one plan; the runner carries it out.

        *compute*: tokens of each running request, 0 for those not named; None: by the engine's own policy. *let_in*: requests
        to admit, with the most tokens each (0: all that are known); None: by the engine's own policy.
        """
        self._not("step")

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        """Every worker has carried out the oldest plan; these are the reports of copies by now.

        A report may come twice, late, or for a job that does not exist (`NOBODY`). *launched*: copies that began to run, with
        the worker. *sampled*: how many tokens a request got.
        """
        self._not("settle")

    def table(self, request: str, group: int) -> list[int]:
        """The blocks that a request holds, by position; 0 where there is none."""
        self._not("table")

    # --- verbs of the engine -------------------------------------------------------------------------------------------------

    @verb()
    def finish(self, request: kinds.RequestName) -> None:
        """The engine ends a request."""
        self._not("finish")

    @verb()
    def abort(self, request: kinds.RequestName) -> None:
        """The client of a request, in any state, is gone."""
        self._not("abort")

    @verb()
    def preempt(self, request: kinds.RequestName) -> None:
        """A request is preempted between two steps, and loses all its blocks."""
        self._not("preempt")

    @verb()
    def draft(self, request: kinds.RequestName, guess: kinds.Guess) -> None:
        """A drafter guesses tokens behind the known ones of a running request. Its next step computes these too, and what it
        samples follows: the right guesses and one token more. Wrong guesses leave wrong content on the device.

        No plan of the request is out. When the next one settles without *sampled* for it, it gets the guesses before the first
        wrong one, and one token more.
        """
        self._not("draft")

    @verb()
    def end_in_error(self, request: kinds.RequestName) -> None:
        """The engine ends a request, in any state, because of an error."""
        self._not("end_in_error")

    def lend(self, request: str) -> Mapping[int, str]:
        """Another owner begins to read the final blocks of a request, until `give_back`; returns them with their contents.

        It reads them in every step, also when the request was preempted or is over.
        """
        self._not("lend")

    def lease(self, request: str, steps: int) -> Mapping[int, str]:
        """As `lend`, but for so many steps at most: the time is that of `advance`. Called again, it ends so much later.

        The owner reads nothing once the time is over, and may still call `give_back` then.
        """
        self._not("lease")

    def give_back(self, request: str) -> None:
        """The other owner is done with the blocks of this request."""
        self._not("give_back")

    def answer_below(self, has: Collection[int]) -> None:
        """The store below answers all that it was asked: it has these entries, by number, and no others.

        It may have been asked nothing. The runner calls this once at the start, where there is such a store.
        """
        self._not("answer_below")

    def lookup(self, request: str) -> LookedUp:
        """The prefix-cache hit of a request's prompt; the content that was hit stays until the next plan."""
        self._not("lookup")

    @verb(drain=False)
    def reset(self, *, drain: bool) -> None:
        """All content is forgotten; with `drain` only once no copy is outstanding."""
        self._not("reset")

    @verb()
    def renew(self, generation: str) -> None:
        """New weights or another customer: no earlier content is found."""
        self._not("renew")

    @verb()
    def sleep(self) -> None:
        """The device memory is given up; the host keeps its content."""
        self._not("sleep")

    @verb()
    def wake(self) -> None:
        """The device memory is back, empty."""
        self._not("wake")

    def lose_worker(self, worker: int) -> None:
        """A worker is lost."""
        self._not("lose_worker")

    def regain_worker(self, worker: int) -> None:
        """A lost worker is back, with empty memory."""
        self._not("regain_worker")

    def advance(self, steps: int) -> None:
        """Let time pass without a step."""
        self._not("advance")

    def prove_quiet(self, jobs: Sequence[int]) -> None:
        """The device was synchronised with these copies."""
        self._not("prove_quiet")

    # --- scenes --------------------------------------------------------------------------------------------------------------

    @verb("scenes")
    def fill_host(self) -> None:
        """Every slot of the host is filled and pinned: all stores are refused."""
        self._not("fill_host")

    @verb("scenes")
    def free_host(self) -> None:
        """The slots are unpinned, and may be evicted."""
        self._not("free_host")

    def crowd_host(self, slots: int) -> bool:
        """Evict so many least recently used slots, as for other content. False where that is impossible."""
        self._not("crowd_host")

    @verb("scenes")
    def forget(self, contents: kinds.Contents) -> None:
        """The host loses these contents."""
        self._not("forget")

    @verb("scenes")
    def forget_on_device(self, contents: kinds.Contents) -> None:
        """The device loses these contents, which no request holds."""
        self._not("forget_on_device")

    # --- verbs of single blocks ---------------------------------------------------------------------------------------------

    def enter(self, request: str, *, waiting: bool = False) -> None:
        """Add a request, running or waiting, that only the verbs of single blocks use; it is not scheduled."""
        self._not("enter")

    @verb("single blocks", count=1)
    def allocate(self, request: kinds.RequestName, count: int, group: int = 0) -> Annotated[list[int], kinds.BLOCKS]:
        """Blocks for such a request, named with `as`.

        The next step reports them as handed out.
        """
        self._not("allocate")

    @verb("single blocks")
    def acquire(self, request: kinds.RequestName, contents: kinds.Contents) -> Annotated[list[int], kinds.BLOCKS]:
        """It takes content that is on the device, as after a prefix hit."""
        self._not("acquire")

    @verb("single blocks")
    def release(self, request: kinds.RequestName, blocks: kinds.Blocks) -> None:
        """It releases blocks."""
        self._not("release")

    def seal(self, blocks: Sequence[int], contents: Sequence[str]) -> None:
        """Declare the content of these blocks final, under these keys."""
        self._not("seal")

    @verb("single blocks")
    def plan_store(self, request: kinds.RequestName, blocks: kinds.Blocks, contents: kinds.Contents) -> kinds.Job:
        """Plan a store of blocks to the host, under these names, for the next step."""
        self._not("plan_store")

    @verb("single blocks")
    def plan_load(self, request: kinds.RequestName, blocks: kinds.Blocks, contents: kinds.Contents) -> kinds.Job:
        """Plan a load of contents of the host into blocks of a request, for the next step."""
        self._not("plan_load")

    @verb("single blocks")
    def copy_block(self, request: kinds.RequestName, source: kinds.Block, target: kinds.Block) -> None:
        """A block is copied to one of the request's own, on the device, ahead of the next step's forward pass. The request that
        holds the source may release it before the copy is made.
        """
        self._not("copy_block")

    @verb("single blocks")
    def cancel(self, job: kinds.Job) -> None:
        """A store that was not launched is cancelled."""
        self._not("cancel")

    @verb("single blocks")
    def abandon(self, job: kinds.Job) -> None:
        """The result of a store in flight is not wanted any more."""
        self._not("abandon")

    @verb("single blocks")
    def submit(self, job: kinds.Job) -> None:
        """A copy is handed to the workers at once, without a step."""
        self._not("submit")

    @verb("single blocks")
    def flush(self, jobs: kinds.Jobs) -> None:
        """The next plan waits for these copies."""
        self._not("flush")

    @verb("single blocks")
    def free(self, request: kinds.RequestName, blocks: kinds.Blocks) -> None:
        """The engine's allocator takes blocks back (`pool` is `engine`)."""
        self._not("free")

    @verb("single blocks")
    def pin(self, holder: str, contents: kinds.Contents) -> None:
        """A holder pins contents of the host."""
        self._not("pin")

    @verb("single blocks")
    def unpin(self, holder: str, contents: kinds.Contents) -> None:
        """A holder unpins them."""
        self._not("unpin")

    @verb("single blocks")
    def evict(self, contents: kinds.Contents) -> None:
        """Contents of the host are evicted, unless they are pinned."""
        self._not("evict")

    @verb("single blocks")
    def build_job(self, blocks: kinds.Blocks, sizes: kinds.Numbers) -> None:
        """Build the record of a copy that claims to have these sizes by group."""
        self._not("build_job")

    def agree(self, ranks: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
        """The settings that ranks with these offers (``blocks``, ``slots``, ``workers``, ``jobs``) agree on."""
        self._not("agree")

    # --- verbs of other engines ----------------------------------------------------------------------------------------------

    @verb("of other engines")
    def swap(self, block: kinds.Block, content: kinds.Content) -> None:
        """A block and the host slot of a content change places."""
        self._not("swap")

    @verb("of other engines")
    def split(self, content: kinds.Content, at: int) -> None:
        """A node of a prefix tree is split after so many tokens."""
        self._not("split")

    @verb("of other engines")
    def publish(self, content: kinds.Content) -> None:
        """A node of a prefix tree becomes visible in a tier."""
        self._not("publish")

    @verb("of other engines")
    def attach(self, other: str) -> None:
        """A second connector is added beside the first."""
        self._not("attach")

    # --- queries ------------------------------------------------------------------------------------------------------------

    def block_state(self, block: int) -> str:
        """The state of a block, in the words of `specs/block.md`; of slots, jobs and requests likewise."""
        self._not("block_state")

    def slot_state(self, slot: int) -> str:
        """The state of a host slot."""
        self._not("slot_state")

    def job_state(self, job: int) -> str:
        """The state of a job."""
        self._not("job_state")

    def request_state(self, request: str) -> str:
        """The state of a request; ``FINISHED`` when it is not known any more."""
        self._not("request_state")

    def slot_of(self, content: str) -> int | None:
        """The host slot that holds, or will hold, this content; None where there is none."""
        self._not("slot_of")

    def worker_table(self, request: str, group: int) -> list[int]:
        """The blocks of a request by position, as the workers know them from what they were told; empty if they do not."""
        self._not("worker_table")

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """What can be hit now: by block and by host place, the content that is claimed to be there. The runner checks it."""
        self._not("claims")

    def tokens(self, request: str) -> str:
        """All tokens that a request has, or will have, as far as the driver knows them."""
        self._not("tokens")

    def progress(self, request: str) -> RequestProgress:
        """The progress of a request."""
        self._not("progress")

    def pending(self) -> bool:
        """Whether further ticks are needed to finish what is in flight."""
        self._not("pending")

    def count(self, what: str) -> int:
        """One of the counts of `specs/scenarios/words.csv`."""
        self._not("count")

    def windows(self) -> list[int | None]:
        """How many chunks before its end a hit needs, by group; None for all."""
        self._not("windows")

    def left_behind(self) -> list[str]:
        """Everything that differs from the start, except content."""
        self._not("left_behind")

    def picture(self) -> Hashable:
        """The whole state as one value, to see whether a refused call has changed anything."""
        self._not("picture")

    def problems(self, device: Device) -> Iterable[Problem]:
        """Rules that the engine itself finds violated, and wrong claims about places that *device* touches."""
        self._not("problems")

    def transitions(self) -> list[str]:
        """What happened since the last call, one line each."""
        self._not("transitions")

    def _not(self, method: str) -> NoReturn:
        raise Unsupported(f"{type(self).__name__} has no {method}", method=method)
