"""Stores keep content below the host tier, under names that fit one model: one protocol, and stores behind it."""

from blocklife._doors import door

__getattr__, __dir__, __all__ = door(
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
