"""The edge: type checks of arguments, before a verb of the ledger or of the offload scheduler starts.

Rules of this file:

* An error names the argument, what it must be, and what it is. A check changes nothing, and returns the value in the form that
  the verbs work with.
* Only types are checked here; whether a block exists or a count fits is checked where places are known.
* The common case costs one comparison per value. Other accepted forms (numpy numbers and arrays, tuples, ranges) are handled
  after that.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Real
from typing import NoReturn, SupportsIndex, TypeGuard, TypeVar

import numpy as np

from blocklife.errors import MisuseError
from blocklife.ledger._ids import Ids
from blocklife.ledger.jobs import Batch, GroupTransfer, JobColumns, Jobs, Store
from blocklife.ledger.records import Completion, JobId, Launched, Placement, Result, Seal
from blocklife.states import Block

T = TypeVar("T")
BlockT = TypeVar("BlockT", bound=Block)

MOST = (1 << 62) - 1
"""Largest count; the sum of two fits into 64 bits."""
_LIFE = 0x7FFF_FFFF_FFFF_FFFF
"""Largest life."""
_NO_SEQUENCE = (str, bytes, bytearray, memoryview, Mapping)
_TRUTH = (bool, np.bool_)


class NotCopied:
    """Base of objects that must not be copied: a copy would share state, or refer to places that no worker knows."""

    def __reduce_ex__(self, _protocol: SupportsIndex, /) -> NoReturn:
        """Called by both `copy` and `pickle`."""
        raise MisuseError(
            f"{type(self).__name__}: it cannot be copied or pickled (take a snapshot, which is a value, and restore it on one "
            "that was made alike)"
        )


def unknown(request: object) -> MisuseError:
    """The error for a request that is not known."""
    return MisuseError(f"request {request}: it is not known (add it first; a request that is over is forgotten)")


def refuse(name: str, wanted: str, value: object) -> NoReturn:
    """Raise the one error of this file."""
    raise MisuseError(f"{name} must be {wanted}, not {reprlib.repr(value)}")


# --- single values ------------------------------------------------------------------------------------------------------


_ONE, _MANY = "a whole number of at most 62 bits", "whole numbers of at most 63 bits"


def whole(value: object, name: str, wanted: str = _ONE, most: int = MOST) -> int:
    """An integer; bools are refused."""
    if type(value) is int and -most <= value <= most:
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, _TRUTH):
        try:
            found = operator.index(value)
        except TypeError:  # arrays have the method, too
            found = most + 1
        if -most <= found <= most:
            return found
    refuse(name, wanted, value)


def text(value: object, name: str) -> str:
    """A text."""
    if isinstance(value, str):
        return value
    refuse(name, "a text", value)


def flag(value: object, name: str) -> bool:
    """True or False, and nothing that is merely truthy or falsy."""
    if isinstance(value, _TRUTH):
        return bool(value)
    refuse(name, "True or False", value)


def moment(value: object, name: str, wanted: str = "a finite number") -> None:
    """A time. Deadlines are compared with it, so that NaN, for example, would make one that never expires."""
    if type(value) is float and math.isfinite(value):
        return
    if not isinstance(value, _TRUTH) and isinstance(value, Real):
        try:
            if math.isfinite(value):
                return
        except (OverflowError, TypeError):
            pass
    refuse(name, wanted, value)


def member(value: object, kind: type[T], name: str) -> T:
    """One of our own records or handles."""
    if isinstance(value, kind):
        return value
    refuse(name, f"a {kind.__name__}", value)


def function(value: object, name: str) -> None:
    """Something that can be called."""
    if not callable(value):
        refuse(name, "a function", value)


def _are_whole(values: list[object]) -> TypeGuard[list[int]]:
    """Whether these are whole numbers, and none merely counts as one."""
    for each in values:  # noqa: SIM110 - where it is compiled, a loop costs least
        if type(each) is not int:
            return False
    return True


def _are_near(values: list[int]) -> bool:
    """Whether whole numbers fit 64 bits."""
    try:
        for value in values:
            if value < -_LIFE or value > _LIFE:
                return False
    except OverflowError:  # where it is compiled, a value that does not fit is no value there
        return False
    return True


def _are_keys(values: Sequence[object]) -> TypeGuard[Sequence[bytes]]:
    """Whether these are plain keys."""
    for each in values:  # noqa: SIM110
        if type(each) is not bytes:
            return False
    return True


# --- sequences ----------------------------------------------------------------------------------------------------------


def several(values: object, name: str, of: str) -> list[object]:
    """The values of a sequence or other iterable; a text is a single value."""
    if type(values) is list or type(values) is tuple:
        return list(values)
    if isinstance(values, Iterable) and not isinstance(values, _NO_SEQUENCE):
        try:
            return list(values)
        except TypeError:  # an array without dimensions has the method, too
            pass
    refuse(name, f"a sequence of {of}", values)


def numbers(values: object, name: str) -> list[int]:
    """Integers of at most 63 bits, as a list that is the caller's no more."""
    if type(values) is list and _are_whole(values):
        found: list[int] = values.copy()
    elif type(values) is range:
        found = list(values)
    elif isinstance(values, np.ndarray):
        if values.ndim != 1 or (len(values) and values.dtype.kind not in "iu"):
            refuse(name, _MANY, values)
        found = values.tolist()
    else:
        given = several(values, name, _MANY)
        found = given if _are_whole(given) else [whole(each, name, _MANY, _LIFE) for each in given]
    if not _are_near(found):
        refuse(name, _MANY, found)
    return found


