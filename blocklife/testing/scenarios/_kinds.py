"""The kinds of values in a scenario file, and the names of blocks, slots, copies, requests and contents.

Rules of this file:

* A kind says what an error expected, and checks one value together with everything that it names.
* Annotations carry kinds: ``blocks: BlockNames`` in the signature of a verb is all that the format knows of this parameter.
  A driver gets what names stand for, so for each kind that names things there are two types: `BlockNames` and `Blocks`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NoReturn, TypeAlias

from attrs import define, evolve, field, frozen

Value: TypeAlias = "str | int | float | bool | Sequence[Value] | Mapping[str, Value]"
"""Any value of a TOML file, except dates."""

NAME = re.compile(r"[A-Za-z_][\w.~-]*")
BLOCK_NAME = re.compile(r"block ([0-9]{1,9}) of (\S+)(?: in group ([0-9]{1,9}))?")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
COPY_NAME = re.compile(rf"the (?:({'|'.join(ORDINALS)}) )?(store|load|demotion|promotion) of (\S+)")
BELOW = ("demotion", "promotion")
"""Copies between the host and the store below, named by what they move."""
SLOT_NAME = re.compile(r"the slot of (.+)")
CONTENT_NAME = re.compile(r"(?:([0-9]{1,9}):)?([^\s:]+)")
COMPARED = re.compile(r"(>=|<=|>|<) ([0-9]{1,9})")
LETTERS_MAX = 4096
"""The most letters of a prompt, and of a reply."""
NUMBER_MAX = 10**9
NO_COPY = "nobody"
"""The copy that nobody made."""
GARBAGE = "garbage"
"""Content that is not valid."""

COUNTS: Mapping[str, str] = {
    "free": "blocks that can be handed out without a wait",
    "freeing_soon": "blocks that no request holds and that a copy still touches",
    "quarantined": "blocks that a copy past its deadline may still touch",
    "late": "reports of copies that were over already",
    "duplicate": "second reports of one copy by the same worker",
    "unknown": "reports of copies that nobody made",
    "jobs_made": "copies that were ever planned",
    "jobs_out": "copies that are planned or in flight",
    "ready": "host slots with readable content",
    "empty": "host slots without content",
    "stale": "blocks whose life was over when they were to be stored",
    "refused_stores": "times that no store could be planned for lack of room",
    "already_stored": "chunks that were already in the host when they were to be stored",
    "in_flight": "chunks that were already being stored when they were to be stored",
    "partial": "chunks that were not stored because of a hole",
    "requests": "requests that are not over",
}
"""What can be counted."""


def forms_of(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """The kind of thing that a text names by its form, with its parts; nothing for names of the scenario's own."""
    for kind, form in (("block", BLOCK_NAME), ("job", COPY_NAME), ("slot", SLOT_NAME)):
        if found := form.fullmatch(text):
            yield kind, found


def shown(value: object) -> str:
    """A value as it is in the file."""
    if isinstance(value, bool):
        return plain(value)
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)


