"""A hit is what a load can bring, no more and no less: the search over a device and a host tier that are filled by hand.

Method: content is placed block by block; what is found is compared with a definition that tries every length. Then single
cases: what is on its way, what has holes, what is capped.
"""

from __future__ import annotations

import random

import pytest

from blocklife.ledger import Ledger, Limits
from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK
from blocklife.ledger.jobs import Batch, GroupTransfer, Store
from blocklife.offload import FullHit, Geometry, Hit, HostTier, LocalAttention, Mamba, Policies, SlidingWindow
from blocklife.offload._search import Search
from tests.rigs import key
from tests.worlds import report, unchanged

TEXT = "abcdefghijklmnopqrstuvwx"


class Shelf:
    """A ledger whose device and host hold what a test puts there; request r asks, request w writes."""

    def __init__(self, groups: str, size: int = 1, policies: Policies | None = None) -> None:
        self.geometry = Geometry.parse(groups, size)
        self.size = size
        self.ledger = Ledger(Limits(num_blocks=200, num_slots=60, num_groups=len(self.geometry.groups)))
        for name in "rw":
            self.ledger.add_request(name)
        self.ledger.admit("w")
        self.tier = HostTier(self.ledger)
        self.suffix = bytearray(60)
        self.loading: dict[tuple[int, bytes], str] = {}
        self.policies = policies or Policies()
        self.search = Search(self.ledger, self.tier, self.geometry, self.policies, self.suffix, self.loading)
        self.slot = 0

    def keys(self, group: int, start: int, stop: int) -> list[bytes]:
        tokens = self.geometry.block_tokens[group]
        return [key(group, TEXT[: (block + 1) * tokens]) for block in range(start, stop)]

    def on_device(self, group: int, block: int) -> int:
        """Final content of one block that nobody holds; gives its life."""
        batch = self.ledger.allocate("w", 1, group)
        self.ledger.seal(batch, self.keys(group, block, block + 1))
        self.ledger.release("w", [len(self.ledger.requests.table("w", group)) - 1], group)
        return int(batch.lives[0])

    def in_host(self, group: int, chunk: int, *, suffix: int | None = None, landed: bool = True) -> int:
        """One chunk in the next slot, or on its way there; of a part only the last *suffix* blocks."""
        suffix = self.size if suffix is None else suffix
        start, stop = chunk * self.size, (chunk + 1) * self.size
        names = self.keys(group, start, stop)
        batch = self.ledger.allocate("w", suffix, group)
        # of a chunk with one block the key is the block's own
        self.ledger.seal(batch, names[-1:] if suffix == 1 else [b"copy of %d " % self.slot + name for name in names[-suffix:]])
        places = [self.slot * self.size + at for at in range(self.size - suffix, self.size)]
        (job,) = self.ledger.plan_store(
            Store("w", [GroupTransfer(Batch(batch.lives, group), [self.slot], names[-1:], places)])
        ).ids
        plan = self.ledger.dispatch(0.0)
        self.ledger.settle(plan.number, 0.0, completions=[report(job)] if landed else [])
        table = self.ledger.requests.table("w", group)
        self.ledger.release("w", range(len(table) - suffix, len(table)), group)
        self.ledger.drop(batch.lives)
        self.suffix[self.slot] = suffix
        self.slot += 1
        return self.slot - 1

    def run(self, known: int, device_tokens: int | None = None, *, host: bool = True) -> Hit:
        """The search; it changes nothing."""
        with unchanged(self.ledger):
            names = self.search.names(self.keys, known)
            return self.search.run("r", names, known, device_tokens, 7, host=host, most=self.policies.max_load_tokens)