def places(values: object, name: str) -> Ids:
    """Host places; only their copier knows how many there are."""
    found = numbers(values, name)
    _check_near(found, name)
    return found


def counts(values: object, name: str) -> list[int]:
    """Integers as a list, whatever their number."""
    found = several(values, name, _MANY)
    if _are_whole(found) and (not found or -MOST <= min(found) <= max(found) <= MOST):
        return found
    return [whole(each, name, _MANY) for each in found]


def keys(values: object, name: str) -> Sequence[bytes]:
    """Keys of content: bytes only, so that look-ups and sorting work."""
    if (type(values) is list or type(values) is tuple) and _are_keys(values):
        return values
    found = several(values, name, "keys, which are bytes")
    return [each if isinstance(each, bytes) else refuse(name, "a sequence of keys, which are bytes", each) for each in found]


def texts(values: object, name: str) -> list[str]:
    """Names of requests."""
    found = several(values, name, "texts")
    return [each if isinstance(each, str) else refuse(name, "a sequence of texts", each) for each in found]


def members(values: object, kind: type[T], name: str) -> list[T]:
    """Our own records, one after the other."""
    found = []
    for each in values if type(values) is list else several(values, name, f"{kind.__name__} records"):
        if not isinstance(each, kind):
            refuse(name, f"a sequence of {kind.__name__} records", each)
        found.append(each)
    return found


# --- handles and records ------------------------------------------------------------------------------------------------


def held(batch: object, name: str) -> list[int]:
    """The lives of a handle on blocks, as a list that is the caller's no more."""
    if not isinstance(batch, Batch):
        refuse(name, "a handle on blocks (Batch)", batch)
    _part(batch.group, name, ".group")
    return numbers(batch.lives, f"{name}.lives")


def job_id(value: object, name: str) -> JobId:
    """The name of a job."""
    if type(value) is JobId and type(value.number) is int and type(value.incarnation) is int:
        return value
    found = member(value, JobId, name)
    whole(found.incarnation, f"{name}.incarnation")
    whole(found.number, f"{name}.number")
    return found


def job_ids(jobs: object, name: str) -> list[JobId]:
    """The names in a handle on jobs."""
    if not isinstance(jobs, Jobs):
        refuse(name, "a handle on jobs (Jobs)", jobs)
    part = f"{name}.ids"
    return [job_id(each, part) for each in several(jobs.ids, part, "job ids")]


def completion(record: object, name: str) -> Completion:
    """One worker's report."""
    if type(record) is Completion and type(record.worker) is int and type(record.result) is Result:
        job = record.job
        if type(job) is JobId and type(job.number) is int and type(job.incarnation) is int and not record.missing:
            return record
    found = member(record, Completion, name)
    job_id(found.job, f"{name}.job")
    whole(found.worker, f"{name}.worker")
    member(found.result, Result, f"{name}.result")
    counts(found.missing, f"{name}.missing")
    return found


def launch(record: object, name: str) -> Launched:
    """One launch record of a worker."""
    found = member(record, Launched, name)
    job_id(found.job, f"{name}.job")
    whole(found.worker, f"{name}.worker")
    return found


def completions(values: object, name: str) -> list[Completion]:
    """Reports, one after the other."""
    found = []
    for each in values if type(values) is list else several(values, name, "Completion records"):
        found.append(completion(each, name))
    return found


def launches(values: object, name: str) -> list[Launched]:
    """Launch records, one after the other."""
    return [launch(each, name) for each in several(values, name, "Launched records")]


def seals(values: object, name: str) -> list[Seal]:
    """Blocks that are final, group by group."""
    found = members(values, Seal, name)
    for each in found:
        _part(each.group, name, ".group")
        _ids(each.lives, name, ".lives")
        _keys(each.keys, name, ".keys")
    return found


