"""A ledger that follows an engine which knows nothing of it, and says where a step of that engine was not legal.

*Rules of this file.* It knows no engine: the hooks (`pool`, `offloading`, `simple`) tell it facts. It never decides what the
engine does. What was done is believed in the end: after a violation the ledger is brought to where the device is, and the
watch goes on. Nobody is told of a violation before that is so.

*Theory: the order of the device.* What an engine's scheduler does within one step, and the order in which the device feels it,
are two things. The workers of one step first launch the stores that the step before left, then wait for the jobs that the step
flushes, then compute, then load. So facts are only noted while a step is made, and `step` replays them in the device's order:

1. what happened before the step's first hand-out: reports, releases, resets;
2. stores that this very step makes and flushes: they read what their blocks held before this step handed them out;
3. the other facts: hand-outs, prefix hits, releases. A hand-out of a block that a copy reads puts it behind a fence, and
   the step must flush that job. A load that ends before the step computes is over where its target is first hit;
4. the step's flushes: jobs that had to be flushed and are not are violations, and all flushed jobs are over;
5. loads, then what was handed out counts as filled, then the other stores.

Where a ledger is told (`LedgerLives`, `Filing`) each of them is a verb of a `Ledger` (`own_pool=False`, contract *fence*),
whose tables know what is legal; else it is a change of some columns that come to the same (`PlainLives`). Content counts as
final as soon as its step is made, for the device computes it before any store of that step. Whether it is the *right* content
is asked by comparing lives: the one that the request had at that place of its table, and the one that the block has now.

*Theory: sampling.* Of every *sample* blocks one is followed, from the first hand-out to the last copy; the hooks tell of no
others (`follows`). A rule about one block needs that block alone, so each can be kept in a sample. What a slot holds cannot be
told from a sample of its stores, so that nothing is claimed of it then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from blocklife.engines.vllm.watch.holders import CONNECTOR, Holders
from blocklife.engines.vllm.watch.host import NUM_SPARE, Filing, Host
from blocklife.engines.vllm.watch.jobs import EngineCopy, FollowedJobs
from blocklife.engines.vllm.watch.lives import ALLOCATED, FREED, FollowedLives, LedgerLives, PlainLives
from blocklife.engines.vllm.watch.progress import EngineProgress
from blocklife.engines.vllm.watch.story import BlockHistory
from blocklife.engines.vllm.watch.violations import WatchViolation
from blocklife.errors import MisuseError
from blocklife.ledger import Contract, Ledger, Limits
from blocklife.ledger.limits import MAX_REQUESTS
from blocklife.states import Block, BlockLife

_FOREVER = 1e18

_STALE, _LOADING = (BlockLife.table.index[state] for state in (Block.STALE, Block.LOADING))
_OPEN = frozenset((_LOADING, ALLOCATED))

Fact = tuple[Callable[..., None], tuple[object, ...]]
"""What to call when it is replayed, and with what."""
Positions = Sequence[int | None]
Missing = tuple[str, int, int, bool]
"""Who counts on it, its place in the table, its block, and whether the engine finds it by a name already."""


class Mirror:
    """Follows one pool of blocks. Calls are made by one thread, in the order in which things happened.

    *tell* gets the violations of each step, and *lost* the error if the mirror itself cannot go on; what they raise reaches the
    caller. *sample* n follows one block of n. *is_told* says whether there is a ledger, which costs more than all else: no rule
    needs it, but a recording does, and the ledger's tables then judge what the mirror makes of it. *computes* says
    whether steps are those of a whole engine, so that what is let go of in the step that handed it out was never computed.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        num_groups: int = 1,
        num_workers: int = 1,
        num_slots: int = 0,
        blocks_per_slot: int = 1,
        tell: Callable[[list[WatchViolation]], None],
        lost: Callable[[Exception], None],
        sample: int = 1,
        is_told: bool = True,
        computes: bool = True,
        max_jobs: int = 4096,
    ) -> None:
        self.num_blocks = num_blocks
        self.num_workers = num_workers
        self.blocks_per_slot = blocks_per_slot
        self.sample = sample
        self._ledger: Ledger | None = None
        self.name_of: Callable[[str], str] = str
        """Who has a request of the ledger."""
        lives: FollowedLives = PlainLives(num_blocks)
        filing: Filing | None = None
        if is_told:
            self._ledger = Ledger(
                Limits(
                    num_blocks=num_blocks + num_groups,
                    num_slots=num_slots + NUM_SPARE,
                    max_jobs=max_jobs,
                    max_requests=min(num_blocks + 2 * num_groups + 1, MAX_REQUESTS),
                    num_groups=num_groups,
                    num_workers=num_workers,
                    max_journal=1,
                ),
                contract=Contract.FENCE,
                deadline=_FOREVER,
                own_pool=False,
            )
            lives = LedgerLives(self._ledger)
            self.name_of = lives.name_of
            filing = Filing(self._ledger, num_blocks, num_slots, blocks_per_slot)
        self.story = BlockHistory(lives.epoch)
        self.holders = Holders(lives, self.story, num_groups=num_groups, computes=computes)
        self.host = Host(num_slots, keeps=sample == 1)
        self.jobs = FollowedJobs(
            self.story, self.holders, self.host, num_groups=num_groups, num_workers=num_workers, filing=filing
        )
        self._state = lives.state
        self.computes = computes
        self._tell = tell
        self._lost = lost
        self.hears_all = False
        """Whether the connector waits for nothing but its jobs, such as answers of another tier."""
        self.num_held: Callable[[], int | None] = lambda: None
        """How many slots the connector would give to nobody now, if it can tell; less than 0 where it has some twice."""
        self.progress = EngineProgress()
        """How far the requests are; of several mirrors of one engine all have the same."""
        self.brought: frozenset[int] = frozenset()
        """The blocks that loads fill before the last step computes."""
        self.is_torn = False
        """Whether something came in between, in the middle of a step."""
        self._log: list[Fact] = []
        self._handing_out, self._reporting = self._hand_out, self.jobs.report  # one object each, to be found again
        # Targets of the loads of the step that is being replayed; those of a load that ends before the step computes, with it.
        self._targets: set[int] = set()
        self._soon: dict[int, EngineCopy] = {}
        self._loaded: set[int] = set()
        self._new: set[int] = set()
        """Blocks that the step has handed out."""

    @property
    def ledger(self) -> Ledger:
        """The ledger that follows the engine. Refuses, with MisuseError, where it is not told of jobs: then there is none."""
        if self._ledger is None:
            raise MisuseError("watch: no ledger is kept (watch with jobs, strictly or with a recording)")
        return self._ledger

    @property
    def steps(self) -> int:
        """Steps of the connector so far."""
        return self.story.steps

    @property
    def counts(self) -> Counter[str]:
        """How often each rule fell, and what could not be followed."""
        return self.story.counts

    @property
    def is_behind(self) -> bool:
        """Whether anything was noted that was not replayed yet."""
        return bool(self._log)

    def follows(self, block: int) -> bool:
        """Whether a block is one of those that are followed."""
        return 0 < block < self.num_blocks and not block % self.sample

    # --- facts --------------------------------------------------------------------------------------------------------------

    def handed_out(self, holder: str, group: int, blocks: Sequence[int], positions: Positions) -> None:
        """The pool has given these blocks to a new tenant, each for a position of its table."""
        if blocks:
            self._log.append((self._handing_out, (holder, group, blocks, positions)))

    def taken(self, holder: str, group: int, blocks: Sequence[int], positions: Positions) -> None:
        """One more holds these blocks with their content: a prefix hit, or a connector's own hold."""
        if blocks:
            self._log.append((self._take, (holder, group, blocks, positions)))

    def freed(self, holder: str, blocks: Sequence[int], left: Sequence[int] | None = None, *, whole: bool = False) -> None:
        """A holder has let go of these blocks.

        Who is called `CONNECTOR` may do so in anybody's name, for engines free late; *left* then says how many holds of each
        the engine still counts, since some of them are taken without a word. *whole*: it lets go of everything, and is not in
        the step that is being made.
        """
        if blocks:
            self._log.append((self._free, (holder, blocks, left, whole)))

    def gone(self, request: str) -> None:
        """A request has given up all that it holds; what of it was not freed yet is freed later, in nobody's name."""
        self._log.append((self.holders.leave, (request,)))

    def ended(self, request: str) -> None:
        """A request is over: what it held may be stored once more, in the next step."""
        self._log.append((self.holders.end, (request,)))

    def reported(self, job: int, count: int) -> None:
        """So many more workers say that their share of a job is over."""
        self._log.append((self._reporting, (job, count)))

    def reset(self, *, forget: bool = True) -> None:
        """What is out is unwanted, and late reports of it are lawful; *forget* the host's content, too."""
        self._log.append((self._reset, (forget,)))

    def noted(self, what: str, blocks: Sequence[int] = ()) -> None:
        """Something happened to these blocks, or to all, that no rule speaks of."""
        if blocks:
            self._log.append((self.story.note, (blocks, what)))
        else:
            self._log.append((self.story.mark, (what,)))

    # --- the step -----------------------------------------------------------------------------------------------------------

    def step(
        self,
        *,
        stores: Sequence[EngineCopy] = (),
        loads: Sequence[EngineCopy] = (),
        waits: Collection[int] = (),
        computes: Collection[str] = (),
        missing: Sequence[Missing] = (),
    ) -> None:
        """The engine has made the plan of a step: these copies, these jobs to wait for, and for whom it computes.

        *missing*: what a request counts on, and no load brings.
        """
        log, self._log = self._log, []
        self._minded(lambda: self._step(log, stores, loads, waits, computes, missing))
        self.tell()

    def catch_up(self) -> None:
        """Replay what was noted so far, outside of a step or because one came to nothing."""
        log, self._log = self._log, []
        self._minded(lambda: self._catch_up(log))
        self.tell()

    def tell(self) -> None:
        """Tell of the violations that nobody was told of."""
        if self.story.found:
            found, self.story.found = self.story.found, []
            self._tell(found)

    def _minded(self, what: Callable[[], None]) -> None:
        """No engine falls because of its watch: an error in it is handed over, not raised."""
        try:
            what()
        except Exception as error:
            self.is_torn = True
            self._lost(error)
        except BaseException:
            self.is_torn = True
            raise

    def _catch_up(self, log: list[Fact]) -> None:
        self._replay(log)
        self.jobs.land()

    def _step(
        self,
        log: list[Fact],
        stores: Sequence[EngineCopy],
        loads: Sequence[EngineCopy],
        waits: Collection[int],
        computes: Collection[str],
        missing: Sequence[Missing],
    ) -> None:
        self.story.steps += 1
        self._targets = {piece.block for copy in loads if not copy.sync for piece in copy.pieces}
        self._soon = {piece.block: copy for copy in loads if copy.sync for piece in copy.pieces}
        self.brought = frozenset(self._soon)
        start = next((at for at, (fact, _) in enumerate(log) if fact is self._handing_out), len(log))
        self._replay(log[:start])
        self.jobs.land(begins=True)
        self.jobs.store([copy for copy in stores if copy.number in waits])
        self._replay(log[start:])
        self.jobs.wait(waits)
        for copy in loads:
            if copy.number not in self._loaded:
                self.jobs.load(copy)
        self._targets, self._soon, self._loaded = set(), {}, set()
        new, self._new = self._new, set()
        for name, position, block, is_named in missing if self.computes else ():
            if is_named and block not in new:
                continue  # it has come before
            what = f"{name} counts on what is loaded into block {block}, position {position}, and no job loads it"
            self.story.violate("I7", what, block=block, request=name)
        if self.computes:
            self.jobs.compute(computes)
        self.holders.fill(list(self.holders.fresh))
        self.jobs.store([copy for copy in stores if copy.number not in waits])
        self.holders.settle()

    def _replay(self, log: Iterable[Fact]) -> None:
        jobs = self.jobs
        for fact, of in log:
            if fact is not self._reporting and jobs.has_landed:
                jobs.land()
            fact(*of)

    # --- replayed facts -----------------------------------------------------------------------------------------------------

    def _hand_out(self, name: str, group: int, blocks: Sequence[int], positions: Positions) -> None:
        again: list[int] = []
        if len(set(blocks)) < len(blocks):
            blocks, positions, again = _once(blocks, positions)
        touching, where = self.jobs.touching, self.holders.where
        fenced = [] if touching.keys().isdisjoint(blocks) else [block for block in blocks if block in touching]
        for block in () if where.keys().isdisjoint(blocks) else blocks:
            if block in where:
                what = f"block {block} is handed out to {name} while {where[block][0].name} holds it"
                self.story.violate("I4", what, block=block, request=name)
                self.holders.drop(block)
        for block in fenced:
            self.jobs.must_flush(block, name)
        self.holders.hand_out(name, group, blocks, positions)
        self._new.update(blocks)
        for block in fenced:  # the wait is this step's own, so that the new content comes after it
            self.jobs.finish_all(block)
        for block in again:
            self.story.violate("I4", f"block {block} is handed out twice at once to {name}", block=block, request=name)
            self.holders.hold_beside(name, block)

    def _take(self, name: str, group: int, blocks: Sequence[int], positions: Positions) -> None:
        good: dict[int, int | None] = {}
        beside: list[int] = []
        for block, position in zip(blocks, positions, strict=True):
            if block in good and name != CONNECTOR:
                what = f"block {block} is a hit of {name} at two places, and holds the content of one"
                self.story.violate("I6", what, block=block, request=name)
            if block not in good and self._is_final(name, group, block):
                good[block] = position
            else:
                beside.append(block)
        if good:
            self.holders.take(name, list(good), list(good.values()))
        for block in beside:
            self.holders.hold_beside(name, block)

    def _is_final(self, name: str, group: int, block: int) -> bool:
        """Whether a block that is taken has its content, as it should; if not, whether the ledger can know of the new hold."""
        holders = self.holders
        what, rule, own = "", "I6", name != CONNECTOR and holders.holds(name, block)
        if block in holders.fresh:
            if own:
                rule, what = "I7", "although this very step has handed it out again, to the same request"
            elif block in self._targets:
                what = "while its load is planned"
            elif block in self._soon:
                self._load_now(self._soon[block])
            else:
                holders.fill([block])
        elif self.jobs.is_loading(block):
            what = "while its load is out"
            if self._state[block] == _STALE:  # the request that it was for is gone
                self.jobs.finish_all(block)
        elif holders.is_unused(block) and self.computes:
            what = "although its content was never computed: the step that handed it out took it back"
        if what and name != CONNECTOR:
            self.story.violate(rule, f"block {block} is a hit of {name} {what}", block=block, request=name)
        if self._state[block] == FREED:
            holders.believe(block, group)
        return self._state[block] not in _OPEN and block not in holders.fresh and not own

    def _load_now(self, copy: EngineCopy) -> None:
        """A load that ends before the step computes is over before anybody can hit what it brings."""
        self._loaded.add(copy.number)
        self.jobs.load(copy)

    def _free(self, holder: str, blocks: Sequence[int], left: Sequence[int] | None, whole: bool) -> None:
        self.holders.free(holder, blocks, left, whole=whole)

    def _reset(self, forget: bool) -> None:
        self.story.mark("the host tier is reset" if forget else "the host tier gives up what is out")
        self.jobs.reset(forget=forget)


def _once(blocks: Sequence[int], positions: Positions) -> tuple[list[int], list[int | None], list[int]]:
    """Each block with one position of it, and those that were named before."""
    kept: dict[int, int | None] = {}
    again: list[int] = []
    for block, position in zip(blocks, positions, strict=True):
        if block in kept:
            again.append(block)
        else:
            kept[block] = position
    return list(kept), list(kept.values()), again
