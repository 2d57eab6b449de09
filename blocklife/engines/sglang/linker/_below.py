"""The store below host memory of a rank: for which content it is asked, and who asks and copies.

Each rank is alone with it: what it puts there, it finds there. SGLang takes only what all ranks have found, so no store has to
answer all of them alike. Each memory has names of its own.

Rules of this file:

* Names of entries depend on all that could make their bytes mean something else, rather too much than too little. How many
  pages the device has is not part of it: servers with different memory share content.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

import sglang

from blocklife.copiers._protocol import TierCopier
from blocklife.copiers.torch import HostMemory
from blocklife.engines._store import AskedStore, CopiedStore, StoreBelow
from blocklife.engines.sglang.linker._config import PLACE, LinkerConfig
from blocklife.engines.sglang.linker._device import DevicePages
from blocklife.engines.sglang.linker._transport import RANK
from blocklife.errors import MisuseError
from blocklife.offload import BelowIndex
from blocklife.tiers import Identity

_OF_MODEL = (
    "model_path", "revision", "load_format", "quantization", "json_model_override_args", "model_impl", "dtype",
    "kv_cache_dtype", "mamba_ssm_dtype", "attention_backend", "speculative_algorithm", "speculative_draft_model_path",
    "speculative_draft_model_revision", "speculative_num_steps",
)  # fmt: skip
"""What SGLang's arguments say of the weights and of how content is computed. Adapters are in the names of pages."""


class RankStores:
    """The store below one rank's memories: each opens it twice, to ask and to copy."""

    def __init__(self, identities: Sequence[Identity], config: LinkerConfig, logger: logging.Logger) -> None:
        self._logger = logger
        self._below = [
            StoreBelow(address=config.below or "", identity=each, policies=config.policies_below, option=f"{PLACE}: below")
            for each in identities
        ]
        self._asked: list[AskedStore] = []
        self._copied: list[CopiedStore] = []
        try:
            for each in self._below:
                self._asked.append(AskedStore(each, logger))
        except BaseException:
            self.close()
            raise

    @property
    def presences(self) -> Sequence[BelowIndex]:
        """What knows the store, one for each memory."""
        return [each.presence for each in self._asked]

    def copier(self, number: int, host: HostMemory) -> TierCopier:
        """The copier of a memory, whose owner closes it before `close`."""
        self._copied.append(CopiedStore(self._below[number], host, RANK, self._logger))
        return self._copied[-1].copier

    def look(self) -> None:
        """Log it if the store went down, or came back."""
        for asked in self._asked:
            asked.look()
        for copied in self._copied:
            copied.look()

    def close(self) -> None:
        """End the threads that ask, and close the store."""
        for asked in self._asked:
            asked.close()
        for copied in self._copied:
            copied.close()


def identities_of(
    arguments: object, names: Sequence[str], pages: Sequence[DevicePages], place: Sequence[tuple[int, int]], generation: str
) -> list[Identity]:
    """What the content of each memory was made for. *place*: number and size in each group of ranks that share the model."""
    said = {name: getattr(arguments, name, None) for name in _OF_MODEL}
    if said["load_format"] == "dummy":  # else the seed is another one in each process, and says nothing of the weights
        said["random_seed"] = getattr(arguments, "random_seed", None)
    path = said["model_path"]
    if not isinstance(path, str) or not path:
        raise MisuseError(f"{PLACE}: below: SGLang does not say which model it runs, so content has no name (leave below out)")
    found = []
    for name, each in zip(names, pages, strict=True):
        shapes = [(tuple(tensor.shape[1:]), str(tensor.dtype)) for tensors in each.cache.groups for tensor in tensors]
        layout = ("sglang", sglang.__version__, name, each.page_size, *place, *sorted(said.items()), *shapes)
        found.append(
            Identity(
                model=path,
                dtype=shapes[0][1],
                groups=f"{name}:{each.page_size}",
                blocks_per_chunk=1,
                slot_bytes=each.cache.row_bytes,
                num_ranks=1,
                layout=hashlib.blake2b(repr(layout).encode(), digest_size=32).hexdigest(),
                generation=generation,
            )
        )
    return found
