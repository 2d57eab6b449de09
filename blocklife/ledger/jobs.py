"""Handles on blocks and jobs, what is planned with them, and the view of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, Literal, NoReturn, TypeAlias, TypeVar

from attrs import define, frozen

from blocklife.core._columns import Core, Ints, TransferJobs, life_of
from blocklife.core._tables import NEVER
from blocklife.errors import LateError, MisuseError
from blocklife.ledger._ids import Ids, Lives
from blocklife.ledger.records import Direction, JobId
from blocklife.states import Block, Job, JobLife

DIRECTIONS = tuple(Direction)
"""By the number that the kernel has for each."""
JOB_STATES = tuple(each for each in JobLife.table.states if isinstance(each, Job))

JobT_co = TypeVar("JobT_co", bound=Job, covariant=True)
BlockT_co = TypeVar("BlockT_co", bound=Block, covariant=True)

Planned: TypeAlias = Literal[Job.PLANNED]
InFlight: TypeAlias = Literal[Job.IN_FLIGHT]
Awaited: TypeAlias = Literal[Job.AWAITED]
Unwanted: TypeAlias = Literal[Job.UNWANTED]

Allocated: TypeAlias = Literal[Block.ALLOCATED]
Sealed: TypeAlias = Literal[Block.SEALED]
Cached: TypeAlias = Literal[Block.CACHED]
Loading: TypeAlias = Literal[Block.LOADING]

Storable: TypeAlias = Literal[Block.ALLOCATED, Block.SEALED, Block.CACHED]
"""Block states in which a life can become the source of a store."""
Submitted: TypeAlias = Literal[Job.IN_FLIGHT, Job.AWAITED]
"""Job states: the workers have the job, and its result is wanted."""
Out: TypeAlias = Literal[Job.IN_FLIGHT, Job.AWAITED, Job.UNWANTED, Job.QUARANTINED]
"""Job states: the workers have the job."""


@frozen
class Jobs(Generic[JobT_co]):
    """A handle on jobs that were last seen in one state: mypy knows the state, and the table checks again at run time."""

    ids: tuple[JobId, ...]


@define(eq=False)
class Batch(Generic[BlockT_co]):
    """The lives of some blocks of one group, last seen in one state. The epoch of a life tells whether it is over."""

    lives: Lives
    group: int = 0

    def __len__(self) -> int:
        return len(self.lives)


@define(eq=False)
class GroupTransfer(Generic[BlockT_co]):
    """What one job moves in one group.

    A slot holds a chunk of one or several blocks. The group sizes of a job are counted from its transfers, without holes inside
    a chunk, so that they always match (I15).
    """

    blocks: Batch[BlockT_co]
    slots: Ids
    keys: Sequence[bytes] = ()
    """The key of each slot. A load needs none: it brings what the slots hold."""
    places: Ids | None = None
    """The host place of each block, in the order of the blocks; None if these are the slots themselves."""
    names: Sequence[bytes] | None = None
    """The key of each block of a load, if a slot holds several; None if these are the keys of the slots."""


@define(eq=False)
class Store:
    """One store to be planned: the request that it is for, and the transfer of each group, in ascending order."""

    owner: str | None
    """The request that it is for; None for a store that belongs to no request."""
    transfers: Sequence[GroupTransfer[Storable]]
    sharers: tuple[str, ...] = ()
    """Further requests that it is for, if one store serves several."""

    @classmethod
    def of(
        cls,
        source: Batch[Storable],
        slots: Ids,
        keys: Sequence[bytes],
        *,
        owner: str | None = None,
        places: Ids | None = None,
    ) -> Store:
        """A store of blocks of one group."""
        return cls(owner, [GroupTransfer(source, slots, keys, places)])


@define(eq=False)
class JobColumns:
    """Jobs to be planned, one after the other, as columns.

    Job *n* moves the blocks ``cuts[n]:cuts[n + 1]`` and the slots ``slot_cuts[n]:slot_cuts[n + 1]``; its groups ascend. If a
    slot holds one block, `places` are the slots and `names` the keys, and groups and cuts are the same for blocks and slots.
    """

    owners: list[str | None]
    """The request that each job is for; None for a store that belongs to no request."""
    cuts: list[int]
    lives: list[int]
    groups: bytes
    """The group of each block."""
    places: list[int]
    """The host place of each block."""
    names: Sequence[bytes | None]
    """The key of each block; None if it is not known (in a store of chunks of several blocks)."""
    slot_cuts: list[int]
    slots: list[int]
    slot_groups: bytes
    keys: list[bytes]
    """The key of each slot."""
    sharers: list[tuple[str, ...]]
    """Further requests that each job is for."""
    space: bytes = b""
    """Of jobs between slots and the store below: `TierTransfer.space`."""

    def __len__(self) -> int:
        return len(self.owners)

    @classmethod
    def of_blocks(
        cls,
        owners: list[str | None],
        sharers: list[tuple[str, ...]],
        cuts: list[int],
        lives: list[int],
        groups: bytes,
        slots: list[int],
        keys: list[bytes],
    ) -> JobColumns:
        """Columns of jobs in which each slot holds one block."""
        return cls(owners, cuts, lives, groups, slots, keys, cuts, slots, groups, keys, sharers)

    @classmethod
    def of_slots(cls, slots: list[int], groups: bytes, keys: list[bytes], space: bytes) -> JobColumns:
        """Columns of one job between slots and the store below: it has no owner and touches no block."""
        return cls([None], [0, 0], [], b"", [], [], [0, len(groups)], slots, groups, keys, [()], space)


def gather(stores: Sequence[Store], num_groups: int) -> JobColumns:
    """Build the columns from stores. Refuses empty jobs, groups out of order, and lengths that do not match (I15)."""
    lives: list[int] = []
    places: list[int] = []
    slots: list[int] = []
    keys: list[bytes] = []
    names: list[bytes | None] = []
    groups, slot_groups = bytearray(), bytearray()
    cuts, slot_cuts = [0], [0]
    for store in stores:
        last = -1
        for transfer in store.transfers:
            group, own, chunks, named = transfer.blocks.group, transfer.blocks.lives, transfer.slots, transfer.keys
            where = chunks if transfer.places is None else transfer.places
            known = named if transfer.names is None else transfer.names
            count, num_chunks = len(own), len(chunks)
            if not last < group < num_groups:
                raise MisuseError(f"group {group}: the groups of a job must ascend, and are 0 to {num_groups - 1}")
            if not count or not num_chunks or len(named) != num_chunks or len(where) != count:
                _refuse_transfer(count, num_chunks, len(named), len(where))
            last = group
            lives += _listed(own)
            slots += _listed(chunks)
            places += _listed(where)
            keys += named
            groups += bytes((group,)) * count
            slot_groups += bytes((group,)) * num_chunks
            if len(known) == count:
                names += known
            elif transfer.names is not None:
                raise MisuseError(f"{count} blocks and {len(known)} of their keys do not agree")
            else:
                names += [None] * count
        if last < 0:
            raise MisuseError("a job with nothing to copy cannot be built")
        cuts.append(len(groups))
        slot_cuts.append(len(slot_groups))
    return JobColumns(
        [store.owner for store in stores],
        cuts,
        lives,
        bytes(groups),
        slots if places == slots else places,
        keys if names == keys else names,
        slot_cuts,
        slots,
        bytes(slot_groups),
        keys,
        [store.sharers for store in stores],
    )


def _listed(values: Ids) -> list[int]:
    """The values as plain integers."""
    return values if isinstance(values, list) else values.tolist()


def sizes_of(groups: bytes, num_groups: int) -> tuple[int, ...]:
    """The number of entries of each group."""
    return tuple([groups.count(group) for group in range(num_groups)])


def _refuse_transfer(count: int, num_chunks: int, num_keys: int, num_places: int) -> NoReturn:
    """Raise the error that says which lengths of a transfer do not match (I15)."""
    if not count:
        raise MisuseError("a job with nothing to copy cannot be built")
    if not num_chunks:
        raise MisuseError("a job without a slot cannot be built: reserve or name the slots of its content")
    if num_keys != num_chunks:
        raise MisuseError(f"{num_chunks} slots and {num_keys} keys do not agree")
    raise MisuseError(f"{count} blocks and {num_places} host places do not agree; each block has a place of its own")


class JobView:
    """What the ledger knows of one job. It can be read until the job is over and its row is used again.

    ``row`` is the place of the job in its transitions, ``number`` counts the jobs of one incarnation from 1.
    """

    __slots__ = ("_core", "number", "row")

    def __init__(self, core: Core, row: int) -> None:
        self._core, self.row, self.number = core, row, int(core.jobs.number[row])

    def _jobs(self) -> TransferJobs:
        jobs = self._core.jobs
        if jobs.number[self.row] != self.number:
            raise LateError(
                f"job {self.number}: it ended so long ago that it is not known any more (ask sooner, or raise max_jobs)"
            )
        return jobs

    def _blocks(self, column: Ints) -> list[int]:
        jobs = self._jobs()
        begin = jobs.begin[self.row]
        return [column[at] for at in range(begin, begin + jobs.num_blocks[self.row])]

    def _slots(self, column: Ints) -> list[int]:
        jobs = self._jobs()
        begin = jobs.slot_begin[self.row]
        return [column[at] for at in range(begin, begin + jobs.num_slots[self.row])]

    def _owners(self) -> list[str]:
        jobs = self._jobs()
        begin = jobs.owner_begin[self.row]
        return [self._core.requests.names[jobs.owner[at]] for at in range(begin, begin + jobs.num_owners[self.row])]

    def _lives(self) -> list[int]:
        jobs = self._jobs()
        begin = jobs.begin[self.row]
        return [life_of(jobs.epoch[at], jobs.place[at]) for at in range(begin, begin + jobs.num_blocks[self.row])]

    def _groups(self, begin: int, count: int) -> bytes:
        jobs = self._core.jobs
        return bytes([jobs.group[at] for at in range(begin, begin + count)])

    def _code(self) -> int:
        return self._jobs().state[self.row]

    def _way(self) -> int:
        return self._jobs().direction[self.row]

    @property
    def code(self) -> int:
        """The number of its state in the table."""
        return self._code()

    @property
    def state(self) -> Job:
        """Its state."""
        return JOB_STATES[self._code()]

    @property
    def direction(self) -> Direction:
        """The direction in which it copies."""
        return DIRECTIONS[self._way()]

    @property
    def owner(self) -> str | None:
        """The request that it is for; None for a store that belongs to no request."""
        return next(iter(self._owners()), None)

    @property
    def sharers(self) -> tuple[str, ...]:
        """Further requests that it is for."""
        return tuple(self._owners()[1:])

    @property
    def ids(self) -> list[int]:
        """The blocks that it reads or fills on the device."""
        return self._blocks(self._core.jobs.place)

    @property
    def lives(self) -> list[int]:
        """The lives of these blocks that it means."""
        return self._lives()

    @property
    def places(self) -> list[int]:
        """The host place of each block."""
        return self._blocks(self._core.jobs.slot)

    @property
    def groups(self) -> bytes:
        """The group of each block."""
        jobs = self._jobs()
        return self._groups(jobs.begin[self.row], jobs.num_blocks[self.row])

    @property
    def names(self) -> list[bytes] | None:
        """The key of each block; None if one is not known (a store of chunks of several blocks)."""
        contents = self._blocks(self._core.jobs.key)
        return [self._core.contents.key[each] for each in contents] if all(contents) else None

    @property
    def slots(self) -> list[int]:
        """The slots at its other end."""
        return self._slots(self._core.jobs.slot)

    @property
    def slot_groups(self) -> bytes:
        """The group of each slot."""
        jobs = self._jobs()
        return self._groups(jobs.slot_begin[self.row], jobs.num_slots[self.row])

    @property
    def keys(self) -> list[bytes]:
        """The key of each slot."""
        return [self._core.contents.key[each] for each in self._slots(self._core.jobs.key)]

    @property
    def space(self) -> bytes:
        """What separates content in the store below (`TierTransfer.space`)."""
        return self._jobs().space.get(self.number, b"")

    @property
    def missing(self) -> frozenset[int]:
        """Of a promotion or demotion: the slots whose content a worker did not move."""
        return self._jobs().missing.get(self.number, frozenset())

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Blocks of each group."""
        return sizes_of(self.groups, self._core.num_groups)

    @property
    def slot_sizes(self) -> tuple[int, ...]:
        """Slots of each group."""
        return sizes_of(self.slot_groups, self._core.num_groups)

    @property
    def reported(self) -> int:
        """A bit for each worker that has reported."""
        jobs, found = self._jobs(), 0
        for at in range(jobs.words):
            found |= jobs.reported[self.row * jobs.words + at] << (64 * at)
        return found

    @property
    def failed(self) -> bool:
        """Whether a worker has reported a failure."""
        return bool(self._jobs().failed[self.row])

    @property
    def expired(self) -> bool:
        """Whether it is out, and its deadline has passed."""
        return self.state is Job.QUARANTINED

    @property
    def deadline(self) -> float | None:
        """When it expires; None until the deadline has started."""
        found = self._jobs().deadline[self.row]
        return None if found == NEVER else found

    def contents(self) -> Iterator[tuple[int, list[int], list[bytes]]]:
        """Each group of the job, with its slots and their keys."""
        slots, keys, start = self.slots, self.keys, 0
        for group, size in enumerate(self.slot_sizes):
            if size:
                yield group, slots[start : start + size], keys[start : start + size]
                start += size
