# Written by `make spec`, from the table in __init__.py.

from blocklife.tiers._address import (open_store as open_store)
from blocklife.tiers._breaker import (BreakerStatistics as BreakerStatistics, CircuitBreaker as CircuitBreaker)
from blocklife.tiers._copier import (StoreCopier as StoreCopier, StoreCopierStatistics as StoreCopierStatistics)
from blocklife.tiers._entry import (FORMAT_VERSION as FORMAT_VERSION, HEADER_BYTES as HEADER_BYTES, EntryVerdict as
    EntryVerdict, Identity as Identity, check as check, pack as pack)
from blocklife.tiers._faults import (FaultyStore as FaultyStore, StoreFaultRates as StoreFaultRates,
    StoreFaultStatistics as StoreFaultStatistics)
from blocklife.tiers._files import (FileStore as FileStore, FileStoreStatistics as FileStoreStatistics)
from blocklife.tiers._mooncake import (MooncakeStore as MooncakeStore, MooncakeStoreStatistics as
    MooncakeStoreStatistics)
from blocklife.tiers._presence import (Presence as Presence, PresenceStatistics as PresenceStatistics)
from blocklife.tiers._protocol import (KEY_BYTES as KEY_BYTES, ContentStore as ContentStore, Page as Page, Removing as
    Removing, StoreOutcome as StoreOutcome)

__all__: list[str]
