"""What an engine writes so that scenarios can be run against it: a class with the methods of `Driver` that it can do.

Rules of this file:

* Plain data only: requests are names, blocks and host places are numbers, copies are the numbers of their jobs.
* A driver decides; it never copies. The runner has the device (`device.Device`), carries every plan out on it, lets copies land
  as the scenario says, and judges by what the driver *told the workers*, not by what it believes.
* What an engine cannot do is left out, or raises `Unsupported` with the reason: the scenario is then *not applicable*, and says
  why. What it refuses by rule raises `MisuseError` or `CapacityError`, and has changed nothing.

To be written at least: `start`, `arrive`, `step`, `settle`, `table`. Every other method is one verb or one question; scenarios
that need it tell. `python -m blocklife scenario run FILE --driver your_module:YourDriver` runs one.

Content. A prompt is text, one letter a token. A block that is full with the tokens up to some point of a request holds the text
``GROUP:all tokens up to there``, and so does, in a forward pass, a block that is full in part. The same text is the name under
which content is found again; what follows an @ in it (weights, say) is the driver's own affair. A driver whose requests sample
tokens makes these up, other ones for each request (`tokens`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NoReturn

from attrs import field, frozen

from blocklife.testing.worlds.device import Device, Landing, Orders

NOBODY = 0
"""The number of a job that nobody ever made: a report about it is a stray one."""


class Unsupported(Exception):  # noqa: N818 - it is an answer, and no error
    """This engine cannot do what a scenario asks for, and why."""


@frozen(kw_only=True)
class EngineSetup:
    """How the engine is to be set up; what a scenario does not say has these values."""

    groups: str = "full:4"
    """Groups of the model: ``full:BLOCK``, ``swa:BLOCK:WINDOW``, ``mamba:BLOCK`` in tokens, with commas between."""
    blocks_per_chunk: int = 1
    """Blocks that are stored as one."""
    blocks: int = 15
    """Device blocks that can be handed out; a null block, number 0, comes on top."""
    slots: int = 8
    """Host slots; each holds one chunk."""
    workers: int = 1
    jobs: int = 16
    """Copies that can be out at the same time."""
    contract: str = "fence"
    """What may happen to a block that a store reads: ``fence`` or ``hold``."""
    scheduling: str = "sync"
    """Whether a plan settles before the next one is made (``sync``) or after it (``async``)."""
    pool: str = "own"
    """Who hands out blocks: the ledger (``own``), or an allocator of the engine (``engine``)."""
    deadline: int = 1000
    """Steps that a copy may run."""
    mode: str = "eager"
    """When content is stored: as its chunk fills (``eager``), or when its block is about to go (``lazy``)."""
    lazy_blocks: int = 64
    """In lazy mode: how many of the blocks that go next are kept stored."""
    replacement: str = "lru"
    """What the host tier forgets first: ``lru`` or ``arc``."""
    full_hit: str = "drop_last_block"
    """What happens to a hit on the whole prompt: ``drop_last_block`` or ``recompute_last_token``."""
    last_step: str = "flush"
    """What happens to copies that are out when the last request ends: ``flush`` or ``drain``."""
    partial_chunks: bool = False
    """Whether a chunk with a hole that a hit could need is stored as what it is."""
    prompt_only: bool = False
    """Whether only tokens of prompts are stored."""
    step_tokens: int = 0
    """Tokens that one request computes in one step at most, by the engine's own policy; 0 for no limit."""
    max_load_failures: int = 2
    """Failed loads after which a request computes."""
    events: str = "own"
    """How copies and forward passes are ordered on the device: each by an event of its own (``own``), not at all (``none``), or
    all copies of a direction by one event, so that when one has landed the others are said to have, too (``shared``)."""
    seed: int = 0
    """For `walk`."""


@frozen
class LookedUp:
    """What a lookup has found for a request."""

    tokens: int
    """Length of the hit."""
    device_tokens: int = 0
    """How many of them lie on the device."""
    deferred: bool = False
    """The answer is not known before a copy that is out has landed."""


@frozen(kw_only=True)
class EngineStep:
    """One step: what the workers are told, and what became of those who wanted something."""

    orders: Orders
    """Waits, loads, stores and the forward pass. Of blocks one side of a copy, of host places (slot x blocks of a chunk +
    position in the chunk) the other."""
    handed_out: tuple[int, ...] = ()
    """Blocks that got a new tenant since the step before. A prefix hit is none."""
    owners: Mapping[int, str] = field(factory=dict)
    """For which request each copy of the orders is, by job."""
    sizes: Mapping[int, tuple[int, ...]] = field(factory=dict)
    """How many blocks of each group a copy has, by job."""
    hits: Mapping[str, LookedUp] = field(factory=dict)
    """What was looked up."""
    no_room: tuple[str, ...] = ()
    """Running and waiting requests that found no room."""


