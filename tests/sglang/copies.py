"""The copies between device and host memory, late, and a twin of each memory that says what they must find.

The twin of a buffer is changed when something is launched, in the order in which the scheduler asks for it; the buffer itself
when it lands. So a copy that reads something else than its twin did has overtaken what it should have waited for, or something
has overtaken it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from random import Random

import torch
from attrs import define, field, frozen

from tests.sglang.device import Device, Module, current

Rows = Callable[[torch.Tensor], torch.Tensor]


@frozen
class Corruption:
    """Bytes that somebody read and that were not those of the text."""

    step: int
    rank: int
    reader: str
    """A request, or the direction of a copy."""
    what: str
    position: int
    """Where the first wrong token is: in the text of a request, in the list of a copy."""
    count: int

    def __str__(self) -> str:
        return (
            f"step {self.step}, rank {self.rank}: {self.reader} reads {self.count} wrong of {self.what}, first {self.position}"
        )


@define
class Witness:
    """What all readers of a rig have seen."""

    step: int = 0
    verified: int = 0
    """Rows of one layer whose bytes were compared."""
    corruptions: list[Corruption] = field(factory=list)
    """Each once: who reads the same wrong bytes again says nothing new."""
    _told: set[tuple[int, str, str, int]] = field(factory=set)

    def compare(self, rank: int, reader: str, what: str, got: torch.Tensor, want: torch.Tensor) -> None:
        """Note what differs, row by row."""
        self.verified += len(want)
        if torch.equal(got, want):
            return
        wrong = (got != want).reshape(len(want), -1).any(1).nonzero().flatten().tolist()
        fact = (rank, reader, what, wrong[0])
        if reader.startswith("a copy") or fact not in self._told:
            self._told.add(fact)
            self.corruptions.append(Corruption(self.step, rank, reader, what, wrong[0], len(wrong)))


class Twins:
    """For each storage one of the same size."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same view of the twin; a buffer that is seen for the first time is taken to hold what it should."""
        storage = tensor.untyped_storage()
        known = self._known.get(storage.data_ptr())
        if known is None:
            bytes_ = torch.empty(0, dtype=torch.uint8).set_(storage)
            known = self._known[storage.data_ptr()] = (bytes_, bytes_.clone())
        view = torch.empty(0, dtype=tensor.dtype)
        view.set_(known[1].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        return view


@define(eq=False)
class Move:
    """Rows of one buffer that go to another."""

    source: torch.Tensor
    target: torch.Tensor
    read: Rows
    """The rows of a buffer shaped like the source."""
    write: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
    """Put values (last) of the rows that are chosen (second) into a buffer shaped like the target (first)."""
    held: Rows
    """The rows that are written, of a buffer shaped like the target."""


@define(eq=False)
class Copy:
    """One copy on its way."""

    direction: str
    moves: list[Move]
    rows: int
    stream: object
    sources: list[int]
    targets: list[int]


class Copies:
    """The copies of one rank."""

    def __init__(self, device: Device, witness: Witness, rank: int, rng: Random) -> None:
        self.device = device
        self.witness = witness
        self.rank = rank
        self.twins = Twins()
        self.moved = {"to host": 0, "to device": 0, "from storage": 0}
        """Rows of a layer that have landed; tokens that came from storage."""
        self.states = {"to host": 0, "to device": 0, "on the device": 0}
        """The same of states, which are not counted there; on the device all layers of a state count once."""
        self.tamper: Callable[[Copy], bool] | None = None
        """Called with each copy before it is queued, for tests that plant a wrong one; True: the copy is lost."""
        self._rng = rng
        self._device_storages: set[int] = set()
        self._halved: set[int] = set()
        device.copies = self

    def own(self, *buffers: torch.Tensor) -> None:
        """These are the device's."""
        self._device_storages.update(each.untyped_storage().data_ptr() for each in buffers)

    def halve(self, *buffers: torch.Tensor) -> None:
        """A row of these moves in two halves, some rows the first half first."""
        self._halved.update(each.untyped_storage().data_ptr() for each in buffers)

    def is_halved(self, move: Move) -> bool:
        """Whether a move does so."""
        return any(each.untyped_storage().data_ptr() in self._halved for each in (move.source, move.target))

    def is_device(self, buffer: torch.Tensor) -> bool:
        """Whether a buffer is the device's."""
        return buffer.untyped_storage().data_ptr() in self._device_storages

    def launch(self, direction: str, moves: list[Move], sources: list[int], targets: list[int]) -> None:
        """Queue a copy on the current stream: two operations for its two halves."""
        copy = Copy(direction, moves, len(sources), Module.current_stream(), sources, targets)
        lost = self.tamper is not None and self.tamper(copy)
        wanted = []
        every = torch.ones(copy.rows, dtype=torch.bool)
        for move in moves:
            values = move.read(self.twins.of(move.source)).clone()
            move.write(self.twins.of(move.target), every, values)
            wanted.append(values)
        if lost:
            return
        early = torch.tensor([self._rng.random() < 0.5 for _ in range(copy.rows)], dtype=torch.bool)
        stream = Module.current_stream()
        land = self._move_halves if self.is_halved(moves[0]) else self._move
        stream.put(lambda: land(copy, early, wanted))
        stream.put(lambda: land(copy, ~early, wanted))

    def _move(self, copy: Copy, rows: torch.Tensor, wanted: Sequence[torch.Tensor]) -> None:
        for move, want in zip(copy.moves, wanted, strict=True):
            values = move.read(move.source)
            self.witness.compare(self.rank, f"a copy {copy.direction}", "its rows", values[rows], want[rows])
            move.write(move.target, rows, values)
        self.moved[copy.direction] += int(rows.sum()) * len(copy.moves)

    def _move_halves(self, copy: Copy, rows: torch.Tensor, wanted: Sequence[torch.Tensor]) -> None:
        """Of each row one half: the first of these, the second of the others."""
        every = torch.ones(copy.rows, dtype=torch.bool)
        for move, want in zip(copy.moves, wanted, strict=True):
            values = move.read(move.source)
            first = torch.arange(values[0].numel()) < values[0].numel() // 2
            chosen = (first == rows[:, None]).reshape(values.shape)
            self.witness.compare(self.rank, f"a copy {copy.direction}", "its states", torch.where(chosen, values, want), want)
            move.write(move.target, every, torch.where(chosen, values, move.held(move.target)))
        self.states[copy.direction] += int(rows.sum()) * len(copy.moves)


def _of_here() -> Copies:
    found = current().copies
    assert isinstance(found, Copies)
    return found


def _rows(source: torch.Tensor, target: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> Move:
    """Rows of one layer to rows of one layer."""

    def write(into: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
        into[dst[rows]] = values[rows]

    return Move(source, target, lambda of: of[src], write, lambda of: of[dst])


def _launched(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], src: torch.Tensor, dst: torch.Tensor) -> None:
    src, dst = src.clone(), dst.clone()
    if len(src) != len(dst):
        raise ValueError(f"a copy from {len(src)} rows to {len(dst)}")
    copies = _of_here()
    moves = [_rows(source, target, src, dst) for source, target in zip(sources, targets, strict=True)]
    direction = "to host" if copies.is_device(sources[0]) else "to device"
    copies.launch(direction, moves, src.tolist(), dst.tolist())


def transfer_kv_direct(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """The copy of SGLang's kernels for memory that is kept layer by layer on both sides."""
    _launched(src_layers, dst_layers, src_indices, dst_indices)


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """The copy to host memory that is kept page by page, all layers of a page together: first all keys, then all values."""
    src, dst, layers = src_indices.clone(), dst_indices.clone(), len(src_ptrs) // len(dst_ptrs)

    def move(source: torch.Tensor, target: torch.Tensor, layer: int) -> Move:
        def write(into: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
            at = dst[rows]
            into[at // page_size, layer, at % page_size] = values[rows].reshape(len(at), *into.shape[3:])

        def held(of: torch.Tensor) -> torch.Tensor:
            return of[dst // page_size, layer, dst % page_size].reshape(len(dst), *source.shape[1:])

        return Move(source, target, lambda of: of[src], write, held)

    moves = [move(source, dst_ptrs[at // layers], at % layers) for at, source in enumerate(src_ptrs)]
    _of_here().launch("to host", moves, src.tolist(), dst.tolist())


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """The copy of one layer from there."""
    src, dst = src_indices.clone(), dst_indices.clone()

    def move(source: torch.Tensor, target: torch.Tensor) -> Move:
        def write(into: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
            into[dst[rows]] = values[rows].reshape(int(rows.sum()), *into.shape[1:])

        def read(of: torch.Tensor) -> torch.Tensor:
            return of[src // page_size, layer_id, src % page_size].reshape(len(src), *target.shape[1:])

        return Move(source, target, read, write, lambda of: of[dst])

    moves = [move(source, target) for source, target in zip(src_ptrs, dst_ptrs, strict=True)]
    _of_here().launch("to device", moves, src.tolist(), dst.tolist())


KERNELS = (transfer_kv_direct, transfer_kv_all_layer_direct_lf_pf, transfer_kv_per_layer_direct_pf_lf)


def installed() -> list[str]:
    """Put the late device and its copies where SGLang looks for them, in all of its modules that are loaded. Returns which."""
    put = []
    for name, module in list(sys.modules.items()):
        if not name.startswith("sglang."):
            continue
        if hasattr(module, "device_module"):
            module.device_module = Module  # type: ignore[attr-defined]
            put.append(name)
        if name.startswith("sglang.srt.mem_cache") and (hasattr(module, "device_module") or "host" in name):
            for kernel in KERNELS:
                setattr(module, kernel.__name__, kernel)
            put.append(name)
    return put
