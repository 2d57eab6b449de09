"""What a copy, and the forward pass after it, must wait for; and the events that make them wait.

*Rules of this file.* The waits are data: the rows of `WAITS`. A mark belongs to a physical place, not to a life or a job: the
next user of the place finds it, whatever happened to the job (I2). An event is reused only when its point was passed and every
stream that was told to wait for it is known to be past that wait.

*Theory.* There are four uses of memory: the engine's computation, stores, loads, and large loads, behind which no other load
should have to wait. Each has a stream, large loads have several; one of them is a **channel**. The engine may have many
streams; one stream of ours follows them all, and stands for "computed" here. So the marks of one channel are passed in their
order, and of all marks at a job's places only the newest of each channel matters. A **mark** is a number that is never reused,
with an event as long as one may be needed. Each place keeps the number of its newest mark of each channel. A mark that is known
to be passed needs no wait, so places never have to be cleaned up.

The forward pass is ordered after a store that reads what it overwrites only where the engine asks for that, as the contracts of
the ledger do: a block is handed out again after the host has seen the store land (*hold*), or by a plan that asks (*fence*).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
from attrs import define, field, frozen

from blocklife.copiers.torch._driver import DeviceLostError
from blocklife.copiers.torch._streams import Stream, StreamDevice, StreamEvent
from blocklife.errors import MisuseError
from blocklife.ledger.records import Ids


class Use(enum.Enum):
    """What touches memory."""

    COMPUTE = "what the engine computes"
    STORE = "stores"
    LOAD = "loads"
    BULK = "large loads"


@frozen(eq=False)
class Channel:
    """One stream of a use."""

    use: Use
    name: str


NUM_BULK = 4
"""How many large loads take turns."""

COMPUTE = Channel(Use.COMPUTE, "compute")

COPYING = {
    Use.STORE: (Channel(Use.STORE, "store"),),
    Use.LOAD: (Channel(Use.LOAD, "load"),),
    Use.BULK: tuple(Channel(Use.BULK, f"bulk {number}") for number in range(NUM_BULK)),
}
"""The channels of the uses that are copies."""

CHANNELS = {Use.COMPUTE: (COMPUTE,), **COPYING}


class Side(enum.Enum):
    """Where a place is."""

    DEVICE = "block"
    HOST = "host place"


@frozen
class Wait:
    """One row: before *waiter* touches a place on *side*, everything that was queued there for *holder* has run."""

    waiter: Use
    holder: Use
    side: Side
    why: str
    on_demand: bool = False
    """Whether only copies that the engine names are waited for: the contracts keep the others apart."""


WAITS: tuple[Wait, ...] = (
    Wait(Use.STORE, Use.COMPUTE, Side.DEVICE, "the forward pass writes what the store reads"),
    Wait(Use.STORE, Use.LOAD, Side.DEVICE, "a load writes what the store reads"),
    Wait(Use.STORE, Use.LOAD, Side.HOST, "a load reads what the store overwrites"),
    Wait(Use.STORE, Use.BULK, Side.DEVICE, "a large load writes what the store reads"),
    Wait(Use.STORE, Use.BULK, Side.HOST, "a large load reads what the store overwrites"),
    Wait(Use.LOAD, Use.COMPUTE, Side.DEVICE, "a forward pass or a zero-fill touches what the load overwrites"),
    Wait(Use.LOAD, Use.STORE, Side.DEVICE, "a store reads what the load overwrites"),
    Wait(Use.LOAD, Use.STORE, Side.HOST, "a store writes what the load reads"),
    Wait(Use.LOAD, Use.BULK, Side.DEVICE, "a large load writes what the load overwrites"),
    Wait(Use.BULK, Use.COMPUTE, Side.DEVICE, "a forward pass or a zero-fill touches what the large load overwrites"),
    Wait(Use.BULK, Use.STORE, Side.DEVICE, "a store reads what the large load overwrites"),
    Wait(Use.BULK, Use.STORE, Side.HOST, "a store writes what the large load reads"),
    Wait(Use.BULK, Use.LOAD, Side.DEVICE, "a load writes what the large load overwrites"),
    Wait(Use.BULK, Use.BULK, Side.DEVICE, "another large load writes what the large load overwrites"),
    Wait(Use.COMPUTE, Use.LOAD, Side.DEVICE, "a load writes what the forward pass reads"),
    Wait(Use.COMPUTE, Use.BULK, Side.DEVICE, "a large load writes what the forward pass reads"),
    Wait(Use.COMPUTE, Use.STORE, Side.DEVICE, "a store reads what the forward pass overwrites", on_demand=True),
)
"""All waits. Two uses that only read need none, and neither do two jobs of one channel: their stream keeps them in order."""


@define(eq=False)
class StreamMark:
    """A point on the stream of one channel.

    Invariant: an event is freed only if the mark is passed, no stream waits for it, and it never returned an error. `event` is
    None from then on, and from the start if the device refused to record one. `error` is that error.
    """

    number: int
    event: StreamEvent | None
    error: str = ""
    passed: bool = False
    num_waiting: int = 0
    """Later marks whose streams were told to wait for this one, and are not known to be past it."""
    awaited: list[StreamMark] = field(factory=list)
    """What the stream was told to wait for between the previous mark and this one."""


class Order:
    """The marks of all places, and the pool of their events."""

    def __init__(self, device: StreamDevice, num_blocks: int, num_places: int) -> None:
        self._device = device
        self._free: list[StreamEvent] = []
        self._num_events = 0
        self._num_marks = 0
        # Invariant: `_marks[channel]` holds, in order, the marks that are not passed; `_passed[channel]` is the newest passed
        # one (0: none), and all older ones of the channel are passed, too. `_newest[channel]` is the newest of all.
        # `_owed[channel]` is what the stream was told to wait for since then. Initially there are no marks.
        channels = [channel for each in CHANNELS.values() for channel in each]
        self._marks: dict[Channel, dict[int, StreamMark]] = {channel: {} for channel in channels}
        self._passed = dict.fromkeys(channels, 0)
        self._newest = dict.fromkeys(channels, 0)
        self._owed: dict[Channel, list[StreamMark]] = {channel: [] for channel in channels}
        sizes = {Side.DEVICE: num_blocks, Side.HOST: num_places}
        self._at = {
            (channel, side): np.zeros(sizes[side], np.int64) for each in COPYING.values() for channel in each for side in Side
        }
        """The newest mark of each place; a mark of COMPUTE is for the whole device at once."""

    @property
    def num_events(self) -> int:
        """How many events were made so far."""
        return self._num_events

    def before(self, waiter: Channel, blocks: Ids | None, places: Ids | None, *, on_demand: bool = False) -> list[StreamEvent]:
        """The events that *waiter* must wait for at these places (None: at all), each once; *on_demand*: by all rows.

        The events are not reused until the next mark of *waiter* is passed. So tell the stream to wait before that mark.
        Raises DeviceLostError if the device gave no event for something that must be waited for.
        """
        ids = {Side.DEVICE: blocks, Side.HOST: places}
        needed: dict[int, StreamMark] = {}
        for wait in WAITS:
            if wait.waiter is waiter.use and (on_demand or not wait.on_demand):
                for holder in CHANNELS[wait.holder]:
                    if holder is waiter or self._newest[holder] <= self._passed[holder]:
                        continue
                    newest = self._newest_at(holder, wait.side, ids[wait.side])
                    if newest > self._passed[holder]:
                        mark = self._covering(wait, holder, newest)
                        needed[mark.number] = mark
        for mark in needed.values():
            mark.num_waiting += 1
        self._owed[waiter] += needed.values()
        return [mark.event for mark in needed.values() if mark.event is not None]

    def behind(self, waiter: Channel, holder: Channel, mark: StreamMark) -> list[StreamEvent]:
        """The event that *waiter* must wait for to be behind one mark of *holder* at its blocks; none if it was passed.

        As in `before`. Raises DeviceLostError if the device gave no event.
        """
        if mark.number <= self._passed[holder]:
            return []
        row = (waiter.use, holder.use, Side.DEVICE)
        wait = next(each for each in WAITS if (each.waiter, each.holder, each.side) == row)
        covering = self._covering(wait, holder, mark.number)
        covering.num_waiting += 1
        self._owed[waiter].append(covering)
        return [] if covering.event is None else [covering.event]

    def mark(
        self, channel: Channel, stream: Stream, blocks: Sequence[int] | Ids = (), places: Sequence[int] | Ids = ()
    ) -> StreamMark:
        """Mark the point that the stream of a channel has reached, at these places. Does not raise errors of the device."""
        self._num_marks += 1
        mark = StreamMark(self._num_marks, None, awaited=self._owed[channel])
        self._owed[channel] = []
        try:
            event = self._event()
            stream.record(event)
            mark.event = event
        except Exception as error:  # the places must be marked as busy all the same
            mark.error = repr(error)
        self._marks[channel][mark.number] = mark
        self._newest[channel] = mark.number
        if channel is not COMPUTE:
            for side, ids in ((Side.DEVICE, blocks), (Side.HOST, places)):
                self._at[channel, side][np.asarray(ids, np.int64)] = mark.number
        return mark

    def sweep(self, channel: Channel) -> None:
        """Query which marks of a channel are passed; one whose event returns an error is left for later."""
        for mark in [*self._marks[channel].values()]:
            try:
                if mark.event is not None and not mark.event.query():
                    return
            except Exception as error:  # a later mark may still show that this one is passed
                mark.error = repr(error)
                continue
            if mark.event is not None:
                self.passed(channel, mark)

    def passed(self, channel: Channel, mark: StreamMark) -> None:
        """Record that the stream of a channel has passed this mark, and with it all older ones."""
        marks = self._marks[channel]
        for number in [number for number in marks if number <= mark.number]:
            old = marks.pop(number)
            old.passed = True
            self._recycle(old)
            for awaited in old.awaited:
                awaited.num_waiting -= 1
                self._recycle(awaited)
            old.awaited = []
        self._passed[channel] = max(self._passed[channel], mark.number)

    def reset(self) -> None:
        """The device was proven quiet by other means: nothing is left to wait for, and no earlier event is used again."""
        for channel in self._marks:
            for mark in [*self._marks[channel].values(), *self._owed[channel]]:
                mark.passed, mark.event = True, None
            self._marks[channel], self._owed[channel] = {}, []
            self._passed[channel] = self._newest[channel]
        self._free = []

    def _newest_at(self, holder: Channel, side: Side, ids: Ids | None) -> int:
        if holder is COMPUTE or ids is None:
            return self._newest[holder]
        return int(self._at[holder, side][ids].max(initial=0))

    def _covering(self, wait: Wait, holder: Channel, number: int) -> StreamMark:
        """The oldest mark with an event that covers this one, too."""
        for mark in self._marks[holder].values():
            if mark.number >= number and mark.event is not None:
                return mark
        error = self._marks[holder][number].error
        raise DeviceLostError(f"{wait.why}, but the device gave no event to wait for: {error} (give the worker up)")

    def _event(self) -> StreamEvent:
        if self._free:
            return self._free.pop()
        event = self._device.event()
        self._num_events += 1
        return event

    def _recycle(self, mark: StreamMark) -> None:
        if mark.passed and mark.num_waiting == 0 and mark.event is not None:
            if not mark.error:
                self._free.append(mark.event)
            mark.event = None


def checked(blocks: Sequence[int] | Ids, num_blocks: int) -> Ids:
    """Blocks that the engine names, as an array. Refuses: MisuseError for one that does not exist."""
    ids = np.asarray(blocks, np.int64)
    wrong = (ids < 0) | (ids >= num_blocks)
    if wrong.any():
        raise MisuseError(f"block {int(ids[wrong][0])}: does not exist (there are {num_blocks})")
    return ids
