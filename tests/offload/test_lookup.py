"""The length that a lookup finds is the longest on which all groups agree, and it asks little for it.

Method: stories with units that can be counted on two hands; then random worlds beside an oracle that tries every length and
applies the definition block by block, without scans, jumps or rounds. The oracle is checked to have seen every kind of result.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from attrs import define, evolve, field, frozen

from blocklife.errors import MisuseError
from blocklife.offload._groups import FullAttention, Geometry, Group, Mamba, SlidingWindow
from blocklife.offload._lookup import Answer, Found, Unit, common_length
from blocklife.offload._search import unit_of

NUM_SEEDS = 150
WORLDS_A_SEED = 24
WITHOUT_BOUND = 1_000_000
LETTERS = {"h": Answer.HIT, "-": Answer.MISS, "p": Answer.PENDING, "r": Answer.RETRY}
MEANINGS = "h: hit, -: miss, p: pending, r: retry; what is not written is a miss"


def chunks_of(geometry: Geometry) -> list[Unit]:
    """The groups in units of the host tier."""
    return [unit_of(geometry, group, geometry.blocks_per_chunk) for group in range(len(geometry.groups))]


def units(*groups: tuple[int, int | None]) -> list[Unit]:
    """Groups whose units are one block: its tokens and the window."""
    return [Unit(tokens, window, 1, 1) for tokens, window in groups]


@define
class Tier:
    """What is there, one text a group and one letter a unit (`MEANINGS`), and every question that was asked."""

    rows: tuple[str, ...]
    asked: list[tuple[int, int, int]] = field(factory=list)

    def __call__(self, group: int, index: int, blocks: int) -> Answer:
        self.asked.append((group, index, blocks))
        row = self.rows[group]
        return LETTERS[row[index]] if index < len(row) else Answer.MISS

    def units(self, group: int) -> list[int]:
        """The units of a group in the order in which they were asked."""
        return [index for each, index, _ in self.asked if each == group]


def found(groups: Sequence[Unit], *rows: str, start: int = 0, limit: int = 1000, max_rounds: int = 16) -> tuple[int, bool]:
    """Length, and whether it is deferred."""
    result = common_length(groups, start, limit, Tier(rows), max_rounds=max_rounds)
    return result.length, result.deferred


# --- one full group -----------------------------------------------------------------------------------------------------

FULL = units((4, None))


def test_full_group_needs_every_unit_from_the_start() -> None:
    """The first gap ends the prefix, whatever follows."""
    assert found(FULL, "hh-hh") == (8, False)
    assert found(FULL, "-hhhh") == (0, False)
    assert found(FULL, "--hh", start=8) == (16, False)


def test_full_group_is_scanned_once_and_not_past_its_gap() -> None:
    """Each unit is asked once, from left to right, and nothing behind the first miss or the limit."""
    tier = Tier(("hhhh-hh",))
    common_length(FULL, 4, 1000, tier)
    to_the_limit = Tier(("hhhhhhh",))
    common_length(FULL, 0, 13, to_the_limit)

    assert tier.asked == [(0, index, 1) for index in (1, 2, 3, 4)]
    assert to_the_limit.units(0) == [0, 1, 2]


def test_second_full_group_is_not_asked_past_the_first() -> None:
    """What is longer than the first full group's prefix cannot be the answer."""
    tier = Tier(("hhh-", "hhhhhhhh"))
    result = common_length(units((4, None), (2, None)), 0, 1000, tier)

    assert result == Found(12, False, 0)
    assert tier.units(1) == [0, 1, 2, 3, 4, 5]


def test_pending_in_a_full_group_counts_and_defers_up_to_a_gap() -> None:
    """What is on its way is waited for, unless a gap before it makes it useless."""
    assert found(FULL, "hph-") == (12, True)
    assert found(FULL, "h-p") == (4, False)
    assert found(FULL, "-p") == (0, False)


def test_retry_in_a_full_group_ends_no_scan_and_defers() -> None:
    """Who has to ask again goes on asking about the rest meanwhile."""
    assert found(FULL, "hrh-") == (12, True)
    assert found(FULL, "r") == (4, True)
    assert found(FULL, "h-r") == (4, False)


