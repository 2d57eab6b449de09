"""Bugs in the hashes of requests: of what the content of a block depends on, something is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from vllm.v1.core import kv_cache_utils

from tests.behind.planted import Bed, Original, planted


def _leave_out(bed: Bed, kind: str) -> None:
    """Leave out what is beside the tokens, where it is of this kind."""
    original: Original = kv_cache_utils.generate_block_hash_extra_keys

    def generates(*args: object) -> tuple[object, int]:
        keys, at = original(*args)
        kept = tuple(key for key in keys or () if key[0] != kind)
        return (kept or None, at) if keys and len(kept) < len(keys) and bed.strikes() else (keys, at)

    bed.stack.enter_context(mock.patch.object(kv_cache_utils, "generate_block_hash_extra_keys", generates))


@planted("differs")
def salt_is_not_hashed(bed: Bed) -> None:
    """The hash of a block does not depend on the salt of its request."""
    _leave_out(bed, "cache_salt")


@planted("differs")
def adapter_is_not_hashed(bed: Bed) -> None:
    """The hash of a block does not depend on the adapter of its request."""
    _leave_out(bed, "lora")


@planted("differs")
def image_is_not_hashed(bed: Bed) -> None:
    """The hash of a block does not depend on the image whose tokens are in it."""
    _leave_out(bed, "mm")


@planted("differs")
def last_token_is_not_hashed(bed: Bed) -> None:
    """The hash of a block depends on all of its tokens but the last."""
    original: Original = kv_cache_utils.hash_block_tokens

    def hashes(function: Any, parent: object, tokens: Sequence[int], extra: object = None) -> object:
        bed.strikes()
        return original(function, parent, tokens[:-1], extra)

    bed.stack.enter_context(mock.patch.object(kv_cache_utils, "hash_block_tokens", hashes))
