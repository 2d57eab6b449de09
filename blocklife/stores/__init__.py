"""Stores keep content below the host tier, under names that fit one model: one protocol, and stores behind it."""

from typing import TYPE_CHECKING

from blocklife._doors import door

if TYPE_CHECKING:
    from blocklife.stores._address import open_store
    from blocklife.stores._breaker import BreakerStatistics, CircuitBreaker
    from blocklife.stores._copier import StoreCopier, StoreCopierStatistics
    from blocklife.stores._entry import FORMAT_VERSION, HEADER_BYTES, EntryVerdict, Identity, check, pack
    from blocklife.stores._faults import FaultyStore, StoreFaultRates, StoreFaultStatistics
    from blocklife.stores._files import FileStore, FileStoreStatistics
    from blocklife.stores._mooncake import MooncakeStore, MooncakeStoreStatistics
    from blocklife.stores._presence import Presence, PresenceStatistics
    from blocklife.stores._protocol import KEY_BYTES, ContentStore, Page, Removing, StoreOutcome

__all__ = [
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "KEY_BYTES",
    "BreakerStatistics",
    "CircuitBreaker",
    "ContentStore",
    "EntryVerdict",
    "FaultyStore",
    "FileStore",
    "FileStoreStatistics",
    "Identity",
    "MooncakeStore",
    "MooncakeStoreStatistics",
    "Page",
    "Presence",
    "PresenceStatistics",
    "Removing",
    "StoreCopier",
    "StoreCopierStatistics",
    "StoreFaultRates",
    "StoreFaultStatistics",
    "StoreOutcome",
    "check",
    "open_store",
    "pack",
]

if not TYPE_CHECKING:  # type checkers see only the imports above
    __getattr__, __dir__ = door(
        __name__,
        {
            "_address": "open_store",
            "_breaker": "BreakerStatistics CircuitBreaker",
            "_copier": "StoreCopier StoreCopierStatistics",
            "_entry": "FORMAT_VERSION HEADER_BYTES EntryVerdict Identity check pack",
            "_faults": "FaultyStore StoreFaultRates StoreFaultStatistics",
            "_files": "FileStore FileStoreStatistics",
            "_mooncake": "MooncakeStore MooncakeStoreStatistics",
            "_presence": "Presence PresenceStatistics",
            "_protocol": "KEY_BYTES ContentStore Page Removing StoreOutcome",
        },
    )