@pytest.mark.parametrize("doubt", ["p", "r"])
def test_doubt_behind_the_final_length_does_not_count(doubt: str) -> None:
    """Another group ends the hit before the doubtful unit, so nobody waits for it."""
    groups = units((4, None), (4, None))

    assert found(groups, f"hhh{doubt}", "hh-h") == (8, False)
    assert found(groups, f"hh{doubt}h", "hh-h") == (8, False)
    assert found(groups, f"h{doubt}hh", "hh-h") == (8, True)


# --- one sliding group --------------------------------------------------------------------------------------------------

WINDOW = units((4, 3))


def test_sliding_group_needs_its_window_before_the_end() -> None:
    """The last run as long as the window is the answer; what is before it may be missing."""
    assert found(WINDOW, "---hhh-") == (24, False)
    assert found(WINDOW, "hhhh-hh") == (16, False)


def test_run_that_reaches_the_beginning_counts() -> None:
    """There is nothing before token 0 that could be missing."""
    assert found(WINDOW, "hh-hh") == (8, False)
    assert found(WINDOW, "-hh") == (0, False)


def test_run_that_reaches_the_start_counts() -> None:
    """What is before the start is on the device already, so the window needs less from here."""
    assert found(WINDOW, "--hh-hh", start=8) == (16, False)
    assert found(WINDOW, "---h", start=8) == (8, False)


def test_sliding_group_asks_no_unit_twice() -> None:
    """From the right, over each gap to the next run; units before the start and before the window are left alone."""
    tier = Tier(("hhhhhh-hh-h",))
    common_length(WINDOW, 8, 44, tier)

    assert tier.units(0) == [10, 9, 8, 7, 6, 5, 4, 3]


def test_pending_in_a_window_counts_and_defers() -> None:
    """Inside the window it is waited for; before the window it does not matter, and behind it the run is shorter anyway."""
    assert found(WINDOW, "-hph-") == (16, True)
    assert found(WINDOW, "phhh-") == (16, False)
    assert found(WINDOW, "hhh-p") == (12, False)


def test_retry_in_a_window_resets_the_run_and_defers() -> None:
    """It cannot be counted on, and what could be longer with it is worth asking for again."""
    assert found(WINDOW, "hhhhrhh") == (16, True)
    assert found(WINDOW, "hr") == (4, True)
    assert found(WINDOW, "r") == (0, True)
    assert found(WINDOW, "---r", start=12) == (12, True)


def test_retry_that_makes_no_difference_does_not_defer() -> None:
    """Where a miss ends the run anyway, or the window does not reach that far, nobody asks again."""
    assert found(WINDOW, "hhh-rh") == (12, False)
    assert found(WINDOW, "rhhh") == (16, False)
    assert found(units((4, None), (4, 3)), "hhh--", "hhhrr") == (12, False)
    assert found(units((4, 1), (4, 2)), "-r", "--") == (0, False)


def test_window_of_no_units_agrees_with_every_aligned_length() -> None:
    """A group whose tokens attend to themselves only is never asked, but a length still ends where its units do."""
    tier = Tier(("hhhhh", ""))
    groups = chunks_of(Geometry((FullAttention(4), SlidingWindow(8, 1))))

    assert common_length(groups, 0, 1000, tier) == Found(16, False, 0)
    assert tier.units(1) == []
    assert found(chunks_of(Geometry((SlidingWindow(8, 1),))), "", limit=30) == (24, False)


# --- where the lookup starts and ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "length"), [(16, 16), (15, 8), (9, 8), (8, 8), (7, 0), (1, 0), (0, 0)])
def test_length_ends_where_a_unit_of_every_group_does(limit: int, length: int) -> None:
    """A limit between two boundaries is taken down to the one before it."""
    assert found(units((4, None), (8, 1)), "hhhhhhh", "hhhh", limit=limit) == (length, False)


@pytest.mark.parametrize("limit", [12, 11, 0, -5, 15])
def test_limit_that_leaves_no_unit_asks_nothing(limit: int) -> None:
    """Nothing can be longer than what is there already, so the start is the answer."""
    tier = Tier(("hhhh", "hhhh"))

    assert common_length(units((4, None), (4, 1)), 12, limit, tier) == Found(12, False, 0)
    assert tier.asked == []