def placements(values: object, name: str) -> list[Placement]:
    """What an allocator has appended to tables, with lists of blocks that are the caller's no more."""
    found = []
    for each in members(values, Placement, name):
        _part(each.group, name, ".group")
        _part(each.skipped, name, ".skipped")
        taken, allocated = numbers(each.taken, f"{name}.taken"), numbers(each.allocated, f"{name}.allocated")
        found.append(Placement(each.group, each.skipped, taken, allocated))
    return found


def transfers(values: Sequence[GroupTransfer[BlockT]], name: str) -> list[GroupTransfer[BlockT]]:
    """What a job moves, group by group."""
    found: list[GroupTransfer[BlockT]] = members(values, GroupTransfer, name)
    for each in found:
        if type(each.blocks) is not Batch:
            refuse(f"{name}.blocks", "a handle on blocks (Batch)", each.blocks)
        _part(each.blocks.group, name, ".blocks.group")
        _ids(each.blocks.lives, name, ".blocks.lives")
        _ids(each.slots, name, ".slots")
        if each.keys != ():
            _keys(each.keys, name, ".keys")
        if each.places is not None:
            _ids(each.places, name, ".places")
            _check_near(each.places, f"{name}.places")
        if each.names is not None:
            _keys(each.names, name, ".names")
    return found


def stores(values: object, name: str) -> list[Store]:
    """Stores to be planned."""
    found = members(values, Store, name)
    for each in found:
        if each.owner is not None and type(each.owner) is not str:
            text(each.owner, f"{name}.owner")
        transfers(each.transfers, f"{name}.transfers")
        if each.sharers != ():
            texts(each.sharers, f"{name}.sharers")
    return found


def columns(value: object, name: str, num_groups: int) -> JobColumns:
    """Jobs as columns, which the ledger takes over: each column has one type, and each job has a part of it (I15)."""
    found = member(value, JobColumns, name)
    for part, column in ((".lives", found.lives), (".slots", found.slots), (".places", found.places)):
        if type(column) is not list:
            refuse(name + part, "a list of whole numbers", column)
        _ids(column, name, part)
    _keys(found.keys, name, ".keys")
    if found.names is not found.keys:
        keys([each for each in found.names if each is not None], f"{name}.names")
    for owner, sharers in zip(found.owners, found.sharers, strict=False):
        if owner is not None and type(owner) is not str:
            text(owner, f"{name}.owners")
        if sharers != ():
            texts(sharers, f"{name}.sharers")
    _check_spans(found.groups, found.cuts, num_groups, name)
    if found.slot_groups is not found.groups or found.slot_cuts is not found.cuts:
        _check_spans(found.slot_groups, found.slot_cuts, num_groups, name)
    same_blocks = len(found.lives) == len(found.places) == len(found.names) == len(found.groups)
    same_slots = len(found.slots) == len(found.keys) == len(found.slot_groups)
    same_jobs = len(found.owners) == len(found.sharers) == len(found.cuts) - 1 == len(found.slot_cuts) - 1
    if not (same_blocks and same_slots and same_jobs):
        refuse(name, "columns that are as long as their cuts say (I15)", found)
    return found


def _check_spans(groups: object, cuts: Sequence[int], num_groups: int, name: str) -> None:
    """Each job has something of a column, and the groups of a job ascend."""
    if type(groups) is not bytes or not groups or max(groups) >= num_groups:
        refuse(name, f"columns with groups, which are bytes from 0 to {num_groups - 1}", groups)
    if cuts[0] != 0 or cuts[-1] != len(groups) or any(start >= stop for start, stop in pairwise(cuts)):
        refuse(name, f"columns with cuts that ascend from 0 to {len(groups)}", cuts)
    if num_groups > 1:
        for start, stop in pairwise(cuts):
            last = 0
            for group in groups[start:stop]:
                if group < last:
                    refuse(name, "columns in which the groups of a job ascend", groups[start:stop])
                last = group


def _check_near(values: Ids, name: str) -> None:
    if type(values) is list and values and max(values) > MOST:
        refuse(name, _MANY, values)


def _part(value: object, name: str, part: str) -> None:
    """A whole number in a record; that the name is put together costs only who is refused."""
    if type(value) is not int or not -MOST <= value <= MOST:
        whole(value, name + part)


def _keys(values: object, name: str, part: str) -> None:
    """Keys in a record."""
    if type(values) is not list or not _are_keys(values):
        keys(values, name + part)


def _ids(values: object, name: str, part: str) -> None:
    """Ids in a record, taken as they are: a list or an array of integers."""
    if type(values) is list:
        if not _are_whole(values):
            numbers(values, name + part)
        elif not _are_near(values):
            refuse(name + part, _MANY, values)
        return
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu":
        return
    refuse(name + part, "a list or an array of whole numbers", values)
