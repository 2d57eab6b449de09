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
from blocklife.groups import Group
from blocklife.offload import FullAttention, Geometry, Mamba, SlidingWindow
from blocklife.offload._lookup import Answer, Found, Unit, common_length
from blocklife.offload._search import unit_of

NUM_SEEDS = 30
WORLDS_A_SEED = 60
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


# --- by hand --------------------------------------------------------------------------------------------------------------

FULL, WINDOW = units((4, None)), units((4, 3))
TWO_FULL, NO_WINDOW = units((4, None), (4, None)), chunks_of(Geometry((FullAttention(4), SlidingWindow(8, 1))))
KINDS = chunks_of(Geometry((FullAttention(4), SlidingWindow(8, 17), Mamba(16))))
CHUNKS = chunks_of(Geometry((FullAttention(4), SlidingWindow(8, 33), Mamba(16)), 3))


@pytest.mark.parametrize(
    ("groups", "rows", "start", "length", "deferred"),
    [
        # a full group needs every unit from the start; what is on its way is waited for, unless a gap makes it useless
        (FULL, ["hh-hh"], 0, 8, False),
        (FULL, ["--hh"], 8, 16, False),
        (FULL, ["hph-"], 0, 12, True),
        (FULL, ["h-p"], 0, 4, False),
        (FULL, ["hrh-"], 0, 12, True),
        (TWO_FULL, ["hhp", "hh-h"], 0, 8, False),
        (TWO_FULL, ["hprh", "hh-h"], 0, 8, True),
        # a sliding group needs the last run that is as long as its window, or that reaches the beginning, or the start
        (WINDOW, ["---hhh-"], 0, 24, False),
        (WINDOW, ["hh-hh"], 0, 8, False),
        (WINDOW, ["--hh-hh"], 8, 16, False),
        (WINDOW, ["-hph-"], 0, 16, True),
        (WINDOW, ["phhh-"], 0, 16, False),
        # what has to be asked again ends a run there, and defers where more could be found with it
        (WINDOW, ["hhhhrhh"], 0, 16, True),
        (WINDOW, ["hhh-rh"], 0, 12, False),
        (units((4, None), (4, 3)), ["hhh--", "hhhrr"], 0, 12, False),
        # a window of no units agrees with each length at which one of its blocks ends
        (NO_WINDOW, ["hhhhh", ""], 0, 16, False),
        # three kinds agree on one length: the whole prefix, the last window, the last state; in blocks, and in chunks of three
        (KINDS, ["h" * 12, "---hh-", "h-h"], 0, 0, False),
        (KINDS, ["h" * 12, "---hhh", "h-h"], 0, 48, False),
        (KINDS, ["h" * 12, "--hh-h", "hhh"], 0, 32, False),
        (KINDS, ["h" * 7, "hhhh-h", "hhh"], 0, 16, False),
        (KINDS, ["h" * 12, "----hh", "hhh"], 32, 48, False),
        (CHUNKS, ["h" * 12, "--hhhh", "-hh"], 0, 144, False),
        (CHUNKS, ["h" * 12, "--hh--", "-hh"], 0, 96, False),
        (CHUNKS, ["h" * 7, "--hh--", "-hh"], 0, 0, False),
    ],
    ids=str,
)
def test_length_of_what_is_there(groups: list[Unit], rows: list[str], start: int, length: int, deferred: bool) -> None:
    """Worked out by hand, so that the oracle below is not alone; its worlds are of every kind."""
    assert found(groups, *rows, start=start) == (length, deferred)


@pytest.mark.parametrize(("limit", "length"), [(16, 16), (15, 8), (7, 0), (0, 0)])
def test_length_ends_where_a_unit_of_every_group_does(limit: int, length: int) -> None:
    """A limit between two boundaries is taken down to the one before it."""
    assert found(units((4, None), (8, 1)), "hhhhhhh", "hhhh", limit=limit) == (length, False)