def test_unit_that_contains_the_start_is_read_only_behind_it() -> None:
    """Device hits end at blocks and chunks are longer: of the first chunk only the blocks behind the hit are asked for."""
    tier = Tier(("hhhh", "hhhh", "hhhh"))
    groups = chunks_of(Geometry((FullAttention(4), SlidingWindow(4, 1000), SlidingWindow(8, 9)), 4))
    result = common_length(groups, 24, 64, tier)

    assert result.length == 64
    assert [each for each in tier.asked if each[0] == 0] == [(0, 1, 2), (0, 2, 4), (0, 3, 4)]
    assert [each for each in tier.asked if each[0] == 1] == [(1, 3, 4), (1, 2, 4), (1, 1, 2)]
    assert [each for each in tier.asked if each[0] == 2] == [(2, 1, 1)]


def test_block_that_contains_the_start_is_read() -> None:
    """A start inside a block leaves the rest of that block to be read."""
    tier = Tier(("hh",))
    common_length([Unit(16, None, 4, 4)], 5, 32, tier)

    assert tier.asked == [(0, 0, 3), (0, 1, 4)]


def test_first_chunk_of_a_window_is_read_only_at_its_tail() -> None:
    """A window that ends inside a chunk leaves the chunk's head alone, unless it lies before the start as well."""
    groups = chunks_of(Geometry((SlidingWindow(4, 26),), 4))
    far, near = Tier(("hhhh",)), Tier(("hhhh",))
    common_length(groups, 0, 64, far)
    common_length(groups, 44, 64, near)

    assert far.asked == [(0, 3, 4), (0, 2, 3)]
    assert near.asked == [(0, 3, 4), (0, 2, 1)]


def test_chunk_written_in_part_is_a_hit_where_its_tail_is_enough() -> None:
    """The same chunk ends a run that needs all of it, and begins one that needs its tail."""

    def ask(group: int, index: int, blocks: int) -> Answer:
        return Answer.HIT if index != 2 or blocks <= 3 else Answer.MISS

    groups = chunks_of(Geometry((SlidingWindow(4, 26),), 4))

    assert common_length(groups, 0, 64, ask).length == 64
    assert common_length(groups, 0, 48, ask).length == 32


# --- groups together ----------------------------------------------------------------------------------------------------


def test_three_kinds_agree_on_one_length() -> None:
    """S4: the whole prefix in full groups, the last window in sliding ones, the last chunk in Mamba groups."""
    groups = chunks_of(Geometry((FullAttention(4), SlidingWindow(8, 17), Mamba(16))))
    tier = Tier(("h" * 12, "---hh-", "h-h"))

    assert [unit.window for unit in groups] == [None, 2, 1]
    # 48: the sliding group lacks [40, 48). 32: it lacks [16, 24) of its last 16 tokens. 16: it has neither of its units.
    assert common_length(groups, 0, 50, tier).length == 0
    assert found(groups, "h" * 12, "---hhh", "h-h") == (48, False)
    assert found(groups, "h" * 12, "--hh-h", "hhh") == (32, False)
    assert found(groups, "h" * 12, "hhhh-h", "h-h") == (16, False)
    assert found(groups, "h" * 7, "hhhh-h", "hhh") == (16, False)
    assert found(groups, "h" * 12, "------", "hhh", start=32) == (32, False)
    assert found(groups, "h" * 12, "----hh", "hhh", start=32) == (48, False)


def test_three_kinds_agree_in_chunks() -> None:
    """S4: the same with chunks of three blocks, where windows are rounded up to chunks and lengths end at chunks."""
    groups = chunks_of(Geometry((FullAttention(4), SlidingWindow(8, 33), Mamba(16)), 3))
    tier = Tier(("h" * 12, "--hhhh", "-hh"))

    assert [(unit.tokens, unit.window, unit.tail) for unit in groups] == [(12, None, 3), (24, 2, 1), (48, 1, 1)]
    assert common_length(groups, 0, 200, tier).length == 144
    # The window's 32 tokens before 144 are blocks 14 to 17: the last of chunk 4, and chunk 5; the state is in the last block.
    assert [each for each in tier.asked if each[0] == 1] == [(1, 5, 3), (1, 4, 1)]
    assert [each for each in tier.asked if each[0] == 2] == [(2, 2, 1)]
    assert found(groups, "h" * 12, "--hh--", "-hh") == (96, False)
    assert found(groups, "h" * 7, "--hh--", "-hh") == (0, False)


