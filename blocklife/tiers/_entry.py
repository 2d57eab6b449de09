"""What is kept in a store: entries, which say what they were made for, and can be checked.

*Theory.* What lies below is found again by other processes, other versions, perhaps other models. Two things keep it apart. A
**name** is a hash of the identity, the space, the group, the rank and the engine's key, so that content of another kind is
never asked for. A **header** says the same again, with a checksum, so that what comes back under a name is content only if it
is what was asked for, byte for byte.

*What is trusted.* The key of the engine: two contents with one key are one content. Nothing that comes from a store.

*What is not here, and why.* No secret: the checksum finds damage, not forgery. Who can write to the store can write content.

An entry is a header of 256 bytes, then the payload, the bytes of one slot of one rank. All numbers are little-endian.

======  =====  ==============================================
offset  bytes  what
======  =====  ==============================================
0       8      ``blocklif``
8       4      version of the format
12      4      size of the header
16      32     fingerprint of the identity
48      32     the entry's own name
80      8      size of the payload
88      4      crc32 of the payload's columns
92      4      crc32 of the payload's rows, and its last bytes
96      156    zeros
252     4      crc32 of the 252 bytes before
======  =====  ==============================================

*The checksum of the payload* is that of `blocklife.copiers._checksum`: of its columns, and of its rows and last bytes.
"""

from __future__ import annotations

import enum
import hashlib
import struct
import zlib

from attrs import field, frozen

from blocklife.copiers._checksum import checksum
from blocklife.errors import MisuseError
from blocklife.tiers._protocol import KEY_BYTES

HEADER_BYTES = 256
"""The size of the header of an entry."""
FORMAT_VERSION = 2
"""The version of the format. It is part of every name, so that versions never meet."""

_MAGIC = b"blocklif"
_FIELDS = struct.Struct("<8sII32s32sQII")
_CRC = struct.Struct("<I")
_CRC_AT = HEADER_BYTES - _CRC.size
_PADDING = bytes(_CRC_AT - _FIELDS.size)
_LENGTH = struct.Struct("<Q")
_PLACE = struct.Struct("<II")
_TEXT_MAX = 4096


class EntryVerdict(enum.Enum):
    """What a check of an entry says."""

    GOOD = "it is what was asked for, byte for byte"
    FOREIGN = "it was made for something else: another version, identity or name"
    DAMAGED = "it is cut or changed"

    __hash__ = object.__hash__  # each member is a singleton, so identity is enough


def _text(identity: object, attribute: object, value: object) -> None:
    name = getattr(attribute, "name", "value")
    if type(value) is not str:
        raise MisuseError(f"identity: {name} must be a text, not {value!r}")
    if len(value.encode("utf-8", "surrogatepass")) > _TEXT_MAX:
        raise MisuseError(f"identity: {name} has more than {_TEXT_MAX:,} bytes (give a short name, or a hash)")


def _named(identity: object, attribute: object, value: str) -> None:
    _text(identity, attribute, value)
    if not value.strip():
        raise MisuseError(f"identity: {getattr(attribute, 'name', 'value')} is empty (say what the content was made for)")


def _count(identity: object, attribute: object, value: int) -> None:
    if type(value) is not int or not 0 < value < 1 << 63:
        name = getattr(attribute, "name", "value")
        raise MisuseError(f"identity: {name} must be a whole number of at least 1, not {value!r}")