def needed(geometry: Geometry, group: int, token: int) -> range:
    """The blocks that are read, or written further, by who computes *token* next."""
    kind, tokens = geometry.groups[group], geometry.block_tokens[group]
    if isinstance(kind, Mamba):
        return range(max(0, (token - 1) // tokens), (token - 1) // tokens + 1) if token else range(0)
    low = max(0, token - kind.window_tokens + 1) if isinstance(kind, SlidingWindow) else 0
    if isinstance(kind, LocalAttention):
        low = token // kind.part_tokens * kind.part_tokens
    return range(low // tokens, -(-token // tokens))


def reference(shelf: Shelf, known: int, device: set[tuple[int, int]], host: dict[tuple[int, int], int]) -> tuple[int, int]:
    """The longest hit on the device, and behind it in the host, by trying every length."""
    geometry, recompute = shelf.geometry, shelf.policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN
    extra = 1 if recompute else 0
    limit = known if recompute else known - 1

    def reads(group: int, length: int) -> range:
        found, stop = needed(geometry, group, length - extra if length else 0), length // geometry.block_tokens[group]
        return range(found.start, stop)

    start = 0
    for length in range(geometry.block_alignment, limit + 1, geometry.block_alignment):
        if all((group, block) in device for group in range(len(geometry.groups)) for block in reads(group, length)):
            start = length
    best = start
    cap = shelf.policies.max_load_tokens
    for length in range(geometry.chunk_alignment, limit + 1, geometry.chunk_alignment):
        if length <= start or (cap is not None and length > start + cap):
            continue
        fits = True
        for group in range(len(geometry.groups)):
            for block in reads(group, length):
                if block < start // geometry.block_tokens[group]:
                    continue
                chunk, at = divmod(block, shelf.size)
                fits = fits and shelf.size - at <= host.get((group, chunk), 0)
        best = length if fits else best
    if not any(
        range(max(needed(geometry, group, best - (best == known)).start, start // tokens), best // tokens)
        for group, tokens in enumerate(geometry.block_tokens)
    ):
        return start, start  # nothing of it would be loaded
    return start, best


@pytest.mark.parametrize("policy", list(FullHit), ids=["drop", "recompute"])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    "groups",
    [
        "full:2",
        "swa:2:4",
        "swa:2:1",
        "full:2,swa:2:5",
        "full:4,swa:2:3",
        "full:2,mamba:4",
        "full:3,swa:2:4",
        "full:2,local:2:4",
        "local:2:6",
        "full:2,local:2:3",
        "full:2,local:4:6",
    ],
)
def test_a_hit_is_the_longest_length_of_which_all_is_there(groups: str, size: int, policy: FullHit) -> None:
    """Against every length tried, over random content, with holes inside chunks, and a cap; all that it names is there."""
    if "mamba" in groups and policy is FullHit.RECOMPUTE_LAST_TOKEN:
        return
    rnd = random.Random(f"{groups}/{size}/{policy.name}")
    for _ in range(12):
        cap = rnd.choice((None, None, 4, 8))
        shelf = Shelf(groups, size, Policies(full_hit=policy, max_load_tokens=cap))
        device: set[tuple[int, int]] = set()
        host: dict[tuple[int, int], int] = {}
        dense = rnd.choice((0.5, 0.9, 1.0))
        for group, tokens in enumerate(shelf.geometry.block_tokens):
            for block in range(rnd.randrange(len(TEXT) // tokens + 1)):
                if rnd.random() < dense:
                    shelf.on_device(group, block)
                    device.add((group, block))
            for chunk in range(rnd.randrange(len(TEXT) // tokens // size + 1)):
                if rnd.random() < dense:
                    suffix = size if rnd.random() < 0.7 else rnd.randrange(1, size + 1)
                    if (group, (chunk + 1) * size - 1) not in device or suffix > 1:
                        shelf.in_host(group, chunk, suffix=suffix)
                        host[group, chunk] = suffix
        known = rnd.randrange(1, len(TEXT) + 1)
        hit = shelf.run(known)
        expected = reference(shelf, known, device, host)

        assert (hit.device_tokens, hit.tokens) == expected, (known, sorted(device), host)
        assert not hit.deferred
        assert hit.compute_from == (hit.tokens - 1 if hit.tokens == known else hit.tokens)
        assert_named(shelf, hit)


def assert_named(shelf: Shelf, hit: Hit) -> None:
    """The lives and slots of a hit are exactly those whose content it reads."""
    for group, tokens in enumerate(shelf.geometry.block_tokens):
        reads = needed(shelf.geometry, group, hit.compute_from)
        here = [block for block in reads if block < hit.device_tokens // tokens]
        names = shelf.keys(group, 0, len(TEXT) // tokens)
        assert [shelf.ledger.blocks.key(life & ID_MASK) for life in hit.lives[group]] == [names[block] for block in here]
        assert all(shelf.ledger.blocks.epochs[life & ID_MASK] == life >> EPOCH_SHIFT for life in hit.lives[group])
        end = hit.tokens // tokens
        behind = range(max(reads.start, hit.device_tokens // tokens), end) if hit.host_tokens else range(0)
        chunks = dict.fromkeys(block // shelf.size for block in behind)
        assert [shelf.ledger.slots.key(slot) for slot in hit.slots[group]] == [
            names[(chunk + 1) * shelf.size - 1] for chunk in chunks
        ]


def test_content_on_its_way_to_the_host_defers() -> None:
    """It counts as a hit; a gap before it cancels it."""
    shelf = Shelf("full:4")
    shelf.in_host(0, 0)
    shelf.in_host(0, 1, landed=False)
    deferred = shelf.run(24)
    other = Shelf("full:4")
    other.in_host(0, 0)
    other.in_host(0, 2, landed=False)
    found = other.run(24)

    assert (deferred.tokens, deferred.deferred) == (8, True)
    assert (deferred.lives, deferred.slots) == ((), ())
    assert (found.tokens, found.deferred) == (4, False)


def test_content_on_its_way_to_the_device_defers() -> None:
    """Somebody loads it: it is waited for, not fetched twice, although the host has it."""
    shelf = Shelf("full:4")
    shelf.in_host(0, 0)
    shelf.loading[0, key(0, "abcd")] = "q"
    hit = shelf.run(24)

    assert (hit.tokens, hit.device_tokens, hit.deferred) == (4, 4, True)
    del shelf.loading[0, key(0, "abcd")]
    assert shelf.run(24).host_tokens == 4


def test_a_load_of_who_has_a_store_out_is_deferred() -> None:
    """Only where there is something to load."""
    shelf = Shelf("full:4")
    shelf.in_host(0, 0)
    batch = shelf.ledger.allocate("w", 1)
    shelf.ledger.seal(batch, [b"own"])
    shelf.ledger.plan_store(Store.of(Batch(batch.lives), [30], [b"own"], owner="r"))
    hit = shelf.run(24)

    assert (hit.tokens, hit.device_tokens, hit.deferred) == (4, 0, True)
    assert not shelf.run(3).deferred
    assert not shelf.run(24, host=False).deferred


def test_a_hit_names_its_step_and_request() -> None:
    """So that it can be refused in another one."""
    assert (Shelf("full:4").run(5).step, Shelf("full:4").run(5).request) == (7, "r")
