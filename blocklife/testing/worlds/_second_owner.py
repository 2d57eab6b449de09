"""A second owner of blocks beside the engine: it reads final content of a request until it says that it is done.

Rules of this file:

* What it reads it holds by a request of its own in the ledger, a *guest*, which the scheduler does not know.
* It reads all of it in every step: whoever frees, hands out or overwrites such a block is seen by the device.

Theory. Holders count lives, not requests: a life that the guest holds stays held when the request that computed it is over,
was preempted, or has hit it somewhere else. So the ledger needs no notion of another owner; it needs one holder for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blocklife.ledger import Ledger
from blocklife.ledger.views import block_of
from blocklife.offload import Geometry
from blocklife.states import KEYED

_SIGN = "+"


def guest_of(name: str) -> str:
    """The name under which a second owner holds blocks of a request."""
    return name + _SIGN


def hosts(names: Iterable[str]) -> tuple[str, ...]:
    """The requests that have a guest, given all requests of a ledger."""
    return tuple([each.removesuffix(_SIGN) for each in names if each.endswith(_SIGN)])


def lend(ledger: Ledger, name: str, groups: Iterable[int]) -> None:
    """The second owner begins to read the final blocks at the start of a request's tables. Nothing, if there are none."""
    found = []
    for group in groups:
        held = ledger.requests.table(name, group)
        final = next((at for at, life in enumerate(held) if ledger.blocks.of(life) not in KEYED), len(held))
        found.append(held[:final])
    if not any(found):
        return
    guest = guest_of(name)
    ledger.add_request(guest)
    for group, lives in enumerate(found):
        if lives:
            ledger.acquire(guest, lives, group)
    ledger.admit(guest)


def give_back(ledger: Ledger, name: str) -> None:
    """It is done with them."""
    ledger.finish(guest_of(name))


def read(ledger: Ledger, geometry: Geometry) -> Iterator[tuple[str, int, int, int]]:
    """What second owners read: the request that it belongs to, the group, the last token of the block, and the block."""
    for host in hosts(ledger.requests):
        for group, size in enumerate(geometry.block_tokens):
            for position, life in enumerate(ledger.requests.table(guest_of(host), group)):
                yield host, group, (position + 1) * size, block_of(life)
