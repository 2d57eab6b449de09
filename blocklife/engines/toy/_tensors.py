"""The memory of a worker in tensors, on the CPU or on a CUDA device, and the copier between its two ends.

Rules of this file:

* One code path: what runs on a GPU has been tested on CPU tensors. The kind of device decides which words are said about it
  and whether host memory is pinned, and nothing else.
* Bytes are compared where they lie. What comes back from a device are the positions of what is wrong, and nothing else.
* torch is imported here, and by nobody else in the engine: whoever needs tensors imports this file when he needs them.

Theory. The content is that of `memory`, bit for bit, in int64: torch has no arithmetic for uint64, and an xor needs no sign.
All work is queued on the current stream of the calling thread, which is what "computed" means to the copier.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch._streams import DeviceLostError
from blocklife.engines.toy._memory import WORD_BYTES, Ids, Words, constants
from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger.records import Worker

SLAB = 1 << 20
"""Words that are checked or written at once: bounds the scratch memory, and is enough to keep a device busy."""

ROOM = 0.9
"""The share of a device's free memory that blocks may take; the rest is for scratch, and for what torch keeps."""


class TensorDevice:
    """Where the blocks of all workers of a run lie."""

    def __init__(self, copier: str) -> None:
        """*copier* is ``torch`` or ``cuda``. Refuses: MisuseError where there is no such device, or it cannot compute."""
        self.inner = _current_gpu() if copier == "cuda" else torch.device("cpu")

    @property
    def name(self) -> str:
        """What a report calls the copier of this device."""
        if self.inner.type == "cpu":
            return "torch on cpu"
        return f"{self.inner.type}: {torch.cuda.get_device_name(self.inner)}"

    def room(self) -> int | None:
        """Bytes that blocks may take there now; None where host memory is all there is."""
        if self.inner.type == "cpu":
            return None
        free, _ = torch.cuda.mem_get_info(self.inner)
        kept = torch.cuda.memory_reserved(self.inner) - torch.cuda.memory_allocated(self.inner)  # by torch, for whoever asks
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
        """The memory of one worker, the copier between its ends, and who orders its copies; all groups share the blocks.

        Close the copier, then the memory. Refuses: CapacityError as `TensorMemory` does, DeviceLostError where the device
        answers with an error; nothing is held then.
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
        """For a run: the host computes on one thread. A step's pieces are small, and waiting threads slow everybody down."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _current_gpu() -> torch.device:
    with warnings.catch_warnings(record=True) as told:  # why there is none is said once, in our words
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
    """The device and the host memory of one worker: rows of words, one row a block or host place.

    Close it after its copier.
    """

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
        """Take the memory; *progress* hears the bytes of host memory that are ready, and all of them.

        Refuses: CapacityError where either end does not fit.
        """
        words = block_bytes // WORD_BYTES
        self.words = words
        try:
            self.device = torch.zeros((num_blocks, words), dtype=torch.int64, device=device)
        except RuntimeError as problem:
            raise CapacityError(
                f"{num_blocks:,} blocks of {block_bytes:,} bytes do not fit on {device}: {_first_line(problem)} (ask for fewer)"
            ) from problem
        self.pages = HostMemory([block_bytes], num_places, pinned=device.type == "cuda", progress=progress)
        self.host = self.pages.region(0).view(torch.int64)
        self._constants = {each: _tensor(constants(words, worker), each) for each in (self.device.device, self.host.device)}
        self._columns = torch.arange(words, device=device)

    def write(self, blocks: Ids, fingerprints: Words, start: Ids, stop: Ids) -> None:
        """The forward pass: write words ``start`` to ``stop`` of each block. Blocks are distinct."""
        whole = (start == 0) & (stop == self.words)
        part = ~whole
        with _answering():
            self._write(blocks[whole], fingerprints[whole])
            self._write(blocks[part], fingerprints[part], start[part], stop[part])

    def corrupt(self, blocks: Ids, fingerprints: Words) -> Ids:
        """Positions of those whole blocks whose bytes are not what they should be."""
        with _answering():
            return self._differing(self.device, blocks, fingerprints)

    def corrupt_parts(self, blocks: Ids, fingerprints: Words, words: Ids) -> Ids:
        """The same for blocks of which only the first ``words`` are written."""
        with _answering():
            return self._differing(self.device, blocks, fingerprints, words)

    def corrupt_places(self, places: Ids, fingerprints: Words) -> Ids:
        """Positions of those host places whose bytes are not what they should be."""
        return self._differing(self.host, places, fingerprints)

    def close(self) -> None:
        """Give both ends back. Needs: no copy touches them any more, and the copier is closed. A second call does nothing.

        The device's memory goes at once. That of the host is unpinned; it goes with the last tensor of it, the copier's too.
        """
        with contextlib.suppress(RuntimeError):  # numpy looks at it, or the device is lost
            self.device.untyped_storage().resize_(0)
        self.device, self.host = (torch.empty((0, self.words), dtype=torch.int64) for _ in range(2))
        self.pages.close()

    def _write(self, blocks: Ids, fingerprints: Words, start: Ids | None = None, stop: Ids | None = None) -> None:
        """Whole blocks, or of each only the words from ``start`` to ``stop``."""
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
        """Positions of those places that differ, in their first *words* if that is given."""
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
            wrong[piece] = differs.view(torch.uint8).amax(dim=1)  # what `any` says, many times faster on a processor
        found: Ids = wrong.nonzero().flatten().cpu().numpy()
        return found

    def _slabs(self, count: int) -> Iterator[slice]:
        step = max(1, SLAB // self.words)
        return (slice(begin, begin + step) for begin in range(0, count, step))


class TorchOrdering:
    """Tells a torch copier where the engine stands; what the device says against it ends the run in one sentence."""

    def __init__(self, copier: TorchCopier) -> None:
        self._copier = copier
        self.computed()

    def before_forward(self, blocks: Ids) -> None:
        """The forward pass runs after the loads into these blocks; other copies go on beside it."""
        with _answering():
            self._copier.before_forward(blocks=blocks)

    def computed(self) -> None:
        """What is launched from now on runs after what the calling thread has queued."""
        with _answering():
            self._copier.computed()

    def busy(self) -> bool:
        """Whether a copy may still be under way."""
        return self._copier.busy()


def _tensor(values: NDArray[np.int64] | Words, device: torch.device) -> torch.Tensor:
    """The same bits on a device; the array stays the caller's."""
    return torch.tensor(values.view(np.int64), device=device)


def _column(values: NDArray[np.int64] | Words, device: torch.device) -> torch.Tensor:
    """One a row."""
    return _tensor(values, device)[:, None]


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """torch raises RuntimeError for whatever a device answers."""
    try:
        yield
    except RuntimeError as problem:
        raise DeviceLostError(f"the device answers with an error: {_first_line(problem)} (see blocklife doctor)") from problem


def _first_line(problem: object) -> str:
    return (str(problem).splitlines() or ["no message"])[0]
