"""The second truth about bytes: pages in numpy, moved one after the other in the order in which they were asked for.

It knows what a page is and in which column a layer's pages go; it knows nothing of runs, streams, events or movers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from blocklife.copiers.torch import KvCache
from blocklife.copiers.torch._layout import HostRows
from blocklife.copiers.torch._moves import flat_bytes
from blocklife.ledger.records import Direction, Transfer

Bytes = NDArray[np.uint8]


def pages_of(tensor: torch.Tensor) -> torch.Tensor:
    """A layer as the bytes of its blocks, whatever it is made of: ``(num_blocks, page)``, the same memory."""
    return flat_bytes(tensor).view(len(tensor), -1)


def scatter(cache: KvCache, host: HostRows, seed: int) -> None:
    """Fill both ends with random bytes."""
    dice = np.random.default_rng(seed)
    for layer in cache.layers:
        pages = pages_of(layer)
        pages.copy_(torch.from_numpy(dice.integers(256, size=tuple(pages.shape), dtype=np.uint8)))
    host.rows.copy_(torch.from_numpy(dice.integers(256, size=tuple(host.rows.shape), dtype=np.uint8)))


class Shadow:
    """Both ends, as they must be when everything that was asked for has run."""

    def __init__(self, cache: KvCache, host: HostRows) -> None:
        """Take what is there now. Needs: nothing is under way."""
        self._cache = cache
        self._host = host
        self.device: list[list[Bytes]] = [[_there(pages_of(layer)) for layer in group] for group in cache.groups]
        """Of each group and each of its layers: the blocks' pages."""
        self.host: Bytes = _there(host.rows)
        """The places' rows."""

    def move(self, transfer: Transfer, count: int | None = None) -> None:
        """Do what a transfer asks for, of its first *count* places only if that is given."""
        groups = np.repeat(np.arange(len(transfer.group_sizes)), transfer.group_sizes)[:count]
        ends = zip(groups.tolist(), transfer.source.tolist(), transfer.target.tolist(), strict=False)
        for group, source, target in ends:
            for column, pages in zip(self._cache.columns, self.device[group], strict=False):
                page = slice(column, column + pages.shape[1])
                if transfer.direction is Direction.STORE:
                    self.host[target, page] = pages[source]
                else:
                    pages[target] = self.host[source, page]

    def wrong(self) -> list[str]:
        """Every block and place whose bytes are not as they must be. Needs: nothing is under way."""
        found: list[str] = []
        for group, layers in enumerate(self._cache.groups):
            for index, layer in enumerate(layers):
                found += _differ(f"group {group}, layer {index}, block", _there(pages_of(layer)), self.device[group][index])
        return [*found, *_differ("place", _there(self._host.rows), self.host)]


def _there(pages: torch.Tensor) -> Bytes:
    copied: Bytes = pages.cpu().numpy().copy()
    return copied


def _differ(what: str, found: Bytes, wanted: Bytes) -> Sequence[str]:
    return [
        f"{what} {row}: {np.count_nonzero(found[row] != wanted[row])} of {found.shape[1]} bytes are wrong"
        for row in np.flatnonzero((found != wanted).any(axis=1)).tolist()
    ]
