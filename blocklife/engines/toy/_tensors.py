"""The memory of a worker in tensors, on the CPU or on a CUDA device, and the copier between device and host.

Rules of this file:

* One code path: the code that runs on a GPU is tested on CPU tensors. The kind of device only decides the wording of messages
  and whether host memory is pinned.
* Bytes are compared on their device. Only the positions of wrong ones come back.
* Only this file of the engine imports torch, and it is imported only when tensors are used.

Theory. The content is that of `_memory`, bit for bit, in int64: torch has no arithmetic for uint64, and xor does not need it.
All work is queued on the current stream of the calling thread, which is what "computed" means to the copier.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from blocklife.copiers.torch import DeviceLostError, HostMemory, KvCache, TorchCopier
from blocklife.engines.toy._memory import WORD_BYTES, Bytes, Ids, Words, constants
from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger.records import Worker

SLAB = 1 << 20
"""Words checked or written at once: bounds the scratch memory, and is enough to keep a device busy."""

ROOM = 0.9
"""The share of a device's free memory that blocks may take; the rest is for scratch, and for what torch keeps."""


class TensorDevice:
    """The device that has the blocks of all workers of a run."""

    def __init__(self, copier: str) -> None:
        """*copier* is ``torch`` or ``cuda``. Refuses: MisuseError if there is no such device, or it does not work."""
        self.inner = _current_gpu() if copier == "cuda" else torch.device("cpu")

    @property
    def name(self) -> str:
        """The name of this device's copier in reports."""
        if self.inner.type == "cpu":
            return "torch on cpu"
        return f"{self.inner.type}: {torch.cuda.get_device_name(self.inner)}"

    def room(self) -> int | None:
        """Bytes that blocks may take on the device now; None for the CPU, which only has host memory."""
        if self.inner.type == "cpu":
            return None
        free, _ = torch.cuda.mem_get_info(self.inner)
        kept = torch.cuda.memory_reserved(self.inner) - torch.cuda.memory_allocated(self.inner)  # in torch's cache
        return int((free + kept) * ROOM)

    def ends(
        self,
        num_blocks: int,
        num_places: int,
        block_bytes: int,
        worker: Worker,
        *,
        num_groups: int,
        progress: Callable[[int, int], None],
    ) -> tuple[TensorMemory, TorchCopier, TorchOrdering]:
        """The memory of one worker, its copier, and the ordering of its copies; all groups share the blocks.

        Close the copier, then the memory. Refuses: CapacityError as `TensorMemory` does, DeviceLostError if the device returns
        an error; nothing is allocated then.
        """
        memory = TensorMemory(num_blocks, num_places, block_bytes, worker, device=self.inner, progress=progress)
        try:
            with _answering():
                copier = TorchCopier(KvCache([[memory.device]] * num_groups), memory.pages, worker=worker)
            return memory, copier, TorchOrdering(copier)
        except BaseException:
            memory.close()
            raise

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Let torch compute on one thread during a run: a step's tensors are small, and more threads would slow it down."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _current_gpu() -> torch.device:
    with warnings.catch_warnings(record=True) as told:  # torch's reason becomes part of our message
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        why = "torch is built without CUDA" if torch.version.cuda is None else "torch sees none"
        why += "".join(f": {_first_line(each.message)}" for each in told[:1])
        raise MisuseError(f"--copier cuda needs a GPU, and {why} (--copier torch needs none; blocklife doctor says more)")
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        torch.zeros(1, dtype=torch.int64, device=device).bitwise_xor_(1).cpu()
    except RuntimeError as problem:
        raise MisuseError(f"--copier cuda: the GPU does not work: {_first_line(problem)} (see blocklife doctor)") from problem
    return device


