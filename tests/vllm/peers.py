"""Two engines that are each other's tier below the host: vLLM's P2P tier, with a wire that lies within the process.

What is real: the tiering manager, the primary tier in shared memory, the P2P tier with its sessions and its messages, and
the look-ups that one engine answers for the other. What is not: NIXL and ZMQ. A message arrives when the other side next
polls, and blocks are written when the seed says so, half of them early, straight into the other engine's host memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from attrs import define, evolve, field
from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager
from vllm.v1.kv_offload.tiering.p2p import manager as p2p
from vllm.v1.kv_offload.tiering.p2p.control.base import ControlConnection, ControlTransport
from vllm.v1.kv_offload.tiering.p2p.data.base import CancelMode, DataTransport, PollResult

from tests.vllm.device import Words
from tests.vllm.disk import host_rows
from tests.vllm.rig import Rig
from tests.vllm.worlds import Lag, WorldSpec

PORTS = {"a": 1, "b": 2}


@define(eq=False)
class Wire:
    """What lies between the engines."""

    rng: Random
    lag: Lag
    faults: float
    step: int = 0
    controls: dict[str, Control] = field(factory=dict)
    memories: dict[bytes, Loopback] = field(factory=dict)


class Line(ControlConnection):  # type: ignore[misc]  # vLLM is not there where this is checked
    """One end of a connection."""

    def __init__(self, peer_id: str) -> None:
        super().__init__(peer_id)
        self.inbox: list[dict[str, object]] = []
        self.other: Line | None = None
        self._is_alive = True

    @property
    def alive(self) -> bool:
        """Whether it was neither closed nor lost."""
        return self._is_alive

    def send(self, msg: dict[str, object]) -> None:
        """To the other end, unless that is gone."""
        if not self._is_alive:
            raise ConnectionError(self.peer_id)
        if self.other is not None:
            self.other.inbox.append(deepcopy(msg))

    def recv(self) -> Sequence[dict[str, object]]:
        """What has arrived."""
        found, self.inbox = self.inbox, []
        return found

    def mark_dead(self) -> None:
        """The peer is gone."""
        self._is_alive = False

    def close(self) -> None:
        """This end is gone."""
        self._is_alive = False


class Control(ControlTransport):  # type: ignore[misc]  # vLLM is not there where this is checked
    """In the place of ZMQ."""

    def __init__(self, wire: Wire, local_id: str) -> None:
        self._wire, self._local_id = wire, local_id
        self._arrived: list[Line] = []
        wire.controls[local_id] = self

    def connect(self, peer_id: str) -> Line:
        """A line to a peer, which hears of it when it polls. If both connect at once that is one line, as with ZMQ."""
        come = next((line for line in self._arrived if line.peer_id == peer_id and line.alive), None)
        if come is not None:
            self._arrived.remove(come)
            return come
        ours, theirs = Line(peer_id), Line(self._local_id)
        ours.other, theirs.other = theirs, ours
        self._wire.controls[peer_id]._arrived.append(theirs)
        return ours

    def poll(self) -> Sequence[Line]:
        """The lines of others that have come since."""
        found, self._arrived = self._arrived, []
        return found

    def close(self) -> None:
        """Nobody reaches it any more."""
        self._wire.controls.pop(self._local_id, None)


@define(eq=False)
class Writing:
    """Blocks on their way."""

    peer: str
    moves: list[tuple[int, int]]
    due: int


class Loopback(DataTransport):  # type: ignore[misc]  # vLLM is not there where this is checked
    """In the place of NIXL."""

    def __init__(self, wire: Wire, agent_name: str, view: memoryview, config_fields: dict[str, object] | None) -> None:
        super().__init__(view, config_fields)
        self.rows = np.frombuffer(view, np.uint8).reshape(view.shape)
        self._wire = wire
        self._metadata = agent_name.encode()
        self._peers: dict[str, Loopback] = {}
        self._out: dict[int, Writing] = {}
        self._number = 0
        self.written = self.failed = 0
        """Blocks that have arrived, and transfers that have not."""
        wire.memories[self._metadata] = self

    def get_agent_metadata(self) -> bytes:
        """By which the other side finds this memory."""
        return self._metadata

    def add_remote_peer(self, peer_id: str, agent_metadata: bytes, base_addr: int, num_blocks: int, block_len: int) -> None:
        """The memory of a peer can be written from now on."""
        self._peers[peer_id] = peer = self._wire.memories[agent_metadata]
        assert (base_addr, num_blocks, block_len) == (peer.base_addr, peer.num_blocks, peer.block_len)

    def remove_remote_peer(self, peer_id: str) -> None:
        """And no longer."""
        self._peers.pop(peer_id, None)

    def write_blocks(self, peer_id: str, local_idxs: list[int], remote_idxs: list[int]) -> int | None:
        """Begin to write blocks: half of them move now."""
        if peer_id not in self._peers:
            return None
        moves = list(zip(local_idxs, remote_idxs, strict=True))
        due = self._wire.step + self._wire.rng.randint(self._wire.lag.shortest, self._wire.lag.longest)
        self._number += 1
        self._out[self._number] = Writing(peer_id, moves, due)
        self._move(peer_id, moves[::2])
        return self._number

    def poll(self, peer_id: str | None = None) -> PollResult:
        """End what is due."""
        done, failed = list[int](), list[int]()
        for number, each in list(self._out.items()):
            if each.due > self._wire.step or peer_id not in (None, each.peer):
                continue
            del self._out[number]
            if self._wire.rng.random() < self._wire.faults:
                self.failed += 1
                failed.append(number)
            else:
                self._move(each.peer, each.moves[1::2])
                self.written += len(each.moves)
                done.append(number)
        return PollResult(done, failed)

    def cancel(self, transfer_ids: Iterable[int], mode: CancelMode = "immediate") -> list[int]:
        """Forget transfers, or say which are still out."""
        if mode == "wait":
            return [number for number in transfer_ids if number in self._out]
        for number in transfer_ids:
            self._out.pop(number, None)
        return []

    def close(self) -> None:
        """It is written by nobody any more."""
        self._out.clear()
        self._wire.memories.pop(self._metadata, None)
        del self.rows

    def _move(self, peer_id: str, moves: Iterable[tuple[int, int]]) -> None:
        target = self._peers[peer_id].rows
        for here, there in moves:
            target[there] = self.rows[here]


class Neighbour:
    """What a rig has below its host: the other engine."""

    threads = None

    def __init__(self, manager: TieringOffloadingManager) -> None:
        self.manager = manager
        (self.tier,) = manager.secondary_tiers
        self._is_open = True

    def host(self, rank: int, row_words: int) -> Words:
        """The part of the host's slots that belongs to one worker: a row for each."""
        return host_rows(self.manager, rank, row_words)

    def turn(self, step: int) -> None:
        """Nothing happens between two steps."""

    def close(self) -> None:
        """Shut the manager down."""
        if self._is_open:
            self._is_open = False
            self.manager.shutdown()


