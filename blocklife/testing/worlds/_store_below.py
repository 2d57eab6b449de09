"""The store below the slots of a small engine: the names of its entries, and what must be true of their content.

Rules of this file:

* What the store has lies in the device (`_device.Worker.below`), one list of parts for each worker; here are only names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from blocklife.testing.worlds._cross_checks import BELOW, CoreValue
from blocklife.testing.worlds._device import Content, Device, FrozenDevice, said
from blocklife.testing.worlds._engine import Engine
from blocklife.testing.worlds._settings import WorldSettings
from blocklife.testing.worlds._tier import Entry, entries_of, space_after


class WorldStore:
    """The store of one world."""

    def __init__(self, settings: WorldSettings) -> None:
        geometry, faults = settings.engine.geometry, settings.faults
        named = [("x" * times).encode() for times in range(1, faults.renew + 1)]
        unnamed = [space_after(times) for times in range(1, faults.reset + faults.drain + 1)]
        self._settings = settings
        self._geometry = geometry
        self._weights: dict[bytes, str] = {space: space.decode() for space in (b"", *named)}
        if not faults.renew:
            self._weights |= dict.fromkeys(unnamed, "")
        texts = [script.text for script in settings.requests]
        self.entries = entries_of(geometry, texts, (b"", *named, *unnamed))
        """The number of each entry."""
        self.names: list[Entry] = list(self.entries)
        """The entries, by number."""
        self._contents = [self._content_of(entry) for entry in self.names]
        prompts = {script.text[: script.prompt].encode() for script in settings.requests}
        self._first = [
            space == b"" and any(prompt.startswith(key[len(f"{group}:") :]) for prompt in prompts)
            for space, group, key in self.names
        ]

    def _content_of(self, entry: Entry) -> tuple[Content, ...] | None:
        """What each part of an entry must hold; None if that depends on when it was put there."""
        space, group, key = entry
        if space not in self._weights:
            return None
        size, tokens = self._geometry.blocks_per_chunk, self._geometry.block_tokens[group]
        keys = [key[: len(key) - back * tokens] for back in reversed(range(size))]
        return tuple([Engine.content_of(each, self._weights[space]) for each in keys])

    def fill(self, device: Device) -> None:
        """Put there what another process has put, if there is one: all that the prompts need."""
        size = self._geometry.blocks_per_chunk
        for number, is_first in enumerate(self._first):
            if is_first and self._settings.engine.below_shared:
                for worker in device.workers:
                    worker.below[number * size : (number + 1) * size] = self._contents[number] or ()

    def parts(self, device: FrozenDevice, number: int) -> list[int]:
        """The workers whose part of an entry is there."""
        at = (number + 1) * self._geometry.blocks_per_chunk - 1
        return [rank for rank, worker in enumerate(device.workers) if worker.below[at] is not None]

    def has(self, device: FrozenDevice, number: int) -> bool:
        """Whether every worker's part of an entry is there."""
        return len(self.parts(device, number)) == len(device.workers)

    def has_more(self, device: FrozenDevice) -> bool:
        """Whether there is content that was not there from the beginning."""
        shared = self._settings.engine.below_shared
        return any(self.parts(device, number) for number, first in enumerate(self._first) if not (first and shared))

    def found(self, device: FrozenDevice, space: bytes) -> str:
        """Something that can be found in a space; empty if there is nothing."""
        entries = enumerate(self.names)
        return next((key.decode() for at, (there, _, key) in entries if there == space and self.has(device, at)), "")

    def wrong(
        self, core: CoreValue, device: FrozenDevice, agrees: Callable[[Content, Content], bool]
    ) -> Iterator[tuple[str, str]]:
        """What is there under the name of something else, or should be there and is not."""
        size = self._geometry.blocks_per_chunk
        for rank, worker in enumerate(device.workers):
            for number, wanted in enumerate(self._contents):
                found = worker.below[number * size : (number + 1) * size]
                for one, other in zip(found, wanted or (), strict=False):
                    if one is not None and not agrees(one, other):
                        yield BELOW, f"worker {rank}: the store below has {said(one)} under the name of {said(other)}"
        for space, group, key in core.asked:
            if (space, group, key) not in self.entries:
                yield BELOW, f"the store below is asked for {key.decode()}, and nobody puts that there"
        if core.rest_below is None or not self._settings.keeps_below:
            return
        space, contents = core.rest_below
        for group, key in contents:
            if not self.has(device, self.entries[space, group, key]):
                yield BELOW, f"{key.decode()} is in the host tier, and not in the store below although nothing is out"