def plain(value: object) -> str:
    """A value without quotes, for people."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {plain(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(plain, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def nearest(word: str, words: Iterable[str], what: str) -> str:
    """A hint with the nearest known word, or all of them."""
    names = list(words)
    near = difflib.get_close_matches(word, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"known {what}: {', '.join(names)}"


@define(eq=False)
class Known:
    """What a file has named before the place that is being read, and what it needs of a driver so far."""

    refuse: Callable[..., NoReturn]
    """Refuse the file: a message, and the path of the key where it is wrong."""
    block_tokens: Sequence[int] = (4,)
    """By group."""
    workers: int = 1
    """The number of workers in the variant with the most."""
    names: dict[str, str] = field(factory=dict)
    """The kind of everything that ``as`` and ``remember`` have named."""
    prompts: dict[str, str] = field(factory=dict)
    """By request."""
    labels: set[str] = field(factory=set)
    """The names of steps."""
    needs: set[str] = field(factory=set)
    """Methods of a driver."""

    def list_of(self, value: object, *path: str) -> list[Value]:
        """A list, or a refusal."""
        if not isinstance(value, list):
            self.refuse(f"{path[-1]!r} must be a list, not {shown(value)}", *path)
        return value

    def table(self, value: object, *path: str, called: str = "") -> dict[str, Value]:
        """A table, or a refusal."""
        if not isinstance(value, dict):
            self.refuse(f"{called or path[-1]!r} must be a table, not {shown(value)}", *path)
        return value

    def group(self, text: str | None, *path: str) -> int:
        """The number of a group, 0 where it is left out."""
        if int(text or 0) >= len(self.block_tokens):
            self.refuse(f"there is no group {text}: they are numbered from 0 to {len(self.block_tokens) - 1}", *path)
        return int(text or 0)

    def kind_of(self, text: str, *path: str) -> str:
        """The kind that a text names: ``block``, ``job``, ``slot``, ``request``, or empty; requests in it are checked."""
        if text in self.names:
            return self.names[text]
        for kind, found in forms_of(text):
            if kind == "slot":
                CONTENT.check(self, found[1], *path)
                self.needs.add("slot_of")
            elif kind == "job" and found[2] in BELOW:
                CONTENT.check(self, found[3], *path)
            else:
                REQUEST.check(self, found[2 if kind == "block" else 3], *path)
            if kind == "block":
                self.group(found[3], *path)
            return kind
        return "request" if text in self.prompts else ""

    def near(self, text: str) -> str:
        """A hint with the name that may have been meant."""
        close = difflib.get_close_matches(text, [*self.names, *self.prompts], 1)
        return f"; did you mean {close[0]!r}?" if close else ""

    def name(self, name: object, kind: str, *path: str) -> None:
        """Note a name that no request has; it may move to another thing of its kind."""
        if not isinstance(name, str) or not NAME.fullmatch(name):
            self.refuse(f"{shown(name)} is not a name (letters, digits and . _ ~ -)", *path)
        if name in self.prompts or self.names.get(name, kind) != kind:
            self.refuse(f"{name!r} is the name of something else", *path)
        self.names[name] = kind


@frozen
class ValueKind:
    """A kind of value."""

    said: str
    """What an error says was expected."""
    check: Callable[..., None] = field(repr=False)
    """Takes what is `Known`, the value and the path of its key."""
    needs: tuple[str, ...] = ()
    """Methods of a driver that whoever writes such a value needs."""
    scaled: Callable[[Value, int], Value] = field(default=lambda value, _: value, repr=False)
    """The same value in a world in which each token of this one is so many."""


# --- how kinds are made -----------------------------------------------------------------------------------------------------


def _typed(said: str, wanted: type) -> ValueKind:
    def check(known: Known, value: Value, *path: str) -> None:
        if type(value) is not wanted:
            known.refuse(f"{path[-1]!r} must be {said}, not {shown(value)}", *path)

    return ValueKind(said, check)


def number(most: int = NUMBER_MAX, *, needs: tuple[str, ...] = (), tokens: bool = False) -> ValueKind:
    """A count, of *tokens* or of anything else."""

    def check(known: Known, value: Value, *path: str) -> None:
        if type(value) is not int:
            known.refuse(f"{path[-1]!r} must be a whole number, not {shown(value)}", *path)
        if not 0 <= value <= most:
            bound = "at least 0" if value < 0 else f"at most {most:,}"
            known.refuse(f"{path[-1]!r} must be {bound}, not {value}", *path)

    kind = ValueKind("a whole number", check, needs)
    return evolve(kind, scaled=_times) if tokens else kind


def _times(value: Value, factor: int) -> Value:
    return value * factor if isinstance(value, int) else value


def _repeated(value: Value, factor: int) -> Value:
    """A text of which each letter stands for a token."""
    return "".join(letter * factor for letter in str(value))


def scaled_name(value: Value, factor: int) -> Value:
    """The name of a thing, or of content: letters in it are tokens."""
    text = str(value)
    copy = COPY_NAME.fullmatch(text)
    if copy and copy[2] in BELOW:
        return f"{text.removesuffix(copy[3])}{scaled_content(copy[3], factor)}"
    if text in (GARBAGE, NO_COPY) or BLOCK_NAME.fullmatch(text) or copy:
        return text
    if slot := SLOT_NAME.fullmatch(text):
        return f"the slot of {scaled_content(slot[1], factor)}"
    return text


def scaled_content(value: Value, factor: int) -> Value:
    """Content: a block of a request, or the letters that it holds."""
    text = str(value)
    if text == GARBAGE or BLOCK_NAME.fullmatch(text):
        return text
    group, colon, letters = text.rpartition(":")
    return f"{group}{colon}{_repeated(letters, factor)}"


def one_of(*choices: str) -> ValueKind:
    """One of these texts."""

    def check(known: Known, value: Value, *path: str) -> None:
        TEXT.check(known, value, *path)
        if value not in choices:
            known.refuse(f"{path[-1]} must be one of {', '.join(choices)}, not {shown(value)}", *path)

    return ValueKind("a text", check)


def _or(text: str, kind: ValueKind) -> ValueKind:
    """This text, or another kind of value."""

    def check(known: Known, value: Value, *path: str) -> None:
        if value != text:
            kind.check(known, value, *path)

    return ValueKind(kind.said, check, scaled=lambda value, factor: value if value == text else kind.scaled(value, factor))


def _named(kind: str, said: str) -> ValueKind:
    """The name of a thing of this kind."""

    def check(known: Known, value: Value, *path: str) -> None:
        if not isinstance(value, str):
            known.refuse(f"{path[-1]!r} must be {said}, not {shown(value)}", *path)
        found = known.kind_of(value, *path)
        if found != kind:
            other = f"it is the name of a {found}" if found else f"nothing has this name so far{known.near(value)}"
            known.refuse(f"{value!r} is not {said} ({other})", *path)

    return ValueKind(said, check, scaled=scaled_name)


def _list_of(said: str, kind: ValueKind) -> ValueKind:
    def check(known: Known, value: Value, *path: str) -> None:
        for each in known.list_of(value, *path):
            kind.check(known, each, *path)

    def scaled(value: Value, factor: int) -> Value:
        return [kind.scaled(each, factor) for each in value] if isinstance(value, Sequence) else value

    return ValueKind(said, check, scaled=scaled)


def _table_of(said: str, keys: ValueKind, values: ValueKind) -> ValueKind:
    def check(known: Known, value: Value, *path: str) -> None:
        for key, each in known.table(value, *path).items():
            keys.check(known, key, *path, key)
            values.check(known, each, *path, key)

    def scaled(value: Value, factor: int) -> Value:
        if not isinstance(value, Mapping):
            return value
        return {str(keys.scaled(key, factor)): values.scaled(each, factor) for key, each in value.items()}

    return ValueKind(said, check, scaled=scaled)


def _list_or(lists: ValueKind, other: ValueKind, said: str = "") -> ValueKind:
    """A list of one kind, or a value of another."""

    def check(known: Known, value: Value, *path: str) -> None:
        (lists if isinstance(value, list) else other).check(known, value, *path)

    def scaled(value: Value, factor: int) -> Value:
        return (lists if isinstance(value, list) else other).scaled(value, factor)

    return ValueKind(said or other.said, check, scaled=scaled)


# --- checks of single values ------------------------------------------------------------------------------------------------


def _worker(known: Known, value: Value, *path: str) -> None:
    NUMBER.check(known, value, *path)
    if isinstance(value, int) and value >= known.workers:
        known.refuse(f"there is no worker {value}: they are numbered from 0 to {known.workers - 1}", *path)


def _request(known: Known, value: Value, *path: str) -> None:
    if not isinstance(value, str):
        known.refuse(f"{path[-1]!r} must be the name of a request, not {shown(value)}", *path)
    if value not in known.prompts:
        there = ", ".join(sorted(known.prompts)) or "none"
        known.refuse(f"no request {value!r} has arrived so far (known requests: {there})", *path)


def _new_request(known: Known, value: Value, *path: str) -> None:
    TEXT.check(known, value, *path)
    if not NAME.fullmatch(str(value)):
        known.refuse(f"{shown(value)} is not a name for a request (letters, digits and . _ ~ -)", *path)


def _letters(known: Known, value: Value, *path: str) -> None:
    TEXT.check(known, value, *path)
    said = str(value)
    if not re.fullmatch(r"[^\s:]+", said):
        known.refuse(f"a {path[-1]} has letters without spaces, one for each token, not {shown(value)}", *path)
    if len(said) > LETTERS_MAX:
        known.refuse(f"a {path[-1]} has at most {LETTERS_MAX:,} letters, not {len(said):,}", *path)


def _content(known: Known, value: Value, *path: str) -> None:
    if not isinstance(value, str):
        known.refuse(f"{path[-1]!r} must be a content, not {shown(value)}", *path)
    if found := BLOCK_NAME.fullmatch(value):
        known.kind_of(value, *path)
        if (int(found[1]) + 1) * known.block_tokens[known.group(found[3], *path)] > len(known.prompts[found[2]]):
            known.needs.add("tokens")  # only the driver knows what was sampled
    elif found := CONTENT_NAME.fullmatch(value):
        known.group(found[1], *path)
    else:
        known.refuse(f"{value!r} is not content (letters, 'GROUP:letters', or 'block 0 of a')", *path)


def _label(known: Known, value: Value, *path: str) -> None:
    if not isinstance(value, str) or value not in known.labels:
        known.refuse(f"no earlier step is called {shown(value)}", *path)


def _pair(known: Known, value: Value, *path: str) -> None:
    blocks = known.list_of(value, *path)
    if len(blocks) != 2:
        known.refuse(f"a pair has two blocks, not {len(blocks)}", *path)
    for each in blocks:
        BLOCK.check(known, each, *path)


def _thing(known: Known, value: Value, *path: str) -> None:
    kind = known.kind_of(str(value), *path)
    if not kind:
        known.refuse(f"{value!r} is not a block, slot, copy or request{known.near(str(value))}", *path)
    known.needs.add(f"{kind}_state")


def _count(known: Known, value: Value, *path: str) -> None:
    if value not in COUNTS:
        known.refuse(f"unknown count {value!r} ({nearest(str(value), COUNTS, 'counts')})", *path)


def _counted(known: Known, value: Value, *path: str) -> None:
    if type(value) is not int and not (isinstance(value, str) and COMPARED.fullmatch(value)):
        known.refuse(f"{path[-1]!r} must be a whole number, or a text like '>= 2', not {shown(value)}", *path)


# --- the kinds, and the types of parameters that have them ------------------------------------------------------------------

TEXT = _typed("a text", str)
FLAG = _typed("true or false", bool)
NUMBER = number()
TOKEN_COUNT = number(tokens=True)
WORKER = ValueKind("the number of a worker", _worker)
REQUEST = ValueKind("the name of a request", _request)
REQUESTS = _list_of("a list of requests", REQUEST)
NEW_REQUEST = ValueKind("a text", _new_request)
LETTERS = ValueKind("a text", _letters, scaled=_repeated)
GUESS = evolve(TEXT, scaled=_repeated)
BLOCK = _named("block", "a block, like 'block 0 of a'")
BLOCKS = _list_of("a list of blocks", BLOCK)
COPY = _or(NO_COPY, _named("job", "a copy, like 'the store of a'"))
COPIES = _list_of("a list of copies", COPY)
CONTENT = ValueKind("a content", _content, scaled=scaled_content)
CONTENTS = _list_of("a list of contents", CONTENT)
NUMBERS = _list_of("a list of whole numbers", NUMBER)
TOKENS = _table_of("a table of requests with numbers", REQUEST, TOKEN_COUNT)
LET_IN = _list_or(REQUESTS, TOKENS, "a list of requests, or a table of them with numbers")
OFFER = _table_of("a table of numbers", TEXT, NUMBER)

Worker: TypeAlias = Annotated[int, WORKER]
NewRequest: TypeAlias = Annotated[str, NEW_REQUEST]
RequestName: TypeAlias = Annotated[str, REQUEST]
RequestNames: TypeAlias = Annotated[Sequence[str], REQUESTS]
Letters: TypeAlias = Annotated[str, LETTERS]
Guess: TypeAlias = Annotated[str, GUESS]
TokenCount: TypeAlias = Annotated[int, TOKEN_COUNT]
BlockNames: TypeAlias = Annotated[Sequence[str], BLOCKS]
Block: TypeAlias = Annotated[int, BLOCK]
Blocks: TypeAlias = Annotated[Sequence[int], BLOCKS]
CopyName: TypeAlias = Annotated[str, COPY]
CopyNames: TypeAlias = Annotated[Sequence[str], COPIES]
Job: TypeAlias = Annotated[int, COPY]
Jobs: TypeAlias = Annotated[Sequence[int], COPIES]
Content: TypeAlias = Annotated[str, CONTENT]
Contents: TypeAlias = Annotated[Sequence[str], CONTENTS]
Numbers: TypeAlias = Annotated[Sequence[int], NUMBERS]
Tokens: TypeAlias = Annotated[Mapping[str, int], TOKENS]
LetIn: TypeAlias = Annotated[Collection[str] | Mapping[str, int], LET_IN]
Offers: TypeAlias = Annotated[Sequence[Mapping[str, int]], _list_of("a list of tables of numbers", OFFER)]
Offer: TypeAlias = Annotated[Mapping[str, int], OFFER]
Times: TypeAlias = Annotated[int, number(10_000)]
Many: TypeAlias = Annotated[int, number(100_000)]
Report: TypeAlias = Annotated[str, one_of("sent", "twice", "lost")]

_HIT = _or("deferred", TOKEN_COUNT)
Hits: TypeAlias = Annotated[Mapping[str, int | str], _table_of("a table of requests with numbers or 'deferred'", REQUEST, _HIT)]
_STATE = _list_or(_list_of("a list of states", TEXT), TEXT)
States: TypeAlias = Annotated[
    Mapping[str, str | Sequence[str]],
    _table_of("a table of things with their states", ValueKind("a thing", _thing, scaled=scaled_name), _STATE),
]
Holds: TypeAlias = Annotated[Mapping[str, str], _table_of("a table of blocks with contents", BLOCK, CONTENT)]
Sizes: TypeAlias = Annotated[Mapping[str, Sequence[int]], _table_of("a table of copies with lists of numbers", COPY, NUMBERS)]
Pairs: TypeAlias = Annotated[Sequence[Sequence[str]], _list_of("a list of pairs of blocks", ValueKind("a pair", _pair))]
Counts: TypeAlias = Annotated[
    Mapping[str, int | str], _table_of("a table of counts", ValueKind("a count", _count), ValueKind("a number", _counted))
]
Windows: TypeAlias = Annotated[Sequence[int | str], _list_of("a list of numbers and 'all'", _or("all", NUMBER))]
HeldBlocks: TypeAlias = Annotated[
    Mapping[str, Sequence[str]], _table_of("a table of requests with lists of blocks", REQUEST, BLOCKS)
]
EarlierStep: TypeAlias = Annotated[str, ValueKind("the name of an earlier step", _label)]
