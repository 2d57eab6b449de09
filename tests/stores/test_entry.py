"""Entries: a name fits one content, and nothing that was changed passes for what was kept."""

from __future__ import annotations

import itertools

import attrs
import pytest

from blocklife.errors import MisuseError
from blocklife.stores import HEADER_BYTES, EntryVerdict, Identity, check, pack

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


def test_entry_for_something_else_is_foreign() -> None:
    """Another identity, another name: each is told by a header that is whole."""
    assert verdict(packed(), name=IDENTITY.name(b"space", 0, 1, b"kez")) is EntryVerdict.FOREIGN
    for name in ("model", "dtype", "groups", "layout", "generation"):
        other = attrs.evolve(IDENTITY, **{name: OTHERS[name]})  # type: ignore[arg-type]
        assert verdict(packed(other)) is EntryVerdict.FOREIGN


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
    assert IDENTITY.fingerprint.hex() == "262877d639f63b619dd1046fc444daf1e358ca4931c8009da0c0567efc4e6556"
    assert NAME.hex() == "1aa66418dc0d9ff61db9919be0d0237986c817fcd239b8130355a7d69afa0e27"
    assert packed()[:16] == b"blocklif\x01\0\0\0\0\x01\0\0"


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