class PeerRig(Rig):
    """One of the two engines."""

    def __init__(self, spec: WorldSpec, seed: int, name: str) -> None:
        self.name = name
        self.other: str | None = None
        """Whose content the next requests look for."""
        tier = {"type": "p2p", "host": name, "port": PORTS[name]}
        more = {"secondary_tiers": [tier], "tier_poll_interval_s": 0.0}
        super().__init__(evolve(spec, below=Lag(), extra_config={**spec.extra_config, **more}), seed)

    def _disk(self, lag: Lag) -> Neighbour:  # type: ignore[override]
        below = Neighbour(self.scheduler.connector.connector_scheduler.manager)
        for rank in self.ranks:
            rank.memory.host = below.host(rank.number, rank.memory.row_words)
        return below

    @property
    def idle(self) -> bool:
        """Whether no request is left: vLLM keeps an engine with peers awake for ever."""
        return not self.scheduler.has_unfinished_requests() and not self._queue

    def tick(self) -> None:
        """One round of the engine's loop, also without requests: it serves its peer."""
        if self.scheduler.has_requests():
            self._update(*self._launch())

    def add(self, *given: Any, **more: Any) -> str:
        """Send a request; it may name the other engine as a place where its content may be."""
        if self.other is not None:
            source = {
                "kv_request_id": f"{self.name}-{len(self.texts)}",
                "remote_host": self.other,
                "remote_port": PORTS[self.other],
            }
            more["transfer"] = {"remote_kv_source": source}
        return super().add(*given, **more)


@contextmanager
def two_engines(spec: WorldSpec, seed: int, lag: Lag, faults: float = 0.0) -> Iterator[tuple[Wire, PeerRig, PeerRig]]:
    """Two engines of one world, each the other's peer."""
    wire = Wire(Random(f"{seed}/wire"), lag, faults)

    def nixl(name: str, view: memoryview, config_fields: dict[str, object] | None = None, **more: object) -> Loopback:
        return Loopback(wire, name, view, config_fields)

    with (
        patch.object(p2p, "NixlTransport", nixl),
        patch.object(p2p, "ZmqTransport", lambda local_id, host, port: Control(wire, local_id)),
    ):
        rigs = [PeerRig(spec, seed, name) for name in PORTS]
    try:
        yield wire, rigs[0], rigs[1]
    finally:
        for rig in rigs:
            rig.close()
