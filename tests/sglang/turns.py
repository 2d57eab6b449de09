"""SGLang's storage works in turns: its threads do what was asked of them when the rig says so, and the rig waits for them.

The threads are SGLang's own, and so is what they do. Without turns it would depend on the machine how much of it a step sees,
and two runs of one seed would differ in what comes from storage, and in all that follows from that.
"""

from __future__ import annotations

import threading
from queue import Empty, Queue
from threading import Event, Thread
from typing import cast

from tests.programs import HANGS_S

ORDER = ("backup_queue", "prefetch_queue", "prefetch_buffer", "prefetch_sync_queue")
"""What the controller calls the queues at which its threads wait; a job makes others only for queues behind its own."""
LOOK_S = 0.05
"""How often is looked for what nobody tells: by a thread, whether it is to end; by the rig, whether a thread has died."""


class JobQueue(Queue[object]):
    """In the place of SGLang's queues. Who waits at one with a limit is a thread of the storage: it gets a job in its turn.

    One job is in hand at a time, until its thread asks for the next. The scheduler asks for what is there, and has no limit.
    """

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._has_turn = False
        self._worker: Thread | None = None
        """Who has a job in hand, or died of it."""
        self._until: Event | None = None
        """What the worker waits for in the midst of its job."""

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        """The next job, or None, which needs no turn: it wakes up a thread that is to end."""
        if timeout is None:
            return super().get(block)
        me = threading.current_thread()
        with self.mutex:
            if self._worker is me:
                self._worker = self._until = None
                self.all_tasks_done.notify_all()
            if not self.not_empty.wait_for(self._gives, min(timeout, LOOK_S)):
                raise Empty
            job: object = self._get()
            if job is not None:
                self._worker, _HERE.queue = me, self
            return job

    def turn(self) -> None:
        """Let all its jobs be done, and wait until it has come to rest."""
        with self.mutex:
            self._has_turn = True
            self.not_empty.notify_all()
            while not self._rests:
                self.all_tasks_done.wait(LOOK_S)
            self._has_turn = False

    def step_aside(self, until: Event) -> None:
        """For the thread that has a job in hand: wait for this, without a turn."""
        with self.mutex:
            self._until = until
            self.all_tasks_done.notify_all()
        until.wait(HANGS_S)

    def _gives(self) -> bool:
        return self._qsize() > 0 and (self.queue[0] is None or (self._has_turn and not self._is_in_hand))

    @property
    def _is_in_hand(self) -> bool:
        return self._worker is not None and self._worker.is_alive()

    @property
    def _rests(self) -> bool:
        """Whether nothing is done here any more: no job is left, or its thread has stepped aside or died."""
        if self._is_in_hand:
            return self._until is not None and not self._until.is_set()
        return self._worker is not None or not self._qsize()


_HERE = threading.local()


def step_aside(until: Event) -> None:
    """In a thread of the storage, in the midst of its job: wait for this. Until then the rig does not wait for the thread."""
    cast("JobQueue", _HERE.queue).step_aside(until)


def come_to_rest(controller: object) -> None:
    """Let the storage do all that was asked of it, one kind of job after the other."""
    for name in ORDER:
        queue: JobQueue | None = getattr(controller, name, None)
        if queue is not None:
            queue.turn()


def installed() -> None:
    """Put the queue where SGLang looks for it."""
    from sglang.srt.managers import cache_controller

    cache_controller.Queue = JobQueue
