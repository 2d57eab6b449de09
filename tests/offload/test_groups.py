"""A geometry says how far back each kind of attention reads, in blocks and in chunks, and refuses sizes that do not fit.

Method: sizes that can be checked by hand, then every small window beside a token-by-token count that uses no division.
"""

from __future__ import annotations

import copy
import pickle
from typing import cast

import attrs
import pytest

from blocklife.errors import MisuseError
from blocklife.groups import Group
from blocklife.offload import FullAttention, Geometry, LocalAttention, Mamba, SlidingWindow
from blocklife.offload._search import unit_of

SMALL_WINDOWS = [(block, window, chunk) for block in (1, 2, 3, 4) for window in range(1, 26) for chunk in (1, 2, 3)]


def hybrid(blocks_per_chunk: int = 1) -> Geometry:
    """One group of each kind, with three sizes of block."""
    return Geometry((FullAttention(4), SlidingWindow(8, 33), Mamba(16)), blocks_per_chunk)


def attended(group: Group, length: int) -> set[int]:
    """Tokens whose content the token at *length* reads, itself left out."""
    if isinstance(group, FullAttention):
        return set(range(length))
    if isinstance(group, Mamba):
        return set(range(length)) & {length - 1}
    if isinstance(group, LocalAttention):
        return {token for token in range(length) if token // group.part_tokens == length // group.part_tokens}
    return {token for token in range(length) if length - token < group.window_tokens}


def blocks_of(tokens: set[int], block_tokens: int) -> set[int]:
    """The blocks that hold these tokens."""
    return {token // block_tokens for token in tokens}


# --- what follows from the sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("block", "window", "chunk"), SMALL_WINDOWS)
def test_windows_agree_with_a_count_of_tokens(block: int, window: int, chunk: int) -> None:
    """Blocks needed, blocks and chunks of a window, and the tail of its first chunk are what counting tokens gives."""
    group = SlidingWindow(block, window)
    geometry = Geometry((group,), chunk)
    for length in range(60):
        begun = {length // block} if length % block else set[int]()
        assert set(geometry.needed(0, length)) == blocks_of(attended(group, length), block) | begun

    # Far from the beginning, at the end of a chunk, a window has its full size.
    end = 60 * block * chunk
    read = blocks_of(attended(group, end), block)
    chunks = {each // chunk for each in read}
    assert geometry.window_blocks == (len(read),)
    assert geometry.window_chunks == (len(chunks),)
    assert unit_of(geometry, 0, chunk).tail == sum(each // chunk == min(chunks) for each in read)


@pytest.mark.parametrize("part", [4, 6, 8, 12, 3])
@pytest.mark.parametrize("chunk", [1, 2])
def test_local_attention_agrees_with_a_count_of_tokens(part: int, chunk: int) -> None:
    """Blocks needed are what counting tokens gives; a window in chunks is the most that any length needs."""
    group = LocalAttention(4, part)
    geometry = Geometry((group,), chunk)
    most = 0
    for length in range(120):
        read = blocks_of(attended(group, length), 4)
        begun = {length // 4} if length % 4 else set[int]()
        assert set(geometry.needed(0, length)) >= read | begun
        assert set(geometry.needed(0, length)) - read - begun <= {length // part * part // 4}
        if length % (4 * chunk) == 0:
            most = max(most, len({each // chunk for each in read}))

    assert geometry.window_blocks == (-(-part // 4),)
    assert geometry.window_chunks == (-(-part // (4 * chunk)),)
    assert most <= -(-part // (4 * chunk)) + (part % (4 * chunk) > 0)


def test_geometry_is_a_plain_record() -> None:
    """Equal sizes make equal geometries, also after a copy and in another process; nothing in one can be changed."""
    geometry = hybrid(3)

    assert geometry == Geometry([FullAttention(4), SlidingWindow(8, 33), Mamba(16)], 3)
    assert geometry != hybrid(2)
    assert len({geometry, hybrid(3)}) == 1
    for other in (pickle.loads(pickle.dumps(geometry)), copy.deepcopy(geometry)):
        assert (other, other.chunk_tokens, other.window_chunks) == (geometry, geometry.chunk_tokens, geometry.window_chunks)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        geometry.blocks_per_chunk = 1  # type: ignore[misc]


# --- what is refused ----------------------------------------------------------------------------------------------------


def test_number_of_groups_has_bounds() -> None:
    """There is at least one group, and there are at most 256."""
    with pytest.raises(MisuseError, match=r"1 to 256 groups, not 0"):
        Geometry(())
    with pytest.raises(MisuseError, match=r"1 to 256 groups, not 257"):
        Geometry([FullAttention(16)] * 257)

    assert len(Geometry([FullAttention(16)] * 256).block_tokens) == 256


@pytest.mark.parametrize("blocks_per_chunk", [0, -1, True, 2.0, "2"])
def test_chunks_have_a_whole_number_of_blocks(blocks_per_chunk: object) -> None:
    """A chunk has at least one block, and a bool is no number."""
    with pytest.raises(MisuseError, match=rf"blocks_per_chunk .*at least 1, not {blocks_per_chunk!r}"):
        Geometry((FullAttention(16),), cast(int, blocks_per_chunk))


def test_chunks_have_a_largest_size() -> None:
    """Sixty-four blocks make a chunk, one more does not."""
    with pytest.raises(MisuseError, match=r"at most 64, not 65"):
        Geometry((FullAttention(16),), 65)

    assert Geometry((FullAttention(16),), 64).chunk_tokens == (1024,)


@pytest.mark.parametrize("tokens", [0, -16, True, 16.0, None])
@pytest.mark.parametrize("kind", [FullAttention, Mamba, SlidingWindow])
def test_blocks_have_a_whole_number_of_tokens(kind: type[Group], tokens: object) -> None:
    """No group has blocks of no tokens, or of something that is no number."""
    sizes = [tokens, 64] if kind is SlidingWindow else [tokens]
    with pytest.raises(MisuseError, match=rf"block_tokens of {kind.__name__} .*at least 1, not {tokens!r}"):
        cast(type[SlidingWindow], kind)(*cast(list[int], sizes))


@pytest.mark.parametrize("tokens", [0, -1, False, 1.5])
def test_windows_have_a_whole_number_of_tokens(tokens: object) -> None:
    """A token attends to itself at least."""
    with pytest.raises(MisuseError, match=rf"window_tokens .*at least 1, not {tokens!r}"):
        SlidingWindow(16, cast(int, tokens))


def test_what_is_no_group_is_refused() -> None:
    """A size alone does not say what kind of group it is."""
    with pytest.raises(MisuseError, match=r"group 1 must be .*not 16"):
        Geometry(cast(list[Group], [FullAttention(16), 16]))


def test_needed_refuses_a_length_below_zero() -> None:
    """A request cannot continue before its first token."""
    with pytest.raises(MisuseError, match=r"at least 0, not -1"):
        hybrid().needed(0, -1)


# --- layers of a drafter ------------------------------------------------------------------------------------------------


def test_geometry_knows_the_groups_of_a_drafter() -> None:
    """Attention only: a state has no position that a drafter could write."""
    geometry = Geometry([FullAttention(16), SlidingWindow(16, 64, drafter=True), Mamba(16), FullAttention(16, drafter=True)])

    assert geometry.drafters == (False, True, False, True)


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_drafter_is_yes_or_no(value: object) -> None:
    """A number that could be meant for a window is refused."""
    with pytest.raises(MisuseError, match="drafter of FullAttention must be a bool"):
        FullAttention(16, drafter=value)  # type: ignore[arg-type]  # the point of this test
    with pytest.raises(MisuseError, match="drafter of SlidingWindow must be a bool"):
        SlidingWindow(16, 64, drafter=value)  # type: ignore[arg-type]  # the point of this test


# --- tails --------------------------------------------------------------------------------------------------------------


def test_geometry_knows_where_a_prefix_may_end() -> None:
    """Inside a block, at a multiple of some tokens; and written behind the groups."""
    geometry = Geometry([FullAttention(16), Mamba(16)], tail_tokens=4)

    assert str(geometry) == "full:16,mamba:16/4"
    assert Geometry.parse(str(geometry)) == geometry
    assert Geometry([FullAttention(16)]).tail_tokens is None


@pytest.mark.parametrize(
    ("text", "chunk", "message"),
    [
        ("full:16/16", 1, "a part of a block of 16 tokens, and less, not 16"),
        ("full:16/5", 1, "a part of a block of 16 tokens, and less, not 5"),
        ("full:16/0", 1, "a part of a block of 16 tokens, and less, not 0"),
        ("full:16,full:32/4", 1, r"needs blocks of one size, not of \[16, 32\]"),
        ("full:16/4", 2, "needs blocks_per_chunk=1, not 2"),
        ("full:16,swa:16:32/4", 1, r"group 1 \(swa:16:32\) has no tails"),
        ("full:16,local:16:64/4", 1, r"group 1 \(local:16:64\) has no tails"),
        ("swa:16:32+drafter/4", 1, r"group 0 \(swa:16:32\+drafter\) has no tails"),
        ("full:16/", 1, "behind / comes a whole number"),
        ("full:16/4/4", 1, "behind / comes a whole number"),
    ],
)
def test_groups_without_tails_are_refused(text: str, chunk: int, message: str) -> None:
    """One boundary must say of every group which block it lies in, and that all before it is needed."""
    with pytest.raises(MisuseError, match=message):
        Geometry.parse(text, chunk)


@pytest.mark.parametrize("value", [1.5, "4", True])
def test_tail_tokens_is_a_number(value: object) -> None:
    """No other type is taken for one."""
    with pytest.raises(MisuseError, match="tail_tokens must be a part of a block"):
        Geometry([FullAttention(16)], tail_tokens=value)  # type: ignore[arg-type]  # the point of this test


# --- as a text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "full:16",
        "swa:16:1024",
        "mamba:16",
        "full:16,swa:16:1024,mamba:16",
        "swa:4:1,swa:8:9,full:64",
        "full:16+drafter,swa:8:9+drafter",
        "full:16,local:16:8192",
    ],
)
def test_text_and_geometry_are_the_same(text: str) -> None:
    """What is parsed is written again as it was."""
    geometry = Geometry.parse(text, 2)

    assert str(geometry) == text
    assert geometry.blocks_per_chunk == 2
    assert Geometry.parse(str(geometry), 2) == geometry


def test_text_names_the_groups_in_their_order() -> None:
    """Each part of a text is one group, the first one number 0, and a chunk is one block unless more are asked for."""
    assert Geometry.parse("full:4,swa:8:33,mamba:16") == hybrid(1)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", ""),
        ("16", "16"),
        ("full", "full"),
        ("full:", "full:"),
        ("full:16,", ""),
        ("full:16,,mamba:16", ""),
        ("full:16:16", "full:16:16"),
        ("swa:16", "swa:16"),
        ("swa:16:32:64", "swa:16:32:64"),
        ("mamba:16,window:16", "window:16"),
        ("FULL:16", "FULL:16"),
        (" full:16", " full:16"),
        ("full: 16", "full: 16"),
        ("full:+16", "full:+16"),
        ("full:-16", "full:-16"),
        ("full:1_6", "full:1_6"),
        ("full:16.0", "full:16.0"),
        ("full:²", "full:²"),
        ("full:１６", "full:１６"),
        ("full:" + "9" * 5000, "9999"),
        ("full:16;mamba:16", "full:16;mamba:16"),
        ("mamba:16+drafter", "mamba:16+drafter"),
        ("full:16+drafter+drafter", "full:16+drafter+drafter"),
        ("+drafter", "+drafter"),
    ],
    ids=lambda each: repr(each)[:24],
)
def test_text_that_is_no_geometry_is_refused(text: str, part: str) -> None:
    """The message quotes the part that could not be read, and says what can be."""
    with pytest.raises(
        MisuseError, match=r"is not a valid group; expected full:BLOCK, swa:BLOCK:WINDOW, local:BLOCK:PART or mamba:BLOCK"
    ) as refused:
        Geometry.parse(text)

    assert part in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("full:0", "at least 1, not 0"),
        ("swa:16:0", "at least 1, not 0"),
        (",".join(["full:16"] * 257), "1 to 256 groups, not 257"),
    ],
    ids=["block", "window", "groups"],
)
def test_text_is_checked_like_a_geometry(text: str, message: str) -> None:
    """A text that can be read is refused for the same sizes, with the same words."""
    with pytest.raises(MisuseError, match=message):
        Geometry.parse(text)