@frozen(kw_only=True)
class SettledPlan:
    """What changed when a plan settled."""

    loaded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """Their load is lost; they wait again."""
    ended: tuple[str, ...] = ()
    """Their end had waited for this plan."""


@frozen
class RequestProgress:
    """How far a request is, in tokens."""

    known: int
    computed: int
    """Settled ones."""
    in_flight: int = 0


@frozen
class Problem:
    """A rule that the engine finds broken in itself."""

    rule: str
    """`I1` to `I15`."""
    message: str


class Driver:
    """An engine as scenarios see it. Subclass it, or write a class with the methods that you have."""

    own_words = False
    """Whether refusals carry blocklife's messages; else what a scenario says of their wording is not compared."""

    # --- to be written -------------------------------------------------------------------------------------------------------

    def start(self, world: EngineSetup) -> None:
        """Make a new engine. `Unsupported` for a setting that it does not have."""
        self._not("start")

    def arrive(self, request: str, prompt: str, tokens: int | None = None, reply: str = "") -> None:
        """A request comes; it ends by itself when it has so many *tokens* in all, None: when it is told to.

        With a *reply* it samples these letters, and ends with them.
        """
        self._not("arrive")

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        """Preempt, schedule, let in, and make one plan; the runner carries it out.

        *compute*: tokens of each running request, 0 for those not named; None: by the engine's own policy. *let_in*: who may
        enter, and with how many tokens at most (0: all that are known); None: by the engine's own policy.
        """
        self._not("step")

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        """The oldest plan that is out was carried out by every worker, and this is what copies have reported by now.

        Reports may come twice, late, or for a job that nobody made (`NOBODY`). *launched*: copies that began to run, with the
        worker. *sampled*: how many tokens a request got.
        """
        self._not("settle")

    def table(self, request: str, group: int) -> list[int]:
        """The blocks that a request holds, by position; 0 where there is none."""
        self._not("table")

    # --- verbs of the engine -------------------------------------------------------------------------------------------------

    def finish(self, request: str) -> None:
        """The engine has seen enough of a request."""
        self._not("finish")

    def abort(self, request: str) -> None:
        """The client has gone; in any state."""
        self._not("abort")

    def preempt(self, request: str) -> None:
        """Take everything from a request between two steps."""
        self._not("preempt")

    def lookup(self, request: str) -> LookedUp:
        """How much of a request's prompt is there; what was counted stays until the next plan."""
        self._not("lookup")

    def reset(self, *, drain: bool) -> None:
        """Forget all content, now or only when no copy is out."""
        self._not("reset")

    def renew(self, generation: str) -> None:
        """Other weights: nothing of before is ever found again."""
        self._not("renew")

    def sleep(self) -> None:
        """Give the device up; the host keeps what it has."""
        self._not("sleep")

    def wake(self) -> None:
        """Take it back, empty."""
        self._not("wake")

    def lose_worker(self, worker: int) -> None:
        """A worker is gone."""
        self._not("lose_worker")

    def regain_worker(self, worker: int) -> None:
        """It is there again, with empty memory."""
        self._not("regain_worker")

    def advance(self, steps: int) -> None:
        """Time passes without a step."""
        self._not("advance")

    def prove_quiet(self, jobs: Sequence[int]) -> None:
        """The device was synchronised with these copies."""
        self._not("prove_quiet")

    def fill_host(self) -> None:
        """Every host slot gets content that somebody counts on: stores are refused until `free_host`."""
        self._not("fill_host")

    def free_host(self) -> None:
        """Nobody counts on it any more; it may be forgotten."""
        self._not("free_host")

    def crowd_host(self, slots: int) -> bool:
        """So many slots are wanted for other content: what is used least goes. False where there is no room."""
        self._not("crowd_host")

    def forget(self, contents: Sequence[str]) -> None:
        """The host loses these."""
        self._not("forget")

    def forget_on_device(self, contents: Sequence[str]) -> None:
        """The device loses these, which nobody holds."""
        self._not("forget_on_device")

    # --- verbs of single blocks ---------------------------------------------------------------------------------------------

    def enter(self, request: str, *, waiting: bool = False) -> None:
        """A request runs, or waits, that only single verbs speak of; no scheduler acts for it."""
        self._not("enter")

    def allocate(self, request: str, count: int, group: int = 0) -> list[int]:
        """Blocks for a request; they are reported as handed out with the next step."""
        self._not("allocate")

    def acquire(self, request: str, contents: Sequence[str]) -> list[int]:
        """A request takes content that lies on the device."""
        self._not("acquire")

    def release(self, request: str, blocks: Sequence[int]) -> None:
        """A request lets go of some blocks."""
        self._not("release")

    def seal(self, blocks: Sequence[int], contents: Sequence[str]) -> None:
        """What these blocks hold is final, and has these names."""
        self._not("seal")

    def plan_store(self, request: str, blocks: Sequence[int], contents: Sequence[str]) -> int:
        """Copy blocks to the host from the next step on; gives the job."""
        self._not("plan_store")

    def plan_load(self, request: str, blocks: Sequence[int], contents: Sequence[str]) -> int:
        """Bring content from the host into blocks of a request, from the next step on; gives the job."""
        self._not("plan_load")

    def cancel(self, job: int) -> None:
        """Give up a store that was not launched."""
        self._not("cancel")

    def abandon(self, job: int) -> None:
        """Want the result of a store that runs no more."""
        self._not("abandon")

    def submit(self, job: int) -> None:
        """Hand a copy to the workers at once, without a plan."""
        self._not("submit")

    def flush(self, jobs: Sequence[int]) -> None:
        """The next plan waits for these."""
        self._not("flush")

    def free(self, request: str, blocks: Sequence[int]) -> None:
        """The engine's allocator takes these blocks back (``pool = "engine"``)."""
        self._not("free")

    def pin(self, holder: str, contents: Sequence[str]) -> None:
        """Somebody counts on content of the host."""
        self._not("pin")

    def unpin(self, holder: str, contents: Sequence[str]) -> None:
        """And no longer does."""
        self._not("unpin")

    def evict(self, contents: Sequence[str]) -> None:
        """Forget content of the host, unless somebody counts on it."""
        self._not("evict")

    def build_job(self, blocks: Sequence[int], sizes: Sequence[int]) -> None:
        """Build the record of a copy of these blocks, whose sizes by group are said to be these."""
        self._not("build_job")

    def agree(self, ranks: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
        """What ranks that offer so much (``blocks``, ``slots``, ``workers``, ``jobs``) all go by."""
        self._not("agree")

    def swap(self, block: int, content: str) -> None:
        """Exchange a device block and the host slot of some content in place."""
        self._not("swap")

    def split(self, content: str, at: int) -> None:
        """Split a node of the prefix tree after so many tokens."""
        self._not("split")

    def publish(self, content: str) -> None:
        """Make a child of the prefix tree visible in a tier."""
        self._not("publish")

    def attach(self, other: str) -> None:
        """Put a second connector beside the one that is there."""
        self._not("attach")

    # --- questions ----------------------------------------------------------------------------------------------------------

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
        """The host slot in which content is, or will be; None where there is none."""
        self._not("slot_of")

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """What can be found now: by block and by host place, the content that is said to be there. The runner looks."""
        self._not("claims")

    def tokens(self, request: str) -> str:
        """All tokens that a request has, or will have, as far as the driver has made them up."""
        self._not("tokens")

    def progress(self, request: str) -> RequestProgress:
        """How far a request is."""
        self._not("progress")

    def pending(self) -> bool:
        """Whether ticking must go on."""
        self._not("pending")

    def count(self, what: str) -> int:
        """One of the counts of `specs/scenarios/README.md`."""
        self._not("count")

    def windows(self) -> list[int | None]:
        """Chunks that a hit needs before its end, by group; None for all."""
        self._not("windows")

    def left_behind(self) -> list[str]:
        """Whatever is not as it was at the start, content apart."""
        self._not("left_behind")

    def picture(self) -> Hashable:
        """Everything that decides what comes next, as one value: whether a refused call has changed something."""
        self._not("picture")

    def problems(self, device: Device) -> Iterable[Problem]:
        """Rules that the engine finds broken in itself, and claims about places that *device* touches."""
        self._not("problems")

    def transitions(self) -> list[str]:
        """What happened since the last call, one line each."""
        self._not("transitions")

    def _not(self, method: str) -> NoReturn:
        raise Unsupported(f"{type(self).__name__} has no {method}")
