"""Entries: a name fits one content, and nothing that was changed passes for what was kept."""

from __future__ import annotations

import itertools
import operator
import struct
import zlib
from collections.abc import Callable
from functools import reduce

import attrs
import pytest

from blocklife.errors import MisuseError
from blocklife.tiers import HEADER_BYTES, EntryVerdict, Identity, check, pack
from tests.tiers.arena import value

ROW_BYTES = 4096

IDENTITY = Identity(model="m", dtype="bfloat16", groups="full:16", blocks_per_chunk=2, slot_bytes=40, num_ranks=2)
NAME = IDENTITY.name(b"space", 0, 1, b"key")

OTHERS: dict[str, object] = {
    "model": "n",
    "dtype": "float16",
    "groups": "full:32",
    "blocks_per_chunk": 3,
    "slot_bytes": 41,
    "num_ranks": 3,
    "layout": "HND",
    "generation": "2",
}


def packed(identity: Identity = IDENTITY, name: bytes = NAME, payload: bytes = b"0123456789" * 4) -> bytearray:
    entry = bytearray(HEADER_BYTES) + bytearray(payload)
    pack(memoryview(entry), identity, name)
    return entry


def verdict(entry: bytes | bytearray, identity: Identity = IDENTITY, name: bytes = NAME) -> EntryVerdict:
    return check(memoryview(entry), identity, name)


def test_entry_is_good_for_what_it_was_made_for() -> None:
    entry = packed()

    assert verdict(entry) is EntryVerdict.GOOD
    assert entry[HEADER_BYTES:] == b"0123456789" * 4
    assert len(entry) == IDENTITY.entry_bytes == 296


def test_entry_with_any_byte_changed_is_no_content() -> None:
    """Every byte is flipped in each of its bits: those of the header, its padding and its checksum, and the payload."""
    entry = packed()
    for at, bit in itertools.product(range(len(entry)), range(8)):
        entry[at] ^= 1 << bit
        found = verdict(entry)
        assert found is not EntryVerdict.GOOD, (at, bit)
        assert found is (EntryVerdict.FOREIGN if at < 16 else EntryVerdict.DAMAGED), (at, bit)
        entry[at] ^= 1 << bit
    assert verdict(entry) is EntryVerdict.GOOD


def test_entry_that_is_cut_or_longer_is_no_content() -> None:
    """At any length; empty, too."""
    entry = packed()

    assert {verdict(entry[:length]) for length in range(len(entry))} == {EntryVerdict.DAMAGED}
    assert verdict(bytes(entry) + b"\0") is EntryVerdict.DAMAGED
    assert verdict(bytes(len(entry))) is EntryVerdict.FOREIGN


LARGE = attrs.evolve(IDENTITY, slot_bytes=5 * ROW_BYTES + 1003)


def large() -> bytearray:
    """An entry of five rows and some more bytes that are no whole words."""
    return packed(LARGE, payload=value("large", LARGE.slot_bytes))


def test_checksum_is_that_of_the_format() -> None:
    """Computed word by word, as the page of the format has it."""
    entry = large()
    payload = entry[HEADER_BYTES:]
    words = [word for (word,) in struct.iter_unpack("<Q", payload[: 5 * ROW_BYTES])]
    rows = [words[at : at + 512] for at in range(0, len(words), 512)]
    columns = [reduce(operator.xor, column) for column in zip(*rows, strict=True)]
    sums = [sum(row) % (1 << 64) for row in rows]

    of_columns = zlib.crc32(struct.pack("<512Q", *columns))
    of_rows = zlib.crc32(struct.pack("<5Q", *sums) + payload[5 * ROW_BYTES :])
    assert struct.unpack_from("<II", entry, 88) == (of_columns, of_rows)


def test_large_entry_with_any_bit_changed_is_no_content() -> None:
    entry = large()
    for at, bit in itertools.product(range(HEADER_BYTES, len(entry)), range(8)):
        if (at + bit) % 8 == 0:  # one bit of each byte, each bit in its turn
            entry[at] ^= 1 << bit
            assert check(memoryview(entry), LARGE, NAME) is EntryVerdict.DAMAGED, (at, bit)
            entry[at] ^= 1 << bit
    assert check(memoryview(entry), LARGE, NAME) is EntryVerdict.GOOD


def swapped(payload: bytes, one: slice, other: slice) -> bytes:
    made = bytearray(payload)
    made[one], made[other] = payload[other], payload[one]
    return bytes(made)


def changed(payload: bytes, *places: int) -> bytes:
    made = bytearray(payload)
    for at in places:
        made[at] ^= 0x80
    return bytes(made)


HARM: dict[str, Callable[[bytes], bytes]] = {
    "two rows changed places": lambda payload: swapped(payload, slice(0, ROW_BYTES), slice(2 * ROW_BYTES, 3 * ROW_BYTES)),
    "two sectors of two rows changed places": lambda payload: swapped(
        payload, slice(0, 512), slice(ROW_BYTES, ROW_BYTES + 512)
    ),
    "two words of a row changed places": lambda payload: swapped(payload, slice(0, 8), slice(80, 88)),
    "two last bytes changed places": lambda payload: swapped(payload, slice(-1, None), slice(-4, -3)),
    "a row is zeros": lambda payload: bytes(ROW_BYTES) + payload[ROW_BYTES:],
    "a row is another's": lambda payload: payload[ROW_BYTES : 2 * ROW_BYTES] + payload[ROW_BYTES:],
    "all is zeros": lambda payload: bytes(len(payload)),
    "all moved by a row": lambda payload: payload[ROW_BYTES:] + payload[:ROW_BYTES],
    "all moved by a word": lambda payload: payload[8:] + payload[:8],
    "all moved by a byte": lambda payload: payload[1:] + payload[:1],
    "the highest bit of a word in two rows": lambda payload: changed(payload, 7, ROW_BYTES + 7),
    "the highest bit of two words of a row": lambda payload: changed(payload, 7, 15),
    "the end was not written": lambda payload: payload[: 3 * ROW_BYTES] + bytes(len(payload) - 3 * ROW_BYTES),
    "another content": lambda payload: value("other", len(payload)),
}


