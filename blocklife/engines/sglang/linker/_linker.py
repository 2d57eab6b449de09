"""The class that SGLang makes on each rank: it translates SGLang's calls into those of `LinkedHost` and `Transport`.

Rules of this file:

* Nothing is decided here: what is legal, what is there and in which order it is acknowledged is in `_host`.
* SGLang calls everything from the thread of its scheduler, and so may these calls.
* Only a store below is waited for without need, and the lookups of a step together no longer than ``below_wait_s``.

*A step of SGLang, as this file sees it.* `num_completed_offloads` comes first, once: reports are collected, and stores that
were offered in the step before begin; where their pages are on the device, it is asked once for all of them. Then `lookup` for
requests that may be admitted, and `load` for those that are: the copies begin at once. `start_layer_wise_loading` comes when a
batch was formed: the stream of its forward pass waits for its loads from there on. The forward pass is launched;
`finish_layer_wise_loading` follows, and does not wait. Last comes `offload` for what is in the tree now.

*A load that is refused.* One that cannot be launched on some rank is refused on all, and SGLang computes its pages. One that
was launched arrives, or the device is lost; only a copier that may report a failure later is waited for, and what it then loses
costs all requests of the batch an error, for SGLang has one answer for a batch (`UnifiedCacheLinkerWrapper.finish_loads`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import torch
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinker

from blocklife.copiers import Copier
from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.engines.sglang.linker._below import RankStores, identities_of
from blocklife.engines.sglang.linker._device import memories_of
from blocklife.engines.sglang.linker._host import LinkedHost, LinkedPages, LinkerStatistics, OfMemories
from blocklife.engines.sglang.linker._memory import limits_for
from blocklife.engines.sglang.linker._starting import check, ranks_here
from blocklife.engines.sglang.linker._transport import LoadCounter, Transport, torch_copier
from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Limits, Result
from blocklife.offload import BelowStatistics

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.hicache_storage import PoolTransfer
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.server_args import ServerArgs
    from torch.distributed import ProcessGroup

logger = logging.getLogger(__name__)

PAUSE_S = 0.0005
"""How long a lookup sleeps before it looks again what has come from a store below."""
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
        config = self.config = check(server_args, extra_config or {})
        self.forward_stream = forward_stream
        self.pools = memories_of(params, components)
        self.pages = [*self.pools.values()]
        self._numbers = {name: number for number, name in enumerate(self.pools)}
        self._groups = _groups_of(params)
        slots = config.num_slots([(each.num_pages - 1, each.page_bytes) for each in self.pages])
        limits = [limits_for(each.num_pages, count) for each, count in zip(self.pages, slots, strict=True)]
        self._stores: RankStores | None = None
        self.transports: list[Transport] = []  # before the ledgers: they refuse sizes that this machine does not have
        all_bytes = [count * each.page_bytes for each, count in zip(self.pages, slots, strict=True)]
        try:
            for number in range(len(self.pages)):
                self.transports.append(self._transport(server_args, number, limits[number], sum(all_bytes[number + 1 :])))
            self._stores = self.open_below(server_args)
            if self._stores is not None:
                for number, transport in enumerate(self.transports):
                    transport.below = self._stores.copier(number, transport.memory)
            self.host = LinkedHost(
                limits,
                policy=config.policy,
                checking=config.checking,
                deadline=config.deadline_s,
                indexes=[] if self._stores is None else self._stores.presences,
                below=config.policies_below,
            )
        except BaseException:
            self._close_transports()
            raise
        self._may_wait_s = 0.0
        """How long the lookups of this step may still wait for a store below."""
        self._offered: list[list[PoolTransfer]] = []
        """What SGLang has offered in this step, node by node."""
        in_parts = config.load_parts > 1
        num_layers = max(each.num_layers for each in self.pages)
        self.layer_done_counter = LoadCounter(num_layers, self._before_layer if in_parts else None)
        self._closed = False
        self._num_untold = 0
        """Copies that have failed since the log has last said so."""
        self._told_at = -math.inf
        for name, each, count in zip(self.pools, self.pages, slots, strict=True):
            logger.info(
                "blocklife linker: %s: %d pages of %d bytes in host memory, %d on the device",
                name.value,
                count,
                each.page_bytes,
                each.num_pages - 1,
            )

    def _transport(self, server_args: ServerArgs, number: int, limits: Limits, beside: int) -> Transport:
        cache = self.pages[number].cache
        return Transport(
            cache,
            limits,
            sharers=ranks_here(server_args),
            beside=beside,
            forward_stream=self.forward_stream if cache.device.type != "cpu" or self.has_streams else None,
            make_copier=self.make_copier,
            wrap=self.wrap_copier,
            load_parts=self.config.load_parts,
        )

    has_streams = False
    """Whether memory of the CPU has streams, as a rig for tests has."""

    def make_copier(self, cache: KvCache, memory: HostMemory, limits: Limits) -> TorchCopier:
        """The copier; a subclass may make another."""
        return torch_copier(cache, memory, limits, self.config.movers)

    def wrap_copier(self, copier: TorchCopier) -> Copier:
        """What launches copies; a subclass may put something around it."""
        return copier

    def open_below(self, arguments: object) -> RankStores | None:
        """The store below, if the options name one; a subclass may have another."""
        config = self.config
        if config.below is None:
            return None
        names = [name.value for name in self.pools]
        place = [(torch.distributed.get_rank(group), torch.distributed.get_world_size(group)) for group in self._groups]
        return RankStores(identities_of(arguments, names, self.pages, place, config.below_generation), config, logger)

    def pause(self) -> float:
        """Let a store below work for a moment. Returns how many seconds that were; a subclass may count something else."""
        began = time.monotonic()
        time.sleep(PAUSE_S)
        return time.monotonic() - began

    def now(self) -> float:
        """The time, in seconds; a subclass may count something else."""
        return time.monotonic()

    def statistics(self) -> LinkerStatistics:
        """Counts since the start."""
        return self.host.statistics()

    def statistics_below(self) -> list[BelowStatistics]:
        """Counts of the store below since the start, for each memory; none without one."""
        return self.host.statistics_below()

    # --- SGLang's calls -----------------------------------------------------------------------------------------------------

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        """All numbers of pages, from the first on, that can be loaded with all that a request needs behind them.

        What is in a store below begins to come. If it is there soon enough it counts; if not, a later lookup finds it.
        """
        wanted = self._named(transfers)
        while self.host.fetch(wanted):
            self._launch()
            if self._may_wait_s <= 0:
                self.host.gave_up()
                break
            self._may_wait_s -= self.pause()
            self._collect()
        return self.host.lookup(wanted)

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        """Begin to load into pages of the request; False if it must compute them: they are gone, or no copy can be launched.

        All ranks answer the same.
        """
        wanted = self._named(transfers, self._blocks([transfers])[0])
        self._wait(self.host.left_in(wanted))
        begun = self.host.load(rid, wanted)
        if begun:
            self._launch()
        whole = self._agreed(begun and not self.host.is_refused(rid))
        if begun and not whole:
            self._give_up(rid, refused=True)
        return whole

    def start_layer_wise_loading(self) -> int:
        """Let the forward pass wait for the loads of its batch. Returns the number of the batch, -1 if it loads nothing."""
        batch = self.host.start_loads()
        if batch >= 0:
            for number, transport in enumerate(self.transports):
                transport.before_forward(self.host.blocks_of(batch, number))
            self.layer_done_counter.set_consumer(batch)
        return batch

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Whether all loads of this batch have arrived, or will before anything on the device reads them."""
        certain = all(transport.is_certain for transport in self.transports)
        if not certain:
            self._wait(self.host.loading(counter_index))
        return self.host.finish_loads(counter_index, wait=not certain)

    def cancel_queued_load(self, rid: str) -> bool:
        """Give up a load of a batch that has not started, once it is quiet."""
        return self._give_up(rid)

    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        """Take the pages of a node. True unless there are none: what comes of it is said in its turn."""
        named = [transfer for transfer in transfers if transfer.keys]
        if named:
            self._offered.append(named)
        return bool(named)

    def num_completed_offloads(self) -> int:
        """How many stores, in their order, have an outcome. SGLang asks at the start of each step, so a step begins here."""
        if self._stores is None and not self._offered and self.host.is_idle:
            return 0
        self._collect()
        self._may_wait_s = self.config.policies_below.max_wait
        self.host.begin_step()
        self._plan_offered()
        self._launch()
        self._give_up_late()
        return self.host.num_acknowledged

    def pop_completed_offload(self) -> bool:
        """Take the outcome of the oldest store."""
        return self.host.acknowledge()

    def reset(self) -> None:
        """Wait for every copy, then forget everything."""
        self._offered.clear()
        self._wait(self.host.out())
        self.host.quiesce(self.host.out())
        self.host.reset()
        self.layer_done_counter.set_consumer(-1)

    def close(self) -> None:
        """The same, and give host memory back. A second call does nothing."""
        if self._closed:
            return
        self.reset()
        self._closed = True
        self._close_transports()
        logger.info("blocklife linker: %s", self.statistics())
        for name, counts in zip(self.pools, self.statistics_below(), strict=False):
            logger.info("blocklife linker: %s: %s", name.value, counts)

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _named(self, transfers: Sequence[PoolTransfer], blocks: Sequence[Sequence[int]] = ()) -> list[LinkedPages]:
        """What SGLang names of each memory, with its blocks where there are any."""
        return [
            LinkedPages(self._number(transfer), [key.encode() for key in transfer.keys], blocks[at] if blocks else ())
            for at, transfer in enumerate(transfers)
        ]

    def _number(self, transfer: PoolTransfer) -> int:
        number = self._numbers.get(transfer.name)
        if number is None:
            known = ", ".join(name.value for name in self._numbers)
            raise MisuseError(f"blocklife linker: SGLang moves {transfer.name.value}, and this model has {known} only")
        return number

    def _blocks(self, calls: Sequence[Sequence[PoolTransfer]]) -> list[list[list[int]]]:
        """The blocks of each transfer of each call. Waits for the device once for each memory."""
        found: list[list[list[int]]] = [[[] for _ in transfers] for transfers in calls]
        flat = [(self._number(each), call, at) for call, transfers in enumerate(calls) for at, each in enumerate(transfers)]
        for number, pages in enumerate(self.pages):
            places = [(call, at) for memory, call, at in flat if memory == number]
            if places:
                blocks = pages.blocks([calls[call][at].device_indices for call, at in places])
                for (call, at), those in zip(places, blocks, strict=True):
                    found[call][at] = those
        return found

    def _plan_offered(self) -> None:
        if not self._offered:
            return
        offered, self._offered = self._offered, []
        for transfers, blocks in zip(offered, self._blocks(offered), strict=True):
            node = self._named(transfers, blocks)
            self._wait(self.host.left_in(node))
            self.host.store(node)

    def _agreed(self, done: bool) -> bool:
        """Whether all ranks say so; each has called this for the same request."""
        if not self._groups:
            return done
        said = torch.tensor([int(done)], dtype=torch.int)
        for group in self._groups:
            torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MIN, group=group)
        return bool(said.item())

    def _before_layer(self, layer: int) -> None:
        for transport, pages in zip(self.transports, self.pages, strict=True):
            if (last := pages.last_buffer(layer)) >= 0:
                transport.before_layer(last)

    def _launch(self) -> None:
        now = self.now()
        for number, plan in self.host.dispatch(now):
            launched, completions = self.transports[number].execute(plan)
            self.host.settle(number, plan, now, launched, completions)
            self._log_failed(completions)

    def _collect(self) -> None:
        if self._stores is not None:
            self._stores.look()
        for number, transport in enumerate(self.transports):
            completions = transport.poll()
            self.host.report(number, completions)
            self._log_failed(completions)

    def _wait(self, jobs: OfMemories) -> None:
        """Block until these copies are quiet."""
        if any(jobs):
            for transport, those in zip(self.transports, jobs, strict=True):
                transport.wait(those)
            self._collect()

    def _give_up(self, rid: str, *, refused: bool = False) -> bool:
        self._wait(self.host.queued(rid))
        self.host.quiesce(self.host.queued(rid))
        return self.host.cancel(rid, refused=refused)

    def _close_transports(self) -> None:
        for transport in self.transports:
            transport.close()
        if self._stores is not None:
            self._stores.close()

    def _log_failed(self, completions: Iterable[Completion]) -> None:
        """Log copies that have failed: the first at once, and what follows at most every so many seconds."""
        self._num_untold += sum(each.result is Result.FAILED for each in completions)
        if self._num_untold and time.monotonic() >= self._told_at + SAY_AGAIN_S:
            reason = next((each.last_error for each in self.transports if each.last_error), "without a reason")
            logger.warning("blocklife linker: copies that have failed: %d; the last one: %s", self._num_untold, reason)
            self._num_untold, self._told_at = 0, time.monotonic()

    def _give_up_late(self) -> None:
        """A copy past its deadline has failed, but SGLang may have its pages only when it is quiet: that is waited for."""
        late = self.host.expire(self.now())
        if any(late):
            count = sum(map(len, late))
            logger.warning("blocklife linker: %d copies are past their deadline; waiting until they are quiet", count)
            self._wait(late)
            self.host.quiesce(late)


def _groups_of(params: CacheInitParams) -> list[ProcessGroup]:
    """The groups of processes whose ranks must decide alike, as `UnifiedRadixCache` has them."""
    several = [
        group
        for name in ("attn_cp_cache_group", "attn_tp_cache_group", "tp_cache_group")
        if (group := getattr(params, name, None)) is not None and torch.distributed.get_world_size(group=group) > 1
    ]
    return [group for group in several if group is not params.tp_cache_group] or several
