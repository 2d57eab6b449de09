"""What an engine around a scheduler tells its workers: the orders of a plan, and what its forward pass reads and writes.

Rules of this file:

* It decides nothing: what a step computes is given. It reads the scheduler and the ledger, and the texts of requests.
* Records of the package become plain ones (`_device.Orders`), and reports of a device become completions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping

from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Direction, JobId, Launched, LedgerTransition, Plan, Result, TierTransfer, Transfer
from blocklife.ledger import Worker as Rank
from blocklife.ledger._ids import ID_MASK, NULL
from blocklife.offload import Mamba, OffloadScheduler
from blocklife.states import Job as JobState
from blocklife.states import Request
from blocklife.testing.worlds import _second_owner as second
from blocklife.testing.worlds._contents import beginning, looking_ahead
from blocklife.testing.worlds._device import Content, CopyOrder, Landing, Orders, Pass
from blocklife.testing.worlds._tier import Entry

LONG_OVER = 0
"""The job number, in late reports, of every job that is over and forgotten."""


class Passes:
    """A scheduler, and the texts of the requests that its engine computes: each letter is a token."""

    def __init__(self, scheduler: OffloadScheduler, *, drafts: int = 0) -> None:
        """*drafts*: how many tokens each step of a running request guesses."""
        self.scheduler = scheduler
        self.ledger, self.geometry, self.drafts = scheduler.ledger, scheduler.geometry, drafts
        self.weights = ""
        """The weights that the workers compute with now, as known to the engine."""
        self.texts: dict[str, str] = {}
        self._prompts: dict[str, int] = {}
        self.entries: Mapping[Entry, int] = {}
        """The numbers of the entries of the store below; set by whoever has the store."""
        self._handed_out: list[int] = []
        self._groups = range(len(self.geometry.groups))
        self._ahead = [bool(proof) for proof in self.geometry.tail_proofs]
        """The groups whose content depends on the letter behind it."""
        self.ledger.on(hook=self._hear)

    def _hear(self, told: LedgerTransition) -> None:
        if told.event == "allocate":
            self._handed_out += [int(each) for each in told.places]

    def take_handed_out(self) -> tuple[int, ...]:
        """The blocks handed out since this was last asked: by a step, or to a request that writes behind a tail."""
        found, self._handed_out = tuple(self._handed_out), []
        return found

    def hears_of(self) -> list[int]:
        """Blocks that were handed out and not reported yet."""
        return self._handed_out

    def renew(self, weights: str) -> list[str]:
        """Change the weights: nothing computed with the former ones may be found again."""
        self.weights = weights
        return self.scheduler.reset(generation=weights)

    # --- content ------------------------------------------------------------------------------------------------------------

    def content(self, group: int, text: str) -> Content:
        """The content of a block that ends with the last token of *text*, under the present weights."""
        return self.content_of(f"{group}:{text}".encode(), self.weights)

    def _up_to(self, group: int, text: str, end: int) -> Content:
        """What a block holds whose last computed letter is the one before *end*."""
        return self.content(group, looking_ahead(text, end) if self._ahead[group] else text[:end])

    @property
    def agrees(self) -> Callable[[Content, Content], bool]:
        """Whether a place holds what it has to hold: all of it or, beside layers of a drafter, its beginning."""
        return beginning(self.geometry.block_tokens[0]) if any(self._ahead) else operator.eq

    @staticmethod
    def content_of(key: bytes, weights: str) -> Content:
        """The content that a key stands for under given weights."""
        return f"{key.decode()}@{weights}" if weights else key.decode()

    # --- orders -------------------------------------------------------------------------------------------------------------

    def orders(self, plan: Plan, begin: Mapping[str, int], wants: Mapping[str, int]) -> Orders:
        """What the workers are told of a plan in which requests compute *wants* tokens from *begin* on."""
        loads, stores = ([_order(each) for each in transfers] for transfers in (plan.loads, plan.stores))
        below = tuple([self._order_below(each) for each in (*plan.promotes, *plan.demotes)])
        found = self._doubts(wants)
        sure = {name: count for name, count in wants.items() if name not in found} if found else wants
        doubts = tuple([(job, self._forward(begin, {name: wants[name]})) for name, job in found.items()])
        flushes, forward = tuple(job.number for job in plan.flushes), self._forward(begin, sure)
        return Orders(plan.number, flushes, tuple(loads), tuple(stores), forward, below, doubts)

    def _order_below(self, transfer: TierTransfer) -> CopyOrder:
        """The order for one job between slots and the store below: each entry has as many parts as a slot."""
        contents = zip(transfer.groups, transfer.keys, strict=True)
        entries = self._parts([self.entries[transfer.space, group, key] for group, key in contents])
        places = self._parts(_plain(transfer.slots))
        promotes = transfer.direction is Direction.PROMOTE
        source, target = (entries, places) if promotes else (places, entries)
        return CopyOrder(transfer.job.number, promotes, source, target, below=True)

    def _parts(self, numbers: Iterable[int]) -> tuple[int, ...]:
        size = self.geometry.blocks_per_chunk
        return tuple([number * size + part for number in numbers for part in range(size)])

    def _doubts(self, wants: Mapping[str, int]) -> dict[str, int]:
        """The scheduled requests that run behind a load within a step whose plan has not settled, each with its job."""
        if not self.scheduler.policies.load_within_tokens:
            return {}
        jobs = self.ledger.jobs
        live = {
            job.owner: job.number for job in jobs.alive() if job.direction is Direction.LOAD and job.state is JobState.AWAITED
        }
        return {name: live[name] for name in wants if self.ledger.requests.state(name) is Request.LOADING}

    def _forward(self, begin: Mapping[str, int], wants: Mapping[str, int]) -> Pass:
        """The forward pass of these requests: what it has to find, and what it writes."""
        reads: list[tuple[int, Content]] = []
        writes: list[tuple[int, Content]] = []
        for name, count in wants.items():
            if count:
                for group in self._groups:
                    self._forward_of(name, group, begin[name], begin[name] + count, reads, writes)
        for host, group, end, block in second.read(self.ledger, self.geometry):
            reads.append((block, self.content(group, self.texts[host][:end])))
        return Pass(tuple(reads), tuple(writes))

    def _forward_of(
        self, name: str, group: int, begin: int, end: int, reads: list[tuple[int, Content]], writes: list[tuple[int, Content]]
    ) -> None:
        size, text = self.geometry.block_tokens[group], self.texts[name]
        table = self.ledger.requests.table(name, group)
        final = self.scheduler.requests.sealed_blocks(name, group)
        if isinstance(self.geometry.groups[group], Mamba):
            needed = self.geometry.needed(group, begin)
            reads += [(table[position] & ID_MASK, self.content(group, text[:begin])) for position in needed]
            guessed = self._guessed(name, end)
            drafts = self.scheduler.policies.state_drafts
            first = max(begin, min(end, self.scheduler.requests.progress(name).known) - 1) if drafts else end - 1
            for last in range(first, end):  # the state of each draft has a block of its own
                writes.append((table[last // size] & ID_MASK, self.content(group, guessed[: last + 1])))
            return
        for position in self.geometry.needed(group, begin):
            stop = (position + 1) * size if position < final else min(begin, (position + 1) * size)
            reads.append((table[position] & ID_MASK, self._up_to(group, text, stop)))
        # recomputing a final block writes the same bytes again
        guessed, first = self._guessed(name, end), max(begin // size, final)
        if self.geometry.drafters[group] and self.drafts and begin > self._prompts[name]:
            first = begin - 1
        for position in range(first, -(-end // size)):
            if table[position] == NULL:
                raise MisuseError(f"request {name}: token {end - 1} is computed into the null block")
            writes.append((table[position] & ID_MASK, self._up_to(group, guessed, min(end, (position + 1) * size))))

    def _guessed(self, name: str, _end: int) -> str:
        """The text of a request as this step computes it."""
        return self.texts[name]

    # --- reports ------------------------------------------------------------------------------------------------------------

    def launches(self, launched: Iterable[tuple[int, int]]) -> list[Launched]:
        """The records of copies, each with its worker, that have begun to run."""
        return [Launched(JobId(self.ledger.incarnation, job), Rank(worker)) for job, worker in launched]

    def completion(self, landing: Landing) -> Completion:
        """A worker's report of a landing. One of a job long forgotten names another incarnation of the ledger."""
        ledger = self.ledger
        job = JobId(ledger.incarnation, landing.job)
        if landing.job == LONG_OVER:
            job = JobId(ledger.incarnation + 1, max(1, ledger.jobs.last_number))
        missing = self._missing(landing) if landing.missing else ()
        return Completion(job, Rank(landing.worker), Result.OK if landing.ok else Result.FAILED, missing)

    def _missing(self, landing: Landing) -> tuple[int, ...]:
        """The positions of slots that did not come whole: a slot may lack blocks that no hit can read."""
        job, size, required = self.ledger.jobs.get(landing.job), self.geometry.blocks_per_chunk, self.scheduler._stores.required
        if job is None:
            return ()
        parts = [divmod(at, size) for at in landing.missing]
        return tuple(dict.fromkeys([slot for slot, part in parts if part >= size - required[job.slot_groups[slot]]]))


def _plain(ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(each) for each in ids)


def _order(transfer: Transfer) -> CopyOrder:
    """The order for one job."""
    stores = transfer.direction is Direction.STORE
    return CopyOrder(transfer.job.number, stores, _plain(transfer.source), _plain(transfer.target), transfer.group_sizes)