@pytest.mark.parametrize("how", HARM)
def test_large_entry_that_was_harmed_is_no_content(how: str) -> None:
    """What disks, networks and programs do to it; what one of the two sums alone does not see, among others."""
    entry = large()
    payload = bytes(entry[HEADER_BYTES:])
    harmed = HARM[how](payload)
    assert len(harmed) == len(payload)
    assert harmed != payload
    entry[HEADER_BYTES:] = harmed

    assert check(memoryview(entry), LARGE, NAME) is EntryVerdict.DAMAGED


def test_entry_for_something_else_is_foreign() -> None:
    """Another identity, another name: each is told by a header that is whole."""
    assert verdict(packed(), name=IDENTITY.name(b"space", 0, 1, b"kez")) is EntryVerdict.FOREIGN
    for name in ("model", "dtype", "groups", "layout", "generation"):
        other = attrs.evolve(IDENTITY, **{name: OTHERS[name]})  # type: ignore[arg-type]
        assert verdict(packed(other)) is EntryVerdict.FOREIGN


def test_ranks_with_slots_of_other_sizes_share_names_and_not_entries() -> None:
    """The stages of a pipeline: each finds its own part by the same identity, and what has another size is no part of it."""
    first, second = (attrs.evolve(IDENTITY, uneven=True, slot_bytes=size) for size in (40, 48))
    name = first.name(b"space", 0, 1, b"key")

    assert first.fingerprint == second.fingerprint != IDENTITY.fingerprint
    assert name == second.name(b"space", 0, 1, b"key")
    assert verdict(packed(first, name), first, name) is EntryVerdict.GOOD
    assert verdict(packed(first, name), second, name) is EntryVerdict.DAMAGED


def test_pack_refuses_memory_of_another_size() -> None:
    with pytest.raises(MisuseError, match="295 bytes for one of 296"):
        pack(memoryview(bytearray(295)), IDENTITY, NAME)


def test_name_fits_one_content_alone() -> None:
    """Any difference in the identity, space, group, rank or key is another name; the bytes of two fields cannot be mixed up."""
    identities = [IDENTITY, *(attrs.evolve(IDENTITY, **{name: value}) for name, value in OTHERS.items())]  # type: ignore[arg-type]
    places = itertools.product((b"", b"s", b"sp"), (0, 1, 255), (0, 1), (b"", b"p", b"sp", b"k" * 99, b"k" * 98 + b"l"))
    names = [identity.name(*place) for place in list(places) for identity in identities]

    assert len(set(names)) == len(names) == 9 * 90
    assert {len(name) for name in names} == {32}
    assert len({identity.fingerprint for identity in identities}) == 9


def test_name_is_the_same_everywhere() -> None:
    """Pinned: what another process of this version has put is found. Another value needs another version of the format."""
    assert IDENTITY.fingerprint.hex() == "14d21664200a7778c17940b99890f3388bc5b722f5936994b9c228750cf0e415"
    assert NAME.hex() == "8f9866da18c2a4ce00efa9a0ce9b2fd124214c4bf7f51674aad2ef4125a4bb29"
    assert packed()[:16] == b"blocklif\x02\0\0\0\0\x01\0\0"


def test_texts_of_two_fields_cannot_be_mixed_up() -> None:
    one = attrs.evolve(IDENTITY, layout="ab", generation="c")
    two = attrs.evolve(IDENTITY, layout="a", generation="bc")

    assert one.fingerprint != two.fingerprint


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("model", "", "model is empty"),
        ("model", b"m", "model must be a text"),
        ("dtype", " ", "dtype is empty"),
        ("groups", "x" * 4097, "more than 4,096 bytes"),
        ("layout", None, "layout must be a text"),
        ("slot_bytes", 0, "slot_bytes must be a whole number"),
        ("slot_bytes", -5, "slot_bytes must be a whole number"),
        ("num_ranks", True, "num_ranks must be a whole number"),
        ("blocks_per_chunk", 1.0, "blocks_per_chunk must be a whole number"),
    ],
)
def test_identity_refuses_wrong_values(name: str, value: object, says: str) -> None:
    with pytest.raises(MisuseError, match=says):
        attrs.evolve(IDENTITY, **{name: value})  # type: ignore[arg-type]


def test_name_refuses_ranks_and_groups_that_cannot_be() -> None:
    with pytest.raises(MisuseError, match="no rank 2 among 2"):
        IDENTITY.name(b"", 0, 2, b"")
    with pytest.raises(MisuseError, match="no rank -1"):
        IDENTITY.name(b"", 0, -1, b"")
    with pytest.raises(MisuseError, match="-1 is no group"):
        IDENTITY.name(b"", -1, 0, b"")