@frozen(kw_only=True)
class Identity:
    """What content was made for. Two processes share content if all fields are equal; *uneven* slots may differ in size."""

    model: str = field(validator=_named)
    """The model and its weights, as exactly as the operator can say: a name and a revision, or a hash."""
    dtype: str = field(validator=_named)
    """The type of the cache's elements."""
    groups: str = field(validator=_named)
    """The groups of the cache, such as ``full:16,swa:16:1024``."""
    blocks_per_chunk: int = field(validator=_count)
    slot_bytes: int = field(validator=_count)
    """Bytes of one slot of this rank: the payload of an entry."""
    uneven: bool = field(default=False)
    """Whether other ranks have slots of other sizes, as on the stages of a pipeline. Then the fingerprint leaves sizes out."""
    num_ranks: int = field(validator=_count)
    """How many parts content has: one for each rank, or for each group of ranks that share slots."""
    layout: str = field(default="", validator=_text)
    """How bytes lie in a slot, where that can differ otherwise."""
    generation: str = field(default="", validator=_text)
    """Anything; change it to leave all content behind."""
    fingerprint: bytes = field(init=False, repr=False, eq=False)
    """32 bytes that differ for different identities, and for versions of the format."""

    def __attrs_post_init__(self) -> None:
        texts = (self.model, self.dtype, self.groups, self.layout, self.generation)
        numbers = (FORMAT_VERSION, self.blocks_per_chunk, 0 if self.uneven else self.slot_bytes, self.num_ranks)
        parts = [*(text.encode("utf-8", "surrogatepass") for text in texts), *(_LENGTH.pack(number) for number in numbers)]
        made = hashlib.blake2b(_prefixed(*parts), digest_size=32, person=b"blocklife model").digest()
        object.__setattr__(self, "fingerprint", made)

    @property
    def entry_bytes(self) -> int:
        """The size of an entry: its header, and the bytes of one slot."""
        return HEADER_BYTES + self.slot_bytes

    def name(self, space: bytes, group: int, rank: int, key: bytes) -> bytes:
        """The name of one rank's part of some content: 32 bytes that fit this identity, space, group, rank and key alone.

        Refuses: MisuseError for a group or a rank that cannot be.
        """
        if not 0 <= rank < self.num_ranks:
            raise MisuseError(f"identity: there is no rank {rank} among {self.num_ranks}")
        if not 0 <= group < 1 << 32:
            raise MisuseError(f"identity: {group} is no group")
        data = _prefixed(_PLACE.pack(group, rank), space, key)
        return hashlib.blake2b(data, digest_size=KEY_BYTES, key=self.fingerprint, person=b"blocklife entry").digest()


def _prefixed(*parts: bytes) -> bytes:
    """The parts, each behind its length, so that no two lists of parts give the same bytes."""
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def pack(entry: memoryview, identity: Identity, name: bytes) -> None:
    """Write the header of an entry whose payload is in its place already. *entry* is bytes, the size of the whole entry.

    Refuses: MisuseError for memory of another size.
    """
    if len(entry) != identity.entry_bytes:
        raise MisuseError(f"entry: memory of {len(entry)} bytes for one of {identity.entry_bytes} (give the entry's size)")
    sums = checksum(entry[HEADER_BYTES:])
    fields = _FIELDS.pack(_MAGIC, FORMAT_VERSION, HEADER_BYTES, identity.fingerprint, name, identity.slot_bytes, *sums)
    header = fields + _PADDING
    entry[:HEADER_BYTES] = header + _CRC.pack(zlib.crc32(header))


def check(entry: memoryview, identity: Identity, name: bytes) -> EntryVerdict:
    """Whether an entry is what was asked for; its payload is content only if the verdict is GOOD."""
    if len(entry) < HEADER_BYTES:
        return EntryVerdict.DAMAGED
    magic, version, header_bytes, fingerprint, own_name, payload_bytes, *sums = _FIELDS.unpack_from(entry)
    if (magic, version, header_bytes) != (_MAGIC, FORMAT_VERSION, HEADER_BYTES):
        return EntryVerdict.FOREIGN
    if zlib.crc32(entry[:_CRC_AT]) != _CRC.unpack_from(entry, _CRC_AT)[0]:
        return EntryVerdict.DAMAGED
    if (fingerprint, own_name) != (identity.fingerprint, name):
        return EntryVerdict.FOREIGN
    if not payload_bytes == identity.slot_bytes == len(entry) - HEADER_BYTES:
        return EntryVerdict.DAMAGED
    return EntryVerdict.GOOD if checksum(entry[HEADER_BYTES:]) == tuple(sums) else EntryVerdict.DAMAGED
