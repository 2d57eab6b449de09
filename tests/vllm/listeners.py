"""What tests of KV cache events share: engines that send them, and a listener that knows only what it was told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import define, field
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored

from tests.vllm.connector_rig import ConnectorRig, configured

DESCRIBING = {"self_describing_kv_events": True}
"""The connector's option."""


def send_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are made from now on send events."""
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    configured(monkeypatch, lambda config: setattr(config, "kv_events_config", events))


@define
class Listener:
    """A router: which hashes of one tier it was told of by group, as often as it was, and each event in order."""

    events: list[BlockStored | BlockRemoved] = field(factory=list)

    @property
    def stored(self) -> list[BlockStored]:
        """Content that became readable."""
        return [event for event in self.events if isinstance(event, BlockStored)]

    @property
    def removed(self) -> list[BlockRemoved]:
        """Content that is gone."""
        return [event for event in self.events if isinstance(event, BlockRemoved)]

    @property
    def described(self) -> list[BlockStored]:
        """Content that was told with its tokens."""
        return [event for event in self.stored if event.token_ids]

    @property
    def placeholders(self) -> list[BlockStored]:
        """Content that was told without."""
        return [event for event in self.stored if not event.token_ids]

    def readable(self) -> dict[tuple[int, tuple[bytes, ...]], int]:
        """Content that was told as stored and not as removed since, by group and hashes.

        An event is one chunk where its group is described; elsewhere each of its hashes is one.
        """
        found: dict[tuple[int, tuple[bytes, ...]], int] = {}
        by_chunk = {event.group_idx for event in self.described}
        for event in self.events:
            hashes = tuple(event.block_hashes)
            for chunk in [hashes] if event.group_idx in by_chunk else [(each,) for each in hashes]:
                name = event.group_idx, chunk
                found[name] = found.get(name, 0) + (1 if isinstance(event, BlockStored) else -1)
        return {name: count for name, count in found.items() if count}


def listen(rig: ConnectorRig, medium: str = MEDIUM_CPU) -> Listener:
    """Hear all that a rig's connector tells of a tier."""
    found = Listener()
    connector = rig.scheduler.connector
    take = connector.take_events

    def keep() -> Sequence[BlockStored | BlockRemoved]:
        told = list(take())
        found.events += [event for event in told if event.medium == medium]
        return told

    connector.take_events = keep
    return found