@pytest.mark.parametrize(("max_rounds", "length"), [(1, 0), (2, 0), (3, 8), (4, 8), (16, 8)])
def test_rounds_are_bounded(max_rounds: int, length: int) -> None:
    """S4: two groups that take turns at shortening the length are stopped; no agreement in time is a miss."""
    groups = units((2, 2), (2, 1))
    tier = Tier(("hhhhh-hh-", "hhhh--h--"))
    result = common_length(groups, 0, 18, tier, max_rounds=max_rounds)

    assert result == Found(length, False, min(max_rounds, 3))


def quarrel(rounds: int) -> Tier:
    """Two groups with windows of one unit, of which never both have the same unit."""
    return Tier(("h-" * rounds, "-h" * rounds))


def test_bound_of_sixteen_rounds_is_the_default() -> None:
    """S4: a quarrel that lasts longer ends after sixteen rounds, at the start; a shorter one is fought out."""
    groups = units((1, 1), (1, 1))

    assert common_length(groups, 4, 100, quarrel(50)) == Found(4, False, 16)
    assert common_length(groups, 4, 34, quarrel(17)).rounds < 16


def test_group_that_agreed_is_not_asked_again() -> None:
    """With nothing shortened since, a window is not scanned a second time, in a round or in the next."""
    groups = units((4, 2), (4, 1), (4, 3))
    tier = Tier(("hhhhh", "hhhh-", "hhhhh"))
    result = common_length(groups, 0, 20, tier)

    assert result == Found(16, False, 2)
    # Largest first, and all on 20; then the smallest shortens it to 16, and only the two others have to be asked again.
    assert tier.asked == [(group, index, 1) for group, index in [(2, 4), (2, 3), (2, 2), (0, 4), (0, 3), (1, 4), (1, 3)]] + [
        (group, index, 1) for group, index in [(2, 3), (2, 2), (2, 1), (0, 3), (0, 2)]
    ]


def test_retry_makes_only_its_own_group_ask_again() -> None:
    """The length without the doubtful unit is looked for below the one with it; who agreed on that is not asked once more."""
    tier = Tier(("hhhh", "hhhr"))
    result = common_length(units((4, 2), (4, 1)), 0, 16, tier)

    assert result == Found(12, True, 3)
    assert tier.asked == [(group, index, 1) for group, index in [(0, 3), (0, 2), (1, 3), (1, 3), (1, 2), (0, 2), (0, 1)]]


def test_largest_window_goes_first() -> None:
    """Size is in tokens: two units of 16 are more than three of 4, and full groups come before all."""
    tier = Tier(("hhhh", "h", "hhhh"))
    common_length(units((4, 3), (16, 2), (4, None)), 0, 16, tier)

    assert list(dict.fromkeys(group for group, _, _ in tier.asked)) == [2, 1, 0]


def test_admission_asks_a_full_group_once_and_windows_little() -> None:
    """A prompt of 500 chunks costs 500 questions for the full group and a window's worth for each of the others."""
    groups = chunks_of(Geometry((FullAttention(16), SlidingWindow(16, 1024), Mamba(16)), 4))
    tier = Tier(("h" * 500,) * 3)
    result = common_length(groups, 0, 500 * 64, tier)

    assert result == Found(500 * 64, False, 1)
    assert [len(tier.units(group)) for group in range(3)] == [500, 16, 1]


# --- a drafter ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "row", "limit", "length", "deferred"),
    [
        (None, "hhh", 3, 2, False),  # nothing proves the last unit
        (None, "hhhh", 3, 3, False),  # the unit behind the limit does
        (None, "h", 3, 0, False),
        (None, "hhph", 2, 2, False),  # nothing of a proof is read, so nobody waits for it
        (None, "hhr", 2, 2, True),
        (None, "hrhh", 1, 1, True),
        (2, "hhh", 3, 2, False),
        (2, "hhhh", 3, 3, False),
        (2, "hh", 2, 1, False),  # a window that begins at the start is shorter
        (2, "-hhh", 3, 3, False),
        (2, "-hhh", 4, 3, False),
        (2, "-hh", 3, 0, False),
        (2, "hhp", 2, 2, False),
        (2, "hhr", 2, 1, True),
        (0, "---h", 3, 3, False),  # a token that attends to itself only needs the proof alone
        (0, "-h--", 3, 1, False),
    ],
    ids=lambda value: str(value) or "-",
)
def test_hit_of_a_drafter_needs_the_unit_behind_it(
    window: int | None, row: str, limit: int, length: int, deferred: bool
) -> None:
    """A drafter computes what it keeps of a token from the next one, and the unit behind the hit begins with that."""
    group = Unit(1, window, 1, 1, proof=True)

    assert found([group], row, limit=limit) == (length, deferred)


