"""The book of LMCache's L1: which place is used for what, who writes and reads it, and who may release its locks.

*Rules of this file.* It knows nothing of LMCache's classes: the ears report facts to it, in the order in which they happened
under the lock of the L1 manager. A violation is told, and the book then says what LMCache says, and goes on.

*Theory: the life of a place.* A place of L1 is a slot of the host, and L2 adapters are tiers below it, so it takes the life
that slots of any engine take (`UsedSlots`). A worker's store reserves a place and a commit publishes it; a prefetch reserves
one, a job of an adapter brings its content, and then it is published. What is reserved has a name of its own, its key and the
tag of its writer, for several writers may bring the same content; it gets its key when it is published.

*Theory: leases.* LMCache lets a reservation and a lock end by themselves. Nobody tells the writer, or the reader, so for this
book nothing ends but by who began it: a place whose writer is still at work is written, however late it is. A reservation whose
end LMCache refuses, for its lease is over, is *abandoned*: its writer is done, and its content is lost.

*Theory: locks.* LMCache counts read locks without saying whose they are. Here a request owns those that its lookup was told of,
until it gives them back; a transfer reads while it is open, whatever the count says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from attrs import define, field

from blocklife.watch import TierJob, UsedSlots
from blocklife.watch._uses import Tell

JobKey = tuple[int, str, int]
"""The adapter, ``store`` or ``load``, and the number that the adapter has given."""


@define(eq=False)
class WorkerTransfer:
    """What one worker does with places of L1, from its preparation until it is committed."""

    worker: int
    request: str
    places: Sequence[int]
    writes: bool

    @property
    def does(self) -> str:
        """What it does with a place, in words."""
        return f"worker {self.worker} {'writes' if self.writes else 'reads'} it for {self.request}"


@define(eq=False)
class PlaceBook:
    """The book of one L1 of *num_places*."""

    num_places: int
    tell: Tell
    slots: UsedSlots = field(init=False)
    names: dict[int, bytes] = field(factory=dict)
    """By place: the name that it is used under."""
    abandoned: set[int] = field(factory=set)
    """Places that LMCache keeps reserved, and whose writer has ended too late."""
    ending: WorkerTransfer | None = None
    """The transfer that is being committed: what is done for it is its own doing."""
    _jobs: dict[JobKey, TierJob] = field(factory=dict)
    _landed: list[TierJob] = field(factory=list)
    """Loads that were reported, and that the prefetch has not acted on."""
    _made: int = 0
    _transfers: dict[object, WorkerTransfer] = field(factory=dict)
    _open: dict[int, list[WorkerTransfer]] = field(factory=dict)
    """By place: the transfers that touch it."""
    _owned: dict[str, Counter[bytes]] = field(factory=dict)
    """By request: the locks that it has to give back."""
    _below: Counter[tuple[int, bytes]] = field(factory=Counter)
    """Locks on content of each adapter."""

    def __attrs_post_init__(self) -> None:
        self.slots = UsedSlots(self.num_places, self.tell, sees_all=True)

    def odd(self, rule: str, what: str, place: int | None = None, request: str | None = None) -> None:
        """Something was illegal."""
        self.slots.odd(rule, what, request, place)

    # --- places -------------------------------------------------------------------------------------------------------------

    def reserved(self, name: bytes, place: int, *, promotes: bool) -> None:
        """A place is reserved for content that comes under this name."""
        if self.names.get(place) == name:
            does = next((each.does for each in self._open.get(place, ())), "its first writer has not ended")
            self.odd("I1", f"place {place} is handed to another writer of the same content while {does}", place)
            return
        self.abandoned.discard(place)
        self.names[place] = name
        self.slots.reserved([name], [place], promotes=promotes, request=None)

    def published(self, name: bytes, key: bytes, place: int, *, promoted: bool) -> None:
        """What was reserved under this name can be read under its key."""
        for each in self._others(place):
            if each.writes:
                self.odd("I6", f"place {place} is published while {each.does}", place, each.request)
        if self.ending is not None and self.ending.writes and place not in self.ending.places:
            what = f"place {place} is published with a store of worker {self.ending.worker}, which was not told to write it"
            self.odd("I6", what, place, self.ending.request)
        self.slots.published([name], promoted=promoted)
        self.slots.renamed(name, key)
        self.names[place] = key

    def ended_late(self, name: bytes) -> None:
        """A writer has ended, and LMCache does not take it: the lease is over. Its place stays reserved."""
        if (found := self.slots.holds(name)) is not None:
            self.slots.dropped([name])
            self.names.pop(found[0], None)
            self.abandoned.add(found[0])

    def freed(self, place: int, *, discards: bool) -> None:
        """The memory of a place is given back; *discards*: by who has written it."""
        for each in self._others(place):
            rule = "I1" if each.writes else "I7"
            self.odd(rule, f"place {place} is freed while {each.does}", place, each.request)
            self._drop(each)
        name = self.names.pop(place, None)
        if name is None:
            if place not in self.abandoned:
                self.odd("I4", f"place {place} is freed, and was neither reserved nor published", place)
            self.abandoned.discard(place)
        elif discards:
            self.slots.dropped([name])
        else:
            self.slots.evicted([name])

    def closes(self) -> None:
        """L1 ends, with all that is in it."""
        self.slots.reset()
        for each in (self.names, self.abandoned, self._transfers, self._open, self._owned):
            each.clear()

    # --- locks --------------------------------------------------------------------------------------------------------------

    def locked(self, key: bytes, place: int, count: int, *, by_tier: bool) -> None:
        """Content is locked so many times: for requests, or for a store to an adapter."""
        for _ in range(count):
            self.slots.held([key], [place], by_tier=by_tier, request=None)

    def unlocked(self, key: bytes, count: int, who: str | None, *, by_tier: bool) -> None:
        """So many locks are given back, by a request where it is known."""
        if (found := self.slots.holds(key)) is None:
            return
        if who is not None:
            self._give_back(key, count, who, found[0])
        for _ in range(count):
            self.slots.released([key], by_tier=by_tier)
        reading = [each for each in self._others(found[0]) if not each.writes]
        left = max(0, (self.slots.holds(key) or (0, 0))[1])
        if len(reading) > left:
            self.odd("I7", f"a lock of place {found[0]} is released while {reading[0].does}", found[0], reading[0].request)
            self._drop(reading[0])

    def _give_back(self, key: bytes, count: int, who: str, place: int) -> None:
        own = self._owned.setdefault(who, Counter())
        if own[key] < count:
            what = f"{who} releases {count} locks of place {place}, and holds {own[key]}: the others belong to other requests"
            self.odd("I4", what, place, who)
        own[key] -= min(count, own[key])

    def owns(self, who: str, keys: Iterable[bytes], count: int) -> None:
        """A lookup tells a request that these keys are there, each locked so many times for it."""
        own = self._owned.setdefault(who, Counter())
        for key in keys:
            own[key] += count

    def told(self, key: bytes, who: str, *, locked: bool) -> None:
        """A lookup reports a hit to a request: the content must be readable and, if the lookup locks, its place locked."""
        found = self.slots.holds(key)
        if found is None or found[1] < 0:
            self.odd("I6", f"the lookup of {who} reports a hit whose content cannot be read", request=who)
        elif locked and not found[1]:
            self.odd("I7", f"the lookup of {who} reports a hit in place {found[0]}, which has no lock", found[0], who)

    def ends(self, who: str) -> None:
        """A request has ended: whatever is still locked for it is locked until its lease is over."""
        left = sum((self._owned.pop(who, None) or Counter()).values())
        if left:
            self.odd("I12", f"{who} has ended, and {left} of its locks were not released", request=who)

    # --- transfers ----------------------------------------------------------------------------------------------------------

    def prepared(self, of: object, transfer: WorkerTransfer) -> None:
        """A worker may write, or read, these places from now on."""
        self._transfers[of] = transfer
        for at, place in enumerate(transfer.places):
            if place in transfer.places[:at]:
                self.odd("I1", f"place {place} is named twice, and {transfer.does}", place, transfer.request)
                continue
            self._ask_prepared(place, transfer)
            self._open.setdefault(place, []).append(transfer)

    def _ask_prepared(self, place: int, transfer: WorkerTransfer) -> None:
        holds = (self.slots.holds(self.names.get(place, b"")) or (place, 0))[1]
        is_written = holds < 0
        if transfer.writes and not is_written:
            self.odd("I1", f"place {place} is not reserved, and {transfer.does}", place, transfer.request)
        elif is_written and not transfer.writes:
            self.odd("I6", f"place {place} is not published, and {transfer.does}", place, transfer.request)
        elif not transfer.writes and holds <= sum(not each.writes for each in self._open.get(place, ())):
            self.odd("I7", f"place {place} is not locked for it, and {transfer.does}", place, transfer.request)

    def gone(self, worker: int, who: str) -> None:
        """A worker comes for what a request was told of, and LMCache does not have it."""
        self.odd("I7", f"worker {worker} cannot read a hit of {who}: its content is gone, or not locked", request=who)

    def commits(self, of: object) -> None:
        """A worker says that it is done, and LMCache acts on it."""
        self.ending = self._transfers.get(of)

    def committed(self, of: object) -> None:
        """LMCache has acted on it."""
        self.ending = None
        if (transfer := self._transfers.pop(of, None)) is not None:
            self._drop(transfer)

    def forgets(self, worker: int) -> None:
        """LMCache has given up all that this worker had prepared; it was told of whatever that breaks."""
        for of, transfer in list(self._transfers.items()):
            if transfer.worker == worker:
                del self._transfers[of]
                self._drop(transfer)
                if not transfer.writes and (own := self._owned.get(transfer.request)) is not None:
                    for place in transfer.places:
                        own[self.names.get(place, b"")] -= 1
                    self._owned[transfer.request] = +own

    def _others(self, place: int) -> list[WorkerTransfer]:
        return [each for each in self._open.get(place, ()) if each is not self.ending]

    def _drop(self, transfer: WorkerTransfer) -> None:
        for place in transfer.places:
            left = [each for each in self._open.get(place, ()) if each is not transfer]
            if left:
                self._open[place] = left
            else:
                self._open.pop(place, None)

    # --- adapters -----------------------------------------------------------------------------------------------------------

    def submitted(self, of: JobKey, keys: Sequence[bytes], places: Sequence[int]) -> None:
        """An adapter gets a job: it stores what the places hold under these keys, or loads that into them."""
        tier, kind, _ = of
        if kind == "load":
            for key in keys:
                if self._below[tier, key] <= 0:
                    self.odd("I7", f"adapter {tier} is to load content that is not locked there")
        names = list(keys)
        for at, place in enumerate(places if kind == "load" else ()):
            names[at] = self.names.get(place, keys[at])
            if names[at].partition(b"#")[0] != keys[at]:
                self.odd("I8", f"adapter {tier} is to load into place {place}, which is reserved for other content", place)
        self._made += 1
        job = TierJob(self._made, tier, None, names, places, promotes=kind == "load")
        if (older := self._jobs.get(of)) is not None:
            self.odd("I3", f"adapter {tier} gives the number of {older.name}, which is out, to another job")
        self._jobs[of] = job
        self.slots.enter(job)
        job.life.launch()

    def reported(self, of: JobKey, good: Collection[int]) -> None:
        """An adapter reports a job as over; *good*: which of its contents have arrived, by position."""
        if (job := self._jobs.get(of)) is None or not job.is_out:
            self.odd("I3" if job is None else "I9", f"adapter {of[0]} reports a {of[1]} that is not out")
            return
        job.life.land()
        job.good = frozenset(each for at, each in enumerate(job.keys) if at in good)
        if job.promotes:
            self._landed.append(self._jobs.pop(of))

    def stored(self, of: JobKey) -> None:
        """LMCache has acted on the report of a store."""
        if (job := self._jobs.pop(of, None)) is not None:
            self._leaves(job)

    def loaded(self) -> None:
        """LMCache has acted on all reports of loads."""
        landed, self._landed = self._landed, []
        for job in landed:
            self._leaves(job)

    def _leaves(self, job: TierJob) -> None:
        self.slots.leave(job)
        if not job.is_out:
            job.life.end()

    def found_below(self, tier: int, keys: Iterable[bytes]) -> None:
        """An adapter has found and locked these."""
        self._below.update((tier, key) for key in keys)

    def unlocked_below(self, tier: int, keys: Iterable[bytes]) -> None:
        """LMCache needs these of an adapter no more."""
        for key in keys:
            if self._below[tier, key] <= 0:
                self.odd("I4", f"content of adapter {tier} is unlocked, and was not locked")
                continue
            self._below[tier, key] -= 1
            if not self._below[tier, key]:
                del self._below[tier, key]
