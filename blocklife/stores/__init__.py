"""Stores keep content below the host tier, under names that fit one model: one protocol, and stores behind it."""

from typing import TYPE_CHECKING

from blocklife._doors import door

if TYPE_CHECKING:
    from blocklife.stores._files import FileStore, FileStoreStatistics
    from blocklife.stores._protocol import KEY_BYTES, ContentStore, Page, Removing, StoreOutcome

__all__ = [
    "KEY_BYTES",
    "ContentStore",
    "FileStore",
    "FileStoreStatistics",
    "Page",
    "Removing",
    "StoreOutcome",
]

if not TYPE_CHECKING:  # type checkers see only the imports above
    __getattr__, __dir__ = door(
        __name__,
        {
            "_files": "FileStore FileStoreStatistics",
            "_protocol": "KEY_BYTES ContentStore Page Removing StoreOutcome",
        },
    )