def test_proof_is_asked_for_at_the_length_on_which_all_agree() -> None:
    """A group that shortens the hit moves the proof as well: the units that are there anyway prove the shorter one."""
    drafter, other = Unit(1, None, 1, 1, proof=True), Unit(1, None, 1, 1)

    assert found([drafter, other], "hhh", "h", limit=3) == (1, False)
    assert found([drafter, Unit(2, None, 1, 1)], "hhh", "hh", limit=4) == (2, False)
    assert found([drafter, Unit(2, None, 1, 1)], "hh", "hh", limit=4) == (0, False)


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        ((0, None, 1, 1), "0 tokens .* 1 blocks"),
        ((16, None, 0, 0), "16 tokens .* 0 blocks"),
        ((16, None, 3, 3), "16 tokens .* 3 blocks"),
        ((16, 1, 5, 4), "1 to 4.* not 5"),
        ((16, None, 5, 4), "1 to 4.* not 5"),
        ((16, 1, 0, 4), "1 to 4.* not 0"),
        ((16, -1, 1, 1), "window .* not -1"),
        ((16, True, 1, 1), "window .* not True"),
        ((True, 1, 1, 1), "tokens .* not True"),
        ((16.0, 1, 1, 1), r"tokens .* not 16\.0"),
        ((16, 1, -1, 1), "tail .* not -1"),
        ((16, 1, 1, None), "size .* not None"),
    ],
)
def test_units_that_cannot_be_are_refused(unit: tuple[int, int | None, int, int], message: str) -> None:
    """Blocks of a unit are equal and whole, and a window's tail lies in its unit; the message has both numbers."""
    with pytest.raises(MisuseError, match=message):
        Unit(*unit)


def test_lookups_that_mean_nothing_are_refused() -> None:
    """No groups would agree on anything; before token 0, and in no round, there is nothing to agree on."""
    with pytest.raises(MisuseError, match="at least 1 unit, not 0"):
        common_length([], 0, 16, Tier(()))
    with pytest.raises(MisuseError, match="start of at least 0, not -4"):
        common_length(FULL, -4, 16, Tier(("h",)))
    with pytest.raises(MisuseError, match="max_rounds of at least 1, not 0"):
        common_length(FULL, 0, 16, Tier(("h",)), max_rounds=0)


# --- beside the oracle --------------------------------------------------------------------------------------------------


@frozen
class World:
    """One lookup: groups, from where to where, and what is there.

    A unit is readable up to so many trailing blocks, unknown up to so many more, and missing beyond.
    """

    groups: tuple[Unit, ...]
    start: int
    limit: int
    there: dict[tuple[int, int], tuple[int, int, bool]]

    def answer(self, group: int, index: int, blocks: int) -> Answer:
        readable, unknown, pending = self.there.get((group, index), (0, 0, False))
        blocks = max(1, blocks)  # of a proof nothing is read, but it must be there
        if blocks <= readable:
            return Answer.PENDING if pending else Answer.HIT
        return Answer.RETRY if blocks <= unknown else Answer.MISS


def random_geometry(rng: random.Random) -> Geometry:
    """Two or three kinds of group, blocks of up to twelve tokens, chunks of up to four blocks."""
    base = rng.choice([1, 2, 3])
    groups: list[Group] = []
    for _ in range(rng.choice([1, 2, 2, 3, 3, 4])):
        tokens = base * rng.choice([1, 1, 1, 2, 2, 3, 4])
        window = rng.choice([1, 2, tokens, tokens + 1, rng.randint(1, 8 * tokens)])
        kinds: list[Group] = [
            FullAttention(tokens),
            FullAttention(tokens, drafter=True),
            SlidingWindow(tokens, window),
            SlidingWindow(tokens, window),
            SlidingWindow(tokens, window, drafter=True),
            Mamba(tokens),
        ]
        groups.append(rng.choice(kinds))
    return Geometry(groups, rng.choice([1, 1, 2, 3, 4]))