@pytest.mark.parametrize(
    ("groups", "rows", "start", "limit", "asked"),
    [
        # nothing behind the first miss or the limit, nor behind what another full group has
        (FULL, ["hhhh-hh"], 4, 1000, [(0, index, 1) for index in (1, 2, 3, 4)]),
        (FULL, ["hhhhhhh"], 0, 13, [(0, index, 1) for index in (0, 1, 2)]),
        (TWO_FULL, ["hh-", "hhhh"], 0, 1000, [(0, 0, 1), (0, 1, 1), (0, 2, 1), (1, 0, 1), (1, 1, 1)]),
        # a window from the right, each unit once, over a gap to the next run
        (WINDOW, ["hhhhhh-hh-h"], 8, 44, [(0, index, 1) for index in (10, 9, 8, 7, 6, 5, 4, 3)]),
        # nothing where the start is all that there can be
        (units((4, None), (4, 1)), ["hhhh", "hhhh"], 12, 15, []),
        # the rest of a block, or of a chunk, in which the start lies; of the first chunk of a window its tail
        ([Unit(16, None, 4, 4)], ["hh"], 5, 32, [(0, 0, 3), (0, 1, 4)]),
        (chunks_of(Geometry((SlidingWindow(4, 26),), 4)), ["hhhh"], 0, 64, [(0, 3, 4), (0, 2, 3)]),
        (chunks_of(Geometry((SlidingWindow(4, 26),), 4)), ["hhhh"], 44, 64, [(0, 3, 4), (0, 2, 1)]),
        # full groups first, then the largest window in tokens
        (
            units((4, 1), (16, 1), (4, None)),
            ["hhhh", "h", "hhhh"],
            0,
            16,
            [*((2, at, 1) for at in range(4)), (1, 0, 1), (0, 3, 1)],
        ),
        # who has agreed is not asked again before somebody has shortened the length; of a doubt only its own group asks again
        (
            *(units((4, 2), (4, 1), (4, 3)), ["hhhhh", "hhhh-", "hhhhh"], 0, 20),
            [(group, at, 1) for group, at in [(2, 4), (2, 3), (2, 2), (0, 4), (0, 3), (1, 4), (1, 3)]]
            + [(group, at, 1) for group, at in [(2, 3), (2, 2), (2, 1), (0, 3), (0, 2)]],
        ),
        (
            *(units((4, 2), (4, 1)), ["hhhh", "hhhr"], 0, 16),
            [(group, at, 1) for group, at in [(0, 3), (0, 2), (1, 3), (1, 3), (1, 2), (0, 2), (0, 1)]],
        ),
    ],
    ids=str,
)
def test_no_more_is_asked_than_is_read(
    groups: list[Unit], rows: list[str], start: int, limit: int, asked: list[tuple[int, int, int]]
) -> None:
    """Group, unit, and how many blocks at its end."""
    tier = Tier(tuple(rows))
    common_length(groups, start, limit, tier)

    assert tier.asked == asked


def test_chunk_written_in_part_is_a_hit_where_its_tail_is_enough() -> None:
    """The same chunk ends a run that needs all of it, and begins one that needs its tail."""

    def ask(group: int, index: int, blocks: int) -> Answer:
        return Answer.HIT if index != 2 or blocks <= 3 else Answer.MISS

    groups = chunks_of(Geometry((SlidingWindow(4, 26),), 4))

    assert common_length(groups, 0, 64, ask).length == 64
    assert common_length(groups, 0, 48, ask).length == 32


def test_bound_of_sixteen_rounds_is_the_default() -> None:
    """S4: two groups that never both have the same unit are stopped, at the start; a shorter quarrel is fought out."""
    groups = units((1, 1), (1, 1))

    assert common_length(groups, 4, 100, Tier(("h-" * 50, "-h" * 50))) == Found(4, False, 16)
    assert common_length(groups, 4, 34, Tier(("h-" * 17, "-h" * 17))).rounds < 16


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