class TensorMemory:
    """A `WorkerMemory` in tensors. Close it after its copier."""

    def __init__(
        self,
        num_blocks: int,
        num_places: int,
        block_bytes: int,
        worker: int,
        *,
        device: torch.device,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """Allocate the memory; *progress* is called with the bytes of host memory that are ready, and the total.

        Refuses: CapacityError if either end does not fit.
        """
        words = block_bytes // WORD_BYTES
        self.words = words
        try:
            self.device = torch.zeros((num_blocks, words), dtype=torch.int64, device=device)
        except RuntimeError as problem:
            raise CapacityError(
                f"{num_blocks:,} blocks of {block_bytes:,} bytes do not fit on {device}: {_first_line(problem)} (ask for fewer)"
            ) from problem
        self.pages = HostMemory(block_bytes, num_places, pinned=device.type == "cuda", near=device, progress=progress)
        self.host = self.pages.rows.view(torch.int64)
        self._constants = {each: _tensor(constants(words, worker), each) for each in (self.device.device, self.host.device)}
        self._columns = torch.arange(words, device=device)

    def write(self, blocks: Ids, fingerprints: Words, start: Ids, stop: Ids) -> None:
        """As `WorkerMemory.write`."""
        whole = (start == 0) & (stop == self.words)
        part = ~whole
        with _answering():
            self._write(blocks[whole], fingerprints[whole])
            self._write(blocks[part], fingerprints[part], start[part], stop[part])

    def corrupt(self, blocks: Ids, fingerprints: Words, words: Ids | None = None) -> Ids:
        """As `WorkerMemory.corrupt`."""
        with _answering():
            return self._differing(self.device, blocks, fingerprints, words)

    def corrupt_places(self, places: Ids, fingerprints: Words) -> Ids:
        """As `WorkerMemory.corrupt_places`."""
        return self._differing(self.host, places, fingerprints)

    def slots(self, blocks_per_chunk: int) -> Bytes:
        """As `WorkerMemory.slots`."""
        found: Bytes = self.host.view(torch.uint8).numpy().reshape(-1, blocks_per_chunk * self.words * WORD_BYTES)
        return found

    def close(self) -> None:
        """Free both ends. Needs: no copy touches them any more, and the copier is closed. A second call does nothing.

        The device's memory is freed at once. That of the host is unpinned, and freed with its last tensor, the copier's too.
        """
        with contextlib.suppress(RuntimeError):  # a numpy array shares it, or the device is lost
            self.device.untyped_storage().resize_(0)
        self.device, self.host = (torch.empty((0, self.words), dtype=torch.int64) for _ in range(2))
        self.pages.close()

    def _write(self, blocks: Ids, fingerprints: Words, start: Ids | None = None, stop: Ids | None = None) -> None:
        """Write whole blocks, or only the words from *start* to *stop* of each."""
        if not len(blocks):
            return
        at = self.device.device
        ids, prints = _tensor(blocks, at), _column(fingerprints, at)
        bounds = None if start is None or stop is None else (_column(start, at), _column(stop, at))
        for piece in self._slabs(len(blocks)):
            rows = prints[piece] ^ self._constants[at]
            if bounds is not None:
                written = (self._columns >= bounds[0][piece]) & (self._columns < bounds[1][piece])
                rows = torch.where(written, rows, self.device.index_select(0, ids[piece]))
            self.device.index_copy_(0, ids[piece], rows)

    def _differing(self, memory: torch.Tensor, places: Ids, fingerprints: Words, words: Ids | None = None) -> Ids:
        """Positions of the places that differ, in their first *words* if that is given."""
        at = memory.device
        ids, prints = _tensor(places, at), _column(fingerprints, at)
        lengths = None if words is None else _column(words, at)
        wrong = torch.zeros(len(places), dtype=torch.uint8, device=at)
        for piece in self._slabs(len(places)):
            rows = memory.index_select(0, ids[piece])
            rows ^= self._constants[at]
            differs = rows != prints[piece]
            if lengths is not None:
                differs &= self._columns < lengths[piece]
            wrong[piece] = differs.view(torch.uint8).amax(dim=1)  # the same as `any`, many times faster on a CPU
        found: Ids = wrong.nonzero().flatten().cpu().numpy()
        return found

    def _slabs(self, count: int) -> Iterator[slice]:
        step = max(1, SLAB // self.words)
        return (slice(begin, begin + step) for begin in range(0, count, step))


class TorchOrdering:
    """Tells a torch copier what the engine has queued; an error of the device becomes a DeviceLostError."""

    def __init__(self, copier: TorchCopier) -> None:
        self._copier = copier
        self.computed()

    def before_forward(self, blocks: Ids) -> None:
        """Order the forward pass after the loads into these blocks; other copies run beside it."""
        with _answering():
            self._copier.before_forward(blocks=blocks)

    def computed(self) -> None:
        """Order copies launched from now on after the work that the calling thread has queued."""
        with _answering():
            self._copier.computed()

    def busy(self) -> bool:
        """Whether a copy may still be running."""
        return self._copier.busy()


def _tensor(values: NDArray[np.int64] | Words, device: torch.device) -> torch.Tensor:
    """The same bits as a new tensor on a device."""
    return torch.tensor(values.view(np.int64), device=device)


def _column(values: NDArray[np.int64] | Words, device: torch.device) -> torch.Tensor:
    """The same as a column."""
    return _tensor(values, device)[:, None]


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Turn a RuntimeError, which torch raises for any error of a device, into a DeviceLostError."""
    try:
        yield
    except RuntimeError as problem:
        raise DeviceLostError(f"the device returned an error: {_first_line(problem)} (see blocklife doctor)") from problem


def _first_line(problem: object) -> str:
    return (str(problem).splitlines() or ["no message"])[0]