def random_units(rng: random.Random) -> list[Unit]:
    """Units of any sizes, such as no geometry has: their boundaries meet at multiples of 2, 3 and 5 blocks."""
    made = []
    for _ in range(rng.randint(1, 3)):
        size = rng.randint(1, 3)
        window = rng.choice([None, 0, 1, 2, 3, 5])
        made.append(Unit(size * rng.choice([1, 2, 3, 5]), window, rng.randint(1, size), size, rng.random() < 0.2))
    return made


def random_world(rng: random.Random) -> World:
    """A lookup in which most units are there, so that runs get long enough to be broken."""
    groups = random_units(rng) if rng.random() < 0.3 else chunks_of(random_geometry(rng))
    largest = max(unit.tokens for unit in groups)
    limit = rng.randint(0, 10 * largest)
    block = min(unit.tokens // unit.size for unit in groups)
    start = rng.choice([0, 0, block * rng.randint(0, limit // block), rng.randint(0, limit + 3)])
    missing, doubtful = rng.choice([0.02, 0.1, 0.3]), rng.choice([0.0, 0.05, 0.2])
    there = {}
    for group, unit in enumerate(groups):
        for index in range(limit // unit.tokens + rng.choice([1, 1, 2])):
            readable = 0 if rng.random() < missing else rng.choice([unit.size, unit.size, rng.randint(0, unit.size)])
            unknown = unit.size if rng.random() < doubtful else rng.randint(readable, unit.size) if doubtful else readable
            if unknown > readable and rng.random() < 0.5:
                readable = rng.randint(0, readable)
            there[group, index] = readable, unknown, rng.random() < doubtful
    return World(tuple(groups), start, limit, there)


def reads(world: World, group: int, length: int) -> Counter[int]:
    """How many blocks of each unit a hit of that length reads: the definition, one block at a time."""
    unit = world.groups[group]
    block_tokens, end = unit.tokens // unit.size, length // unit.tokens * unit.size
    if unit.window is None:
        first = 0
    elif unit.window == 0:
        first = end
    else:
        first = end - ((unit.window - 1) * unit.size + unit.tail)
    return Counter(block // unit.size for block in range(max(0, first), end) if (block + 1) * block_tokens > world.start)


def answers(world: World, length: int, sliding: bool) -> list[Answer]:
    """What the full groups, or the sliding ones, say to all that a length reads."""
    groups = [group for group, unit in enumerate(world.groups) if (unit.window is not None) is sliding]
    read = [world.answer(group, index, blocks) for group in groups for index, blocks in reads(world, group, length).items()]
    units = {group: world.groups[group].tokens for group in groups if world.groups[group].proof}
    proofs = [world.answer(group, length // tokens, 0) for group, tokens in units.items()]
    return read + [Answer.HIT if answer is Answer.PENDING else answer for answer in proofs]


def longest(world: World, *, hopeful: bool) -> int:
    """The longest length on which all agree, every one tried; *hopeful*: a RETRY is a hit in sliding groups, too."""
    refused = {Answer.MISS} if hopeful else {Answer.MISS, Answer.RETRY}
    good = [
        length
        for length in range(world.start + 1, world.limit + 1)
        if all(length % unit.tokens == 0 for unit in world.groups)
        and Answer.MISS not in answers(world, length, sliding=False)
        and not refused & set(answers(world, length, sliding=True))
    ]
    return max(good, default=world.start)


def unproven(world: World) -> tuple[Unit, ...]:
    """The same groups without a drafter."""
    return tuple(evolve(unit, proof=False) for unit in world.groups)


def oracle(world: World) -> tuple[int, bool]:
    """Length, and whether it is deferred, by the definition."""
    length = longest(world, hopeful=False)
    read = {*answers(world, length, sliding=False), *answers(world, length, sliding=True)} if length > world.start else set()
    return length, bool(read & {Answer.PENDING, Answer.RETRY}) or longest(world, hopeful=True) > length


def worlds(seed: int) -> list[World]:
    """The worlds of one seed."""
    rng = random.Random(seed)
    return [random_world(rng) for _ in range(WORLDS_A_SEED)]


@pytest.mark.parametrize("seed", range(NUM_SEEDS), ids="seed={}".format)
def test_length_is_what_the_definition_says(seed: int) -> None:
    """Length and deferral are the oracle's, whatever the groups, the start, the limit and the answers."""
    for world in worlds(seed):
        result = common_length(world.groups, world.start, world.limit, world.answer, max_rounds=WITHOUT_BOUND)

        assert (result.length, result.deferred) == oracle(world), world


@pytest.mark.parametrize("seed", range(NUM_SEEDS), ids="seed={}".format)
def test_questions_are_few_and_lawful(seed: int) -> None:
    """Full groups are asked once a unit, sliding ones no more than one walk to the left and a window a round."""
    for world in worlds(seed):
        asked: list[tuple[int, int, int]] = []

        def ask(group: int, index: int, blocks: int, world: World = world, asked: list[tuple[int, int, int]] = asked) -> Answer:
            asked.append((group, index, blocks))
            return world.answer(group, index, blocks)

        result = common_length(world.groups, world.start, world.limit, ask, max_rounds=WITHOUT_BOUND)

        for group, unit in enumerate(world.groups):
            mine = [(index, blocks) for each, index, blocks in asked if each == group]
            proofs, mine = [each for each in mine if not each[1]], [each for each in mine if each[1]]
            assert all(world.start < index * unit.tokens <= world.limit for index, _ in proofs), world
            assert len(proofs) <= unit.proof * (2 * world.limit // unit.tokens + result.rounds + 1), world
            assert all(1 <= blocks <= unit.size for _, blocks in mine), world
            assert all(world.start < (index + 1) * unit.tokens <= world.limit for index, _ in mine), world
            if unit.window is None:
                assert len({index for index, _ in mine}) == len(mine), world
            else:
                assert len(mine) <= world.limit // unit.tokens + unit.window * result.rounds, world


@pytest.mark.parametrize("max_rounds", [1, 2, 3])
def test_bound_gives_the_answer_or_a_miss(max_rounds: int) -> None:
    """With few rounds a lookup finds what it would find without a bound, or nothing; both happen."""
    outcomes: Counter[bool] = Counter()
    for seed in range(NUM_SEEDS):
        for world in worlds(seed):
            free = common_length(world.groups, world.start, world.limit, world.answer, max_rounds=WITHOUT_BOUND)
            bound = common_length(world.groups, world.start, world.limit, world.answer, max_rounds=max_rounds)
            outcomes[bound == free] += 1

            assert bound == (free if free.rounds <= max_rounds else Found(world.start, False, max_rounds)), world

    assert min(outcomes[True], outcomes[False]) >= 5


def test_worlds_are_of_every_kind() -> None:
    """The oracle has not spoken of empty worlds only: hits, misses and every cause of deferral are among them."""
    kinds: Counter[str] = Counter()
    for world in (world for seed in range(NUM_SEEDS) for world in worlds(seed)):
        length, deferred = oracle(world)
        full = set(answers(world, length, sliding=False)) if length > world.start else set()
        sliding = set(answers(world, length, sliding=True)) if length > world.start else set()
        kinds["miss"] += length == world.start and not deferred
        kinds["hit"] += length > world.start and not deferred
        kinds["hit behind a start"] += length > world.start > 0
        kinds["start inside a unit"] += length > world.start and any(world.start % unit.tokens for unit in world.groups)
        kinds["less than the limit"] += world.start < length < world.limit - max(unit.tokens for unit in world.groups)
        kinds["groups of several sizes"] += length > world.start and len({unit.tokens for unit in world.groups}) > 1
        kinds["pending, full"] += full == {Answer.HIT, Answer.PENDING}
        kinds["pending, sliding"] += Answer.PENDING in sliding and full <= {Answer.HIT}
        kinds["retry, full"] += Answer.RETRY in full
        kinds["retry, sliding"] += deferred and not (full | sliding) & {Answer.PENDING, Answer.RETRY}
        kinds["deferred miss"] += deferred and length == world.start
        kinds["window of none"] += length > world.start and any(unit.window == 0 for unit in world.groups)
        kinds["proof"] += length > world.start and any(unit.proof for unit in world.groups)
        kinds["no proof"] += length < oracle(evolve(world, groups=unproven(world)))[0]
        kinds["several windows"] += length > world.start and sum(bool(unit.window) for unit in world.groups) > 1

    assert len(kinds) == 15
    assert min(kinds.values()) >= 20, kinds


def test_answers_are_four() -> None:
    """Each answer has a meaning of its own, so that none is another by a second name."""
    assert [each.name for each in Answer] == ["HIT", "MISS", "PENDING", "RETRY"]
    assert len({each.value for each in Answer}) == 4
