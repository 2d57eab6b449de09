"""Plays a planted bug: one run of random traffic under the watch, judged by what the rig sees and by what is left at rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random

import numpy as np
from attrs import define, evolve
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.kv_offload.base import get_offload_block_hash, get_offload_group_idx

from tests.behind.planted import Bed, Planted
from tests.behind.planted.program import Played
from tests.vllm.device import Memory, Text, Words
from tests.vllm.engine import host_manager
from tests.vllm.rig import Rig
from tests.vllm.watched import Trouble, driven, trouble_of
from tests.vllm.worlds import PLANTED, TIERED, WORLDS, World

LOOKED_AT = ("block_handed_out_twice", "full", BlockPool)
"""A bug, a world, and the class that it changes."""


def worlds() -> Mapping[str, World]:
    """The worlds that have a name, and some that differ from them for the sake of a bug."""
    return WORLDS | TIERED | PLANTED


def played(bug: Planted[Bed], world: str, seed: int, steps: int) -> Played:
    """Plant a bug, let a seed run, and take it out again."""
    rest = Rest()
    with ExitStack() as stack:
        bed = Bed(Random(f"{seed}/{bug.name}"), stack)
        bug.plant(bed)
        *_, row = driven(world, worlds()[world], seed, steps, rest.judge, workers=True)
    if row.trouble is None and rest.slot_is_wrong():
        row = evolve(row, trouble=row.steps, what="wrong bytes in a slot")
    return Played(bug.name, bed.fired, row)


@define(eq=False)
class Rest:
    """Judges an engine at rest too: all blocks and slots are free, and in the end slots hold what they are called."""

    rig: Rig | None = None

    def judge(self, rig: Rig) -> Trouble | None:
        """What is wrong after a step, if there is something."""
        self.rig = rig
        what = _lost(rig) if rig.idle else None
        return trouble_of(rig) or (None if what is None else (rig.step_number, what))

    def slot_is_wrong(self) -> bool:
        """Whether a slot holds other bytes than it is called. One of several blocks may be filled in part, and is left out."""
        rig = self.rig
        if rig is None or not rig.idle or rig.spec.blocks_per_chunk > 1:
            return False
        tokens, texts = rig.spec.groups[0].block_tokens, dict[bytes, tuple[Text, int]]()
        for name, text in rig.texts.items():
            hashes = rig.engine.request_of(name, text.tokens, beside=text.beside).block_hashes
            texts.update((bytes(each), (text, at * tokens)) for at, each in enumerate(hashes))
        called = [(slot, *texts[name], group) for slot, name, group in _called(rig) if name in texts]
        wrong = not all(
            _holds(rank.memory, slot, text.prints(group, at, at + tokens))
            for slot, text, at, group in called
            if rig.spec.groups[group].kind != "mamba"
            for rank in rig.ranks
        )
        return wrong or (rig.disk is not None and any(_file_is_wrong(rig, path, texts) for path in rig.disk.files()))


def _file_is_wrong(rig: Rig, path: Path, texts: Mapping[bytes, tuple[Text, int]]) -> bool:
    """Whether a file has other bytes than it is called; one that is cut was cut by the rig."""
    found, tokens = texts.get(bytes.fromhex(path.stem)), rig.spec.groups[0].block_tokens
    words = np.fromfile(path, dtype=np.uint64)
    if found is None or not len(words):
        return False
    (text, at), group, size = found, int(path.parent.name.rpartition("_g")[2]), rig.ranks[0].memory.row_words
    prints = text.prints(group, at, at + tokens)
    cells = [(rank.memory.salt, words[rank.number * size : (rank.number + 1) * size]) for rank in rig.ranks]
    return any(len(cell) == size and bool((cell.reshape(tokens, -1) != (prints ^ salt)[:, None]).any()) for salt, cell in cells)


def _holds(memory: Memory, slot: int, words: Words) -> bool:
    """Whether each token's place in a slot holds its word."""
    return bool((memory.host[slot].reshape(len(words), -1) == (words ^ memory.salt)[:, None]).all())


def _lost(rig: Rig) -> str | None:
    """What nobody can have again."""
    pool, connector = rig.scheduler.kv_cache_manager.block_pool, rig.scheduler.connector
    if pool.get_num_free_blocks() != rig.spec.num_gpu_blocks - 1:
        return "blocks lost"
    if rig.spec.connector == "simple":
        pool = connector.scheduler_manager.cpu_block_pool
        held = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
    else:
        manager = host_manager(rig.scheduler)
        held = manager._num_allocated_chunks - len(manager._free_list) - manager._num_evictable_cache_chunks
    return "slots lost" if held else None


def _called(rig: Rig) -> Iterator[tuple[int, bytes, int]]:
    """Slots that can be found, the name of each, and its group."""
    connector = rig.scheduler.connector
    if rig.spec.connector == "simple":
        named = ((each.block_id, each.block_hash) for each in connector.scheduler_manager.cpu_block_pool.blocks)
        found = ((slot, key) for slot, key in named if key is not None)
    else:
        chunks = host_manager(rig.scheduler)._policy.chunks
        found = ((chunk.chunk_id, key) for key, chunk in chunks.items() if chunk.is_ready)
    for slot, key in found:
        yield slot, bytes(get_offload_block_hash(key)), get_offload_group_idx(key)
