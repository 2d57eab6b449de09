"""One checksum for content in host memory, in entries of a store below, and wherever it is compared.

A crc32 of the whole payload would take longer than all other work on it. So the payload is read as rows of 512 words of 64
bits. Its *columns* are the 512 words that XOR makes of all rows; its *rows* are the sum of each row, modulo 2^64, and behind
them come the last bytes, which fill no row. A change of one bit, or of up to 32 neighbouring bits of a row, always shows in the
columns. What cancels out there, such as the same change in two rows or rows that changed places, shows in the rows. Of other
damage, one in 2^32 is missed at most.
"""

from __future__ import annotations

import zlib

import numpy as np

_WORD = np.dtype("<u8")
_ROW_WORDS = 512


def checksum(payload: memoryview) -> tuple[int, int]:
    """Of bytes: of the columns, and of the rows and the last bytes; 32 bits each."""
    count = len(payload) // (_ROW_WORDS * _WORD.itemsize)
    words = np.frombuffer(payload, _WORD, count * _ROW_WORDS).reshape(count, _ROW_WORDS)
    columns = np.bitwise_xor.reduce(words, axis=0).astype(_WORD, copy=False)
    rows = np.add.reduce(words, axis=1).astype(_WORD, copy=False)
    return zlib.crc32(columns), zlib.crc32(payload[words.nbytes :], zlib.crc32(rows))
