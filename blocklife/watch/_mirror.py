"""The mirror: follows an unmodified engine, and reports its illegal steps.

*Rules of this file.* It knows nothing of vLLM: the hooks (`_pool`, `_offloading`, `_simple`) report facts to it. It never
changes what the engine does. After a violation the mirror adopts the state of the device, reports the violation, and goes on.

*Theory: the order of the device.* The order in which a scheduler acts within one step is not the order in which the device
executes it. The workers of a step first launch the stores deferred from the previous step, then wait for the flushed jobs, then
compute, then load. So facts are only noted while a step is scheduled, and `step` replays them in the device's order:

1. what happened before the step's first hand-out: reports, releases, resets; and whatever tiers below the host have done, for
   their jobs are over, or begin to read, before any copy of this step;
2. stores that this step both makes and flushes: they read what their blocks held before this step handed them out;
3. the other facts: hand-outs, prefix hits, releases. A hand-out of a block that a copy reads puts it behind a fence, and
   the step must flush that job. A load that ends before the step computes is over at the first hit on its target;
4. the step's flushes: a job that should be flushed but is not is a violation; all flushed jobs are over;
5. loads, then what was handed out counts as filled, then the other stores.

Content counts as final as soon as its step is scheduled, because the device computes it before any store of that step. Whether
it is the *right* content is decided by comparing lives: the one that the request had at that position of its table, and the one
that the block has now. For a recording, and in a strict watch, a ledger is told of each replayed fact, too (`ToldLedger`): what
the mirror lets pass must then be legal by the ledger's tables.

*Theory: sampling.* One of every *sample* blocks is followed, from the first hand-out to the last copy; the hooks report no
others (`follows`). A rule about one block needs only that block, so it can be checked in a sample. The content of a slot cannot
be known from a sample of its stores, so nothing is checked of slots then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from blocklife.errors import MisuseError
from blocklife.ledger import Ledger
from blocklife.watch._below import TierBook
from blocklife.watch._holders import ALLOCATED, CONNECTOR, FollowedLives, Holders
from blocklife.watch._jobs import FollowedJobs, Host
from blocklife.watch._ledger import ToldLedger
from blocklife.watch._records import EngineCopy, MirrorSizes
from blocklife.watch._story import BlockHistory
from blocklife.watch._violations import WatchViolation

Fact = tuple[Callable[..., None], tuple[object, ...]]
"""A function to call at the replay, and its arguments."""
Positions = Sequence[int | None]
"""For each of some blocks its position in the table of its holder; None where that is not known."""
Missing = tuple[str, int, int, bool]
"""The request that expects it, the position in its table, the block, and whether the prefix cache has the block already."""


class Mirror:
    """Follows one pool of blocks. Calls are made by one thread, in the order in which things happened.

    *tell* gets the violations of each step. *minded* makes a call that may fail by a fault of the mirror itself. What these
    two raise reaches the caller. With *sample* n, one block in n is followed. *is_told* says whether there is a ledger, which
    costs more than all the rest: no rule needs it, but a recording does, and its tables then check the mirror, too. *computes*
    says whether the steps are those of a whole engine, so that a block released in the step that handed it out was never
    computed.
    """

    def __init__(
        self,
        sizes: MirrorSizes,
        *,
        tell: Callable[[list[WatchViolation]], None],
        minded: Callable[[Callable[[], object]], object],
        sample: int = 1,
        is_told: bool = True,
        computes: bool = True,
    ) -> None:
        self.num_blocks = sizes.num_blocks
        self.num_workers = sizes.num_workers
        self.sample = sample
        self._lives = lives = FollowedLives(sizes.num_blocks)
        self.story = BlockHistory(lives.epoch)
        if is_told:
            lives.told = ToldLedger(sizes, self.story.counts)
        self.holders = Holders(lives, self.story, num_groups=sizes.num_groups, computes=computes)
        self.host = Host(sizes.num_slots, keeps=sample == 1)
        self.jobs = FollowedJobs(self.story, self.holders, self.host, sizes)
        self.computes = computes
        self._tell = tell
        self._minded = minded
        self.hears_all = False
        """Whether the connector waits only for its jobs, and not, for example, for another tier."""
        self.num_held: Callable[[], int | None] = lambda: None
        """How many slots the connector cannot hand out now, if it can tell; negative where it counts some slots twice."""
        self.below: TierBook | None = None  # where there are tiers below the host
        self.brought: frozenset[int] = frozenset()
        """The blocks that loads fill before the last step computes."""
        self._log: list[Fact] = []
        self._handing_out, self._reporting = self._hand_out, self.jobs.report  # one object each, compared by identity
        self._targets: set[int] = set()  # of the loads of the step in replay; those that end before the forward pass: _soon
        self._soon: dict[int, EngineCopy] = {}
        self._loaded: set[int] = set()
        self._new: set[int] = set()
        """Blocks that the step has handed out."""

    @property
    def ledger(self) -> Ledger:
        """The ledger that follows the engine. Raises MisuseError if there is none (`is_told`)."""
        if self._lives.told is None:
            raise MisuseError("watch: no ledger is kept (watch with jobs=True, or with a recording)")
        return self._lives.told.ledger

    def name_of(self, request: str) -> str:
        """The holder to which a request of the ledger is lent."""
        return request if self._lives.told is None else self._lives.told.name_of(request)

    @property
    def steps(self) -> int:
        """Steps of the connector so far."""
        return self.story.steps

    @property
    def counts(self) -> Counter[str]:
        """How often each rule was broken, and how much could not be followed."""
        return self.story.counts

    @property
    def is_behind(self) -> bool:
        """Whether any noted fact was not replayed yet."""
        return bool(self._log)

    def follows(self, block: int) -> bool:
        """Whether a block is one of those that are followed."""
        return 0 < block < self.num_blocks and not block % self.sample

    # --- facts --------------------------------------------------------------------------------------------------------------

    def handed_out(self, holder: str, group: int, blocks: Sequence[int], positions: Positions) -> None:
        """The pool has handed these blocks out, each for a position of the holder's table."""
        if blocks:
            self._log.append((self._handing_out, (holder, group, blocks, positions)))

    def taken(self, holder: str, group: int, blocks: Sequence[int], positions: Positions) -> None:
        """Add a reference to these blocks and their content: a prefix hit, or a reference of the connector."""
        if blocks:
            self._log.append((self._take, (holder, group, blocks, positions)))

    def freed(self, holder: str, blocks: Sequence[int], left: Sequence[int] | None = None, *, whole: bool = False) -> None:
        """A holder has released these blocks.

        A release by `CONNECTOR` may be on behalf of any request, since engines free late; *left* then has the engine's counts
        of references afterwards, since some are taken unseen. *whole*: the holder releases everything, and is not part of
        the current step.
        """
        if blocks:
            self._log.append((self._free, (holder, blocks, left, whole)))

    def given_back(self, blocks: Sequence[int]) -> None:
        """These blocks are free again, in an engine that neither counts their holders nor names them."""
        if blocks:
            self._log.append((self._give_back, (blocks,)))

    def stored(self, copies: Sequence[EngineCopy]) -> None:
        """These stores begin here, between other facts: for an engine that does not keep them to the end of its step."""
        self._log.append((self.jobs.store, (copies,)))

    def loaded(self, copies: Sequence[EngineCopy]) -> None:
        """The same for loads."""
        for copy in copies:
            self._log.append((self.jobs.load, (copy,)))

    def gone(self, request: str) -> None:
        """A request has given up all its blocks; those not freed yet are freed later, without naming the request."""
        self._log.append((self.holders.leave, (request,)))

    def ended(self, request: str) -> None:
        """A request is finished: its blocks may still be stored in the next step."""
        self._log.append((self.holders.end, (request,)))

    def reported(self, job: int, count: int) -> None:
        """This many more workers report the end of their share of a job."""
        self._log.append((self._reporting, (job, count)))

    def lent(self, holder: str, slots: Sequence[int]) -> None:
        """A job of a tier below the host (*holder*) reads these slots from now on."""
        self._log.append((self.jobs.lend, (holder, slots)))

    def promoting(self, holder: str, content: Sequence[tuple[bytes, int]]) -> None:
        """A job of a tier below the host (*holder*) fills slots from now on: the key of each, and the slot."""
        if (told := self._lives.told) is not None:
            self._log.append((told.promote, (holder, content)))

    def returned(self, holder: str, good: Collection[int] = ()) -> None:
        """That job is over; of the slots that it fills these are *good*."""
        if (told := self._lives.told) is not None:
            self._log.append((told.end_tier_job, (holder, good)))

    def published(self, slots: Sequence[int]) -> None:
        """The connector lets these slots be read: what was stored in them must have landed."""
        if slots:
            self._log.append((self.jobs.published, (slots,)))

    def brought_up(self, content: Sequence[tuple[bytes, int]]) -> None:
        """A tier below has filled slots: the key of each, and the slot."""
        if content:
            self._log.append((self.jobs.bring_up, (content,)))

    def reset(self, *, forget: bool = True) -> None:
        """Everything in flight is abandoned, and late reports of it are lawful; *forget* the host's content, too."""
        self._log.append((self._reset, (forget,)))

    def noted(self, what: str, blocks: Sequence[int] = ()) -> None:
        """Note an event of these blocks, or of all, for their history; no rule depends on it."""
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
        """The engine has scheduled a step: its copies, the jobs to wait for, and the requests it computes.

        *missing*: what a request expects to be loaded, and no job loads.
        """
        log, self._log = self._log, []
        self._minded(lambda: self._step(log, stores, loads, waits, computes, missing))
        self.notify()

    def catch_up(self) -> None:
        """Replay what was noted so far, outside of a step or because a step was given up."""
        log, self._log = self._log, []
        self._minded(lambda: self._catch_up(log))
        self.notify()

    def notify(self) -> None:
        """Report the violations not reported yet."""
        if self.story.found:
            found, self.story.found = self.story.found, []
            self._tell(found)

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
        if self.below is not None:
            told = self._lives.told
            of_tiers: set[Callable[..., None]] = {self.jobs.published, self.jobs.lend, self.jobs.bring_up}
            of_tiers |= set() if told is None else {told.promote, told.end_tier_job}
            self._replay([each for each in log[start:] if each[0] in of_tiers])
            log[start:] = [each for each in log[start:] if each[0] not in of_tiers]
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
                continue  # it was replayed earlier
            what = f"{name} expects block {block}, position {position}, to be loaded, but no job loads it"
            self.story.violate("I7", what, block=block, request=name)
        if self.computes:
            self.jobs.compute(computes)
        self.holders.fill(list(self.holders.fresh))
        self.jobs.store([copy for copy in stores if copy.number not in waits])
        self.holders.end_step()

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
        for block in fenced:  # this step itself waits, so that the new content comes after the copy
            self.jobs.finish_all(block)
        for block in again:
            self.story.violate("I4", f"block {block} is handed out twice at once to {name}", block=block, request=name)
            self.holders.hold_beside(name, block)

    def _take(self, name: str, group: int, blocks: Sequence[int], positions: Positions) -> None:
        good: dict[int, int | None] = {}
        beside: list[int] = []
        for block, position in zip(blocks, positions, strict=True):
            if block in good and name != CONNECTOR:
                what = f"block {block} is a hit of {name} at two positions, but has the content of only one"
                self.story.violate("I6", what, block=block, request=name)
            if block not in good and self._is_final(name, group, block):
                good[block] = position
            else:
                beside.append(block)
        if good:
            self.holders.acquire(name, list(good), list(good.values()))
        for block in beside:
            self.holders.hold_beside(name, block)

    def _is_final(self, name: str, group: int, block: int) -> bool:
        """Whether the ledger can follow a new reference to this block. A block without final content is a violation."""
        holders = self.holders
        what, rule, own = "", "I6", name != CONNECTOR and holders.holds(name, block)
        if block in holders.fresh:
            if own:
                rule, what = "I7", "although this same step has handed it out again, to the same request"
            elif block in self._targets:
                what = "while its load is planned"
            elif block in self._soon:
                self._load_now(self._soon[block])
            else:
                holders.fill([block])
        elif self.jobs.is_loading(block):
            what = "while its load is out"
            if self._lives.is_blank(block):  # its request gave it up
                self.jobs.finish_all(block)
        elif holders.is_unused(block) and self.computes:
            what = "although its content was never computed: the step that handed it out took it back"
        if what and name != CONNECTOR:
            self.story.violate(rule, f"block {block} is a hit of {name} {what}", block=block, request=name)
        if self._lives.is_blank(block):
            holders.believe(block, group)
        return self._lives.state[block] != ALLOCATED and block not in holders.fresh and not own

    def _load_now(self, copy: EngineCopy) -> None:
        """End a load that lands before the forward pass: this happens before its content can be hit."""
        self._loaded.add(copy.number)
        self.jobs.load(copy)

    def _free(self, holder: str, blocks: Sequence[int], left: Sequence[int] | None, whole: bool) -> None:
        self.holders.free(holder, blocks, left, whole=whole)

    def _give_back(self, blocks: Sequence[int]) -> None:
        owned: dict[str, list[int]] = {}
        for block in dict.fromkeys(blocks):
            for holder in self.holders.where.get(block, ()):
                owned.setdefault(holder.name, []).append(block)
        for name, own in owned.items():
            self.holders.free(name, own)
        for block in blocks if len(set(blocks)) < len(blocks) else ():
            if blocks.count(block) > 1:
                self.story.violate("I4", f"block {block} is freed twice at once", block=block)

    def _reset(self, forget: bool) -> None:
        self.story.mark("the host tier is reset" if forget else "the host tier abandons the copies in flight")
        self.jobs.reset(forget=forget)


def _once(blocks: Sequence[int], positions: Positions) -> tuple[list[int], list[int | None], list[int]]:
    """Each block with one of its positions, and the blocks named more than once."""
    kept: dict[int, int | None] = {}
    again: list[int] = []
    for block, position in zip(blocks, positions, strict=True):
        if block in kept:
            again.append(block)
        else:
            kept[block] = position
    return list(kept), list(kept.values()), again
