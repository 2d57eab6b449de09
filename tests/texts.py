"""What a model says and what its KV cache holds, as numbers that follow from the tokens alone: for rigs without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

VOCABULARY = 30_000
_FIRST_TOKEN = 10
_MASK = (1 << 64) - 1


def mixed(value: int) -> int:
    """Spread a number over 64 bits (the finisher of SplitMix64, public domain)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _number(word: str) -> int:
    return mixed(int.from_bytes(word.encode()))


class Chain:
    """A prompt and all that the model will ever say after it: each next token follows from those before it.

    One number stands for each token with all tokens before it, so two texts have it in common exactly where they begin alike.
    """

    def __init__(self, prompt: Sequence[int], salt: str | None = None, inputs: Mapping[int, str] | None = None) -> None:
        """With a *salt* its content is nobody else's, whatever its tokens. *inputs*: what begins at a token beside it."""
        self._seed = 0x5EED if salt is None else _number(salt)
        self._inputs = {} if inputs is None else {at: _number(each) for at, each in inputs.items()}
        self.tokens: list[int] = []
        self.numbers: list[int] = []
        for token in prompt:
            self._append(token)

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        before = self.numbers[-1] if self.numbers else self._seed
        self.numbers.append(mixed(before ^ token ^ self._inputs.get(len(self.numbers), 0)))

    def token(self, position: int) -> int:
        """The token at this position, said by the model if the prompt does not reach so far."""
        while len(self.tokens) <= position:
            self._append(_FIRST_TOKEN + self.numbers[-1] % VOCABULARY)
        return self.tokens[position]

    def upto(self, stop: int) -> list[int]:
        """The numbers of the tokens ahead of this position."""
        if stop:
            self.token(stop - 1)
        return self.numbers[:stop]
