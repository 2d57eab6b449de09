"""Scenarios against a real vLLM: `blocklife scenario run FILE --driver blocklife.testing.vllm:VllmDriver`."""

from typing import TYPE_CHECKING

from blocklife._doors import door

if TYPE_CHECKING:
    from blocklife.testing.vllm._driver import VllmDriver

__all__ = [
    "VllmDriver",
]

if not TYPE_CHECKING:  # type checkers see only the imports above
    __getattr__, __dir__ = door(
        __name__,
        {
            "_driver": "VllmDriver",
        },
    )
