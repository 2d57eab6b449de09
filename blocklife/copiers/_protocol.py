"""The protocol of copiers: they move bytes, report when these have arrived, and can prove that a copy has stopped.

*Rules.* A copier never calls the ledger and knows no lifecycle: it only reports. A failed copy becomes a result, never an
exception in the engine's loop; `MisuseError` is for calls that no copier could serve. A copier is called by one thread, the one
that runs its worker's share.

*Order.* Jobs of one direction that meet at a place of which one of them writes run in the order in which they were launched.
There is no other order between jobs, and none of completions: readers must handle late, repeated, reordered and missing ones.

*Quiet and reported are different.* A job is **quiet** when no byte of it is read or written any more; it is **reported** when
`poll` has returned its completion. Reported implies quiet, but not the other way round. Memory safety needs only quiet; there
is one method for it, `wait`, which returns no verdict. There is no separate `quiesce`: a wait that could return while a job
still runs would prove nothing, so a `wait` that returns is always the proof.

*Waiting on the device.* Where the engine computes on a stream, that stream can wait in the host's place: the host goes on, and
the device idles no longer than it has to. A copier that can tell it so has `fence` (`QueuesWaits`); else the host waits. Such a
copier is told, too, which loads the next forward pass waits for, so that they do not stand behind others (`needed_now`).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar, runtime_checkable

from blocklife.errors import MisuseError
from blocklife.ledger._limits import Limits
from blocklife.ledger.records import Completion, JobId, TierTransfer, Transfer, Worker

TransferT_contra = TypeVar("TransferT_contra", bound=Transfer | TierTransfer, contravariant=True)


def check_sizes(who: str, num_blocks: int, num_places: int, limits: Limits, places_per_slot: int) -> None:
    """Refuse memory that is smaller than the ledger with these limits; *who* is the copier, for the error."""
    if places_per_slot < 1:
        raise MisuseError(f"{who}: places_per_slot must be at least 1, not {places_per_slot}")
    if num_blocks < limits.num_blocks:
        raise MisuseError(
            f"{who}: the device has {num_blocks} blocks, and the ledger {limits.num_blocks}: num_blocks, with the null block "
            "(make the device's memory larger, or the ledger smaller)"
        )
    if num_places < (needed := limits.num_slots * places_per_slot):
        each = f", with {places_per_slot} places each" if places_per_slot > 1 else ""
        raise MisuseError(
            f"{who}: the host has {num_places} places, and the ledger needs {needed}: num_slots={limits.num_slots}{each} "
            "(make the host's memory larger, or the ledger smaller)"
        )


def check_launch(job: JobId, out: Container[JobId], *, closed: bool) -> None:
    """Refuse what no copier launches: a job that is *out* already, and any after its `close`."""
    if closed:
        raise MisuseError(f"job {job}: cannot LAUNCH while the copier is CLOSED (make a new copier)")
    if job in out:
        raise MisuseError(f"job {job}: cannot LAUNCH while it is out (a job is launched once)")


class AnyCopier(Protocol[TransferT_contra]):
    """Moves the bytes of one worker's share of every job; `Copier` and `TierCopier` say between what."""

    @property
    def worker(self) -> Worker:
        """The rank whose share is moved here, as in its completions."""
        ...

    def launch(self, transfer: TransferT_contra) -> None:
        """Queue a transfer behind those that it meets; returns before its bytes have moved.

        Holds: sources may be read and targets written from now until the job is quiet.
        Needs: the content of the sources is final in the order that the copier uses (a stream, an event, the calling thread).
        Refuses: MisuseError after `close`, and for a job that is still outstanding; nothing has changed then.
        Next: `poll` until its completion comes, or `wait`.
        """
        ...

    def poll(self) -> list[Completion]:
        """Report the jobs that ended since the last poll, including failed ones; never raises because of a copy.

        May be called after `close`, to collect the jobs that it drained.
        """
        ...

    def wait(self, jobs: Collection[JobId]) -> None:
        """Block the host until these jobs are quiet, and prove it by returning.

        Launched jobs run to their end. A hung job is aborted: it moves nothing more, and its result is FAILED or never comes.
        Completions are returned by later polls. Unknown jobs, and jobs that are already quiet, are ignored.
        """
        ...

    def busy(self) -> bool:
        """Whether further polls, without further launches, may still report something.

        A hung job does not count as busy, because more steps would not help it. Its places are not safe until `wait` returns.
        """
        ...

    def close(self) -> None:
        """Drain: wait until every job is quiet, then release threads, streams and buffers. A second call does nothing."""
        ...


class Copier(AnyCopier[Transfer], Protocol):
    """Moves the bytes of one worker's share of every job between the device and host slots."""


@runtime_checkable
class QueuesWaits(Protocol):
    """A copier whose device can wait in the host's place; such methods may stand beside those of `Copier`."""

    def needed_now(self) -> AbstractContextManager[None]:
        """Loads launched in it are read by the forward pass that is queued next: they may go before others."""
        ...

    def fence(self, jobs: Collection[JobId]) -> None:
        """Let whatever the engine queues next begin only when these jobs are quiet; returns at once, and proves nothing.

        Unknown jobs, and jobs that are already quiet, are ignored. May raise what `wait` raises.
        """
        ...


@runtime_checkable
class LoadsByLayer(QueuesWaits, Protocol):
    """A copier of which each layer of a forward pass can wait for its own part of the loads that it reads."""

    def needed_now(self, num_parts: int = 1) -> AbstractContextManager[None]:
        """As in `QueuesWaits`. With more parts than one they go layer after layer, and each layer waits for its own."""
        ...

    def before_layer(self, layer: int) -> None:
        """Let whatever the engine queues next begin only when the loads in parts have brought this layer.

        For those launched since the last `computed`. The layers of all groups are counted through.
        """
        ...


class EngineCopier(Copier, Protocol):
    """A copier that is told what the engine has queued."""

    def computed(self, engine: object = None) -> None:
        """Copies launched from now on run after the work that the engine has queued so far."""
        ...

    def before_forward(self, engine: object = None, blocks: Sequence[int] | None = None) -> None:
        """Work that the engine queues next runs after the loads into these blocks."""
        ...

    def behind_forward(self) -> AbstractContextManager[None]:
        """Copies launched in it run beside the forward pass that was queued since the last `computed`, not after it."""
        ...

    def durations(self) -> Mapping[JobId, float]:
        """Durations in seconds of the copies reported by the last `poll`; failed ones may be missing."""
        ...


class TierCopier(AnyCopier[TierTransfer], Protocol):
    """Moves the bytes of one worker's share of every job between host slots and a store below. `stores.StoreCopier` is one.

    A completion with `Result.OK` names in `Completion.missing` what did not come whole, or was not taken; FAILED is for what
    cannot be said slot by slot. A store that hangs must not hold up a `wait` for long: its jobs stop using the slots and fail.
    `close` does not close the store.
    """
