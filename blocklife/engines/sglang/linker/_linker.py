"""The class that SGLang makes on each rank: it translates SGLang's calls into those of `LinkedHost` and `Transport`.

Rules of this file:

* Nothing is decided here: what is legal, what is there and in which order it is acknowledged is in `_host`.
* SGLang calls everything from the thread of its scheduler, and so may these calls.

*A step of SGLang, as this file sees it.* `num_completed_offloads` comes first, once: reports are collected, and stores of the
step before begin. Then `lookup` for requests that may be admitted, `load` for those that are, and `start_layer_wise_loading`
when a batch was formed: the stream of its forward pass waits for the loads from there on. The forward pass is launched;
`finish_layer_wise_loading` follows. Last comes `offload` for what is in the tree now: it begins with the next step, before
another forward pass is launched.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinker

from blocklife.copiers import Copier
from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.engines.sglang.linker._config import LinkerConfig
from blocklife.engines.sglang.linker._device import DevicePages
from blocklife.engines.sglang.linker._host import LinkedHost, LinkerStatistics, limits_for
from blocklife.engines.sglang.linker._transport import LoadCounter, Transport, torch_copier
from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Limits, Result

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.hicache_storage import PoolTransfer
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

SAY_AGAIN_S = 60.0
"""Copies that fail one after another are logged once in so many seconds."""


class BlocklifeLinker(UnifiedCacheLinker):  # type: ignore[misc]  # SGLang has no types where it is not installed
    """Host memory for SGLang's tree, under blocklife's ledger."""

    def __init__(
        self,
        server_args: ServerArgs,
        params: CacheInitParams,
        *,
        components: Set[ComponentType],
        extra_config: Mapping[str, object] | None = None,
        forward_stream: object = None,
    ) -> None:
        config = self.config = LinkerConfig.read(extra_config or {})
        self.forward_stream = forward_stream
        self.pages = DevicePages(params, components)
        self.pools = {PoolName.KV: self.pages}
        cache = self.pages.cache
        limits = limits_for(cache.num_blocks, config.num_slots(self.pages.page_bytes))
        self.transport = Transport(  # before the ledger: it refuses a size that this machine does not have
            cache,
            limits,
            sharers=_ranks_here(server_args),
            forward_stream=forward_stream if cache.device.type != "cpu" or self.has_streams else None,
            make_copier=self.make_copier,
            wrap=self.wrap_copier,
            load_parts=config.load_parts,
        )
        self.host = LinkedHost(limits, policy=config.policy, checking=config.checking, deadline=config.deadline_s)
        in_parts = config.load_parts > 1
        self.layer_done_counter = LoadCounter(self.pages.num_layers, self._before_layer if in_parts else None)
        self._closed = False
        self._num_untold = 0
        """Copies that have failed since the log has last said so."""
        self._told_at = -math.inf
        logger.info(
            "blocklife linker: %d pages of %d bytes in host memory, %d on the device",
            limits.num_slots,
            self.pages.page_bytes,
            cache.num_blocks - 1,
        )

    has_streams = False
    """Whether memory of the CPU has streams, as a rig for tests has."""

    def make_copier(self, cache: KvCache, memory: HostMemory, limits: Limits) -> TorchCopier:
        """The copier; a subclass may make another."""
        return torch_copier(cache, memory, limits, self.config.movers)

    def wrap_copier(self, copier: TorchCopier) -> Copier:
        """What launches copies; a subclass may put something around it."""
        return copier

    def now(self) -> float:
        """The time, in seconds; a subclass may count something else."""
        return time.monotonic()

    def statistics(self) -> LinkerStatistics:
        """Counts since the start."""
        return self.host.statistics()

    # --- SGLang's calls -----------------------------------------------------------------------------------------------------

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        """All numbers of pages, from the first on, that can be loaded: with full attention each number up to the most."""
        transfer = _pages_of(transfers)
        return [*range(1, self.host.lookup(rid, _keys(transfer.keys)) + 1)]

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        """Queue a load into pages of the request; False if it must compute them, because they are not there any more."""
        transfer = _pages_of(transfers)
        return self.host.load(rid, _keys(transfer.keys), self.pages.blocks(transfer.device_indices))

    def start_layer_wise_loading(self) -> int:
        """Launch the loads that are queued, and what else waits. Returns the number of the batch, -1 if it loads nothing."""
        batch = self.host.start_loads()
        self._launch()
        if batch >= 0:
            self.transport.before_forward(self.host.blocks_of(batch))
            self.layer_done_counter.set_consumer(batch)
        return batch

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Block until the loads of this batch are quiet. Whether all of them have arrived."""
        self.transport.wait(self.host.loading(counter_index))
        self._collect()
        return self.host.finish_loads(counter_index)

    def cancel_queued_load(self, rid: str) -> bool:
        """Give a load up that has not started."""
        return self.host.cancel(rid)

    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        """Take the pages of a node. True unless there are none: what comes of it is said in its turn."""
        transfer = _pages_of(transfers)
        if not transfer.keys:
            return False
        self.host.store(_keys(transfer.keys), self.pages.blocks(transfer.device_indices))
        return True

    def num_completed_offloads(self) -> int:
        """How many stores, in their order, have an outcome. SGLang asks at the start of each step, so a step begins here."""
        self.host.end_step()
        self._collect()
        self._launch()
        self._give_up_late()
        return self.host.num_acknowledged

    def pop_completed_offload(self) -> bool:
        """Take the outcome of the oldest store."""
        return self.host.acknowledge()

    def reset(self) -> None:
        """Wait for every copy, then forget everything."""
        jobs = self.host.out()
        self.transport.wait(jobs)
        self._collect()
        self.host.quiesce(self.host.out())
        self.host.reset()
        self.layer_done_counter.set_consumer(-1)

    def close(self) -> None:
        """The same, and give host memory back. A second call does nothing."""
        if self._closed:
            return
        self.reset()
        self._closed = True
        self.transport.close()
        logger.info("blocklife linker: %s", self.statistics())

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _before_layer(self, layer: int) -> None:
        self.transport.before_layer(self.pages.last_buffer(layer))

    def _launch(self) -> None:
        now = self.now()
        plan = self.host.dispatch(now)
        if plan is not None:
            launched, completions = self.transport.execute(plan)
            self.host.settle(plan, now, launched, completions)
            self._log_failed(completions)

    def _collect(self) -> None:
        completions = self.transport.poll()
        self.host.report(completions)
        self._log_failed(completions)

    def _log_failed(self, completions: Iterable[Completion]) -> None:
        """Log copies that have failed: the first at once, and what follows at most every so many seconds."""
        self._num_untold += sum(each.result is Result.FAILED for each in completions)
        if self._num_untold and time.monotonic() >= self._told_at + SAY_AGAIN_S:
            reason = self.transport.last_error or "without a reason"
            logger.warning("blocklife linker: copies that have failed: %d; the last one: %s", self._num_untold, reason)
            self._num_untold, self._told_at = 0, time.monotonic()

    def _give_up_late(self) -> None:
        """A copy past its deadline has failed, but SGLang may have its pages only when it is quiet: that is waited for."""
        late = self.host.expire(self.now())
        if late:
            logger.warning("blocklife linker: %d copies are past their deadline; waiting until they are quiet", len(late))
            self.transport.wait(late)
            self._collect()
            self.host.quiesce(late)


def _pages_of(transfers: Sequence[PoolTransfer]) -> PoolTransfer:
    """The transfer of a model's only kind of pages."""
    if [transfer.name for transfer in transfers] != [PoolName.KV]:
        names = ", ".join(str(transfer.name) for transfer in transfers)
        raise MisuseError(f"blocklife linker: SGLang moves {names or 'nothing'}, and only pages of full attention are known")
    return transfers[0]


def _ranks_here(server_args: ServerArgs) -> int:
    """How many ranks this machine has; each has a linker. Ranks of several engines of one server count, too."""
    counts = [getattr(server_args, name, 1) for name in ("tp_size", "dp_size", "nnodes")]
    tensor, data, nodes = (count if isinstance(count, int) else 1 for count in counts)
    if getattr(server_args, "enable_dp_attention", False):
        data = 1  # its ranks are those of tensor parallelism
    return max(1, tensor * data // nodes)


def _keys(hashes: Sequence[str]) -> list[bytes]:
    return [each.encode() for each in hashes]
