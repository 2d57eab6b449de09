"""What every copier promises: it moves bytes, says when they arrived, and can prove that they lie still.

*Rules.* A copier never calls the ledger and knows no lifecycle: it reports, somebody else decides. Trouble in a copy becomes a
result, never an exception in the engine's loop; `MisuseError` is for calls that no copier could honour. One thread calls a
copier, the one that runs its worker's share.

*Order.* Jobs of one direction run in the order in which they were launched. Nothing is promised between the directions, and
nothing about the order of completions: whoever reads them must cope with late, repeated, reordered and missing ones.

*Quiet and reported are two things.* A job is **quiet** when no byte of it is read or written any more; it is **reported** when
its completion came out of `poll`. Reported implies quiet; quiet implies nothing. Memory safety asks for the first only, which
is why there is one method for it and why that method returns no verdict. There is no separate `quiesce`: a wait that could
end while a job still moves would prove nothing, so `wait` is the proof, always.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from blocklife.ledger.records import Completion, JobId, Transfer, Worker


class Copier(Protocol):
    """Moves the bytes of one worker's share of every job."""

    @property
    def worker(self) -> Worker:
        """The rank whose share is moved here; it signs every completion."""
        ...

    def launch(self, transfer: Transfer) -> None:
        """Queue a transfer behind those of its direction; returns before its bytes have moved.

        Holds: sources may be read and targets written from now until the job is quiet.
        Needs: the sources' content is final for whatever order the copier keeps (a stream, an event, the calling thread).
        Refuses: MisuseError after `close`, and for a job that is still out; nothing has changed then.
        Next: `poll` until its completion comes, or `wait`.
        """
        ...

    def poll(self) -> list[Completion]:
        """Report the jobs that ended since the last poll, good and failed; never raises because of a copy.

        May go on after `close`, to collect what the drain ended.
        """
        ...

    def wait(self, jobs: Collection[JobId]) -> None:
        """Block the host until these jobs are quiet, and prove it by returning.

        Jobs that were launched run to their end. One that hangs is aborted: what it has not moved it never will, and its
        result is FAILED or never comes. Completions are left to later polls. Unknown jobs, and jobs that are quiet already,
        are not waited for.
        """
        ...

    def busy(self) -> bool:
        """Whether further polls, without further launches, may still report something.

        A hung job is not busy: nobody should tick for it. Its places are not safe for that; `wait` makes them so.
        """
        ...

    def close(self) -> None:
        """Drain: every job out becomes quiet, then threads, streams and buffers go. A second call does nothing."""
        ...
