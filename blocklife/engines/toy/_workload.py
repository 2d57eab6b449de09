"""Workloads, the requests for a serving engine: read one, generate one, write one.

*The format.* JSON lines, one request per line, in the public format of cache-trace files: `timestamp` (milliseconds),
`input_length` and `output_length` (tokens), `hash_ids` (one id per 512-token block of the prompt; the last may be partial).
Equal ids at the start of two prompts mean equal text, which is all that a prefix cache needs. The file has no text.

*Rules of this file.* Whatever the bytes of a file, reading returns requests or raises a `WorkloadError` with a message of one
line. What is written can be read back, and is then equal. A workload depends on its seed and options only, and a shorter one is
the beginning of a longer one with the same options.
"""

from __future__ import annotations

import heapq
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, TextIO, TypeGuard

import attrs
import numpy as np

from blocklife.errors import MisuseError

HASH_TOKENS = 512
"""Tokens that one hash id stands for."""

MAX_LENGTH = 2**31 - 1
"""The longest prompt or answer, in tokens: the largest 32-bit length."""

MAX_HASH_ID = 2**63 - 1
"""The largest hash id: ids are kept in signed 64-bit columns."""

MAX_TIMESTAMP_MS = 2**53
"""The latest arrival: up to here a float represents every millisecond, so that no arrival is rounded."""

MAX_LINE_BYTES = 16 * 2**20
"""The longest line that is read: a file without line ends must not fill the memory."""

ANSWER_TOKEN_MS = 20
"""The generator's estimate of the time per token of an answer: the next turn comes only after the whole answer."""

_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
_BOM = b"\xef\xbb\xbf"


class WorkloadError(MisuseError):
    """A workload that cannot be read or written, or options for which none can be generated; the message is one line."""


@attrs.frozen
class WorkloadRequest:
    """One request: its arrival (ms), the lengths of prompt and answer (tokens), and the ids of its prompt's blocks."""

    timestamp_ms: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_workload(path: str, limit: int | None = None) -> list[WorkloadRequest]:
    """Read the workload at *path* (`-` is standard input) in the file's order; stop after *limit* requests.

    Blank lines, unknown fields and a byte order mark are skipped. Lines after the limit are not read.
    Raises `WorkloadError`, `FILE:LINE: what is wrong`, for anything that is not a workload, and for an empty one.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise WorkloadError(f"limit must be a whole number of at least 1, not {_shown(limit)}")
    if path == "-":
        return _read_stream(_standard_input(), "<stdin>", limit)
    name = path if path.isprintable() else ascii(path)
    with _opened(path, name) as stream:
        return _read_stream(stream, name, limit)


def _opened(path: str, name: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:  # A path with a zero byte is a ValueError.
        raise WorkloadError(f"{name}: {_why_unreadable(error)}") from None


def _standard_input() -> BinaryIO:
    """The bytes of standard input, even if a caller has replaced it with a text-only stream."""
    stdin: TextIO | None = sys.stdin  # None if the process was started without one
    if stdin is None or stdin.closed:
        raise WorkloadError("<stdin>: is closed")
    try:
        return stdin.buffer
    except AttributeError:
        return io.BytesIO(stdin.read().encode("utf-8", "surrogatepass"))


def _read_stream(stream: BinaryIO, name: str, limit: int | None) -> list[WorkloadRequest]:
    requests: list[WorkloadRequest] = []
    for number, line in _lines(stream, name):
        if line.isspace():
            continue
        try:
            requests.append(_request_of(line))
        except WorkloadError as error:
            raise WorkloadError(f"{name}:{number}: {error}") from None
        if len(requests) == limit:
            break
    if not requests:
        raise WorkloadError(f"{name}: holds no request")
    return requests


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Each line with its number from 1; only a newline ends a line, and only the last one may lack it."""
    number = 0
    while True:
        number += 1
        try:
            line = stream.readline(MAX_LINE_BYTES + 1)
        except (OSError, ValueError) as error:
            raise WorkloadError(f"{name}:{number}: {_why_unreadable(error)}") from None
        if len(line) > MAX_LINE_BYTES:
            raise WorkloadError(f"{name}:{number}: the line is longer than {MAX_LINE_BYTES} bytes")
        if not line:
            return
        if number == 1:
            line = line.removeprefix(_BOM)
        if line:  # A file of a byte order mark and nothing else.
            yield number, line


def _request_of(line: bytes) -> WorkloadRequest:
    content = _json_of(line)
    if type(content) is not dict:
        raise WorkloadError(f"must be an object, found {_shown(content)}")
    try:
        values = [content[field] for field in _FIELDS]
    except KeyError:
        missing = [field for field in _FIELDS if field not in content]
        raise WorkloadError(f"missing field{'s' * (len(missing) > 1)} {', '.join(missing)}") from None
    timestamp, input_length, output_length, hash_ids = values
    _check_values(timestamp, input_length, output_length, hash_ids)
    return WorkloadRequest(float(timestamp), input_length, output_length, tuple(hash_ids))


def _json_of(line: bytes) -> object:
    is_last = not line.endswith(b"\n")
    text = ""
    try:
        text = line.decode()
        content: object = json.loads(text)
    except UnicodeDecodeError as error:
        if is_last and error.end == len(line) and error.reason == "unexpected end of data":
            raise WorkloadError("the file ends in the middle of a line") from None
        raise WorkloadError(f"not UTF-8 (byte {error.start + 1} of the line)") from None
    except json.JSONDecodeError as error:
        # A truncated file is the most likely fault (full disk, copy while writing), so it gets its own message: an object was
        # begun, and the text ends before it is closed.
        text = text.strip()
        if is_last and text.startswith("{") and (error.pos >= len(text) or not text.endswith("}")):
            raise WorkloadError("the file ends in the middle of a line") from None
        raise WorkloadError(f"not JSON ({error.msg[:1].lower()}{error.msg[1:]}, column {error.pos + 1})") from None
    except RecursionError:
        raise WorkloadError("not a request (nested too deeply)") from None
    except ValueError:  # Python refuses to convert integers of thousands of digits.
        raise WorkloadError("not a request (a number has too many digits)") from None
    return content


def _check_values(timestamp: object, input_length: object, output_length: object, hash_ids: object) -> None:
    """Refuse invalid values. Whole numbers are checked by exact type, because a bool is an instance of int."""
    if not _is_number(timestamp) or not 0 <= timestamp <= MAX_TIMESTAMP_MS:  # NaN is in no range.
        raise WorkloadError(f"timestamp must be a number of ms from 0 to {MAX_TIMESTAMP_MS}, found {_shown(timestamp)}")
    if type(input_length) is not int or not 1 <= input_length <= MAX_LENGTH:
        raise WorkloadError(f"input_length must be a whole number from 1 to {MAX_LENGTH}, found {_shown(input_length)}")
    if type(output_length) is not int or not 1 <= output_length <= MAX_LENGTH:
        raise WorkloadError(f"output_length must be a whole number from 1 to {MAX_LENGTH}, found {_shown(output_length)}")
    if not isinstance(hash_ids, (list, tuple)):
        raise WorkloadError(f"hash_ids must be a list, found {_shown(hash_ids)}")
    expected = _num_blocks(input_length)
    if len(hash_ids) != expected:
        raise WorkloadError(
            f"hash_ids must hold {expected} ids, one per {HASH_TOKENS} of {input_length} tokens, found {len(hash_ids)}"
        )
    # Three passes in C are several times faster than one loop in Python; the loop below only finds the wrong value.
    if set(map(type, hash_ids)) != {int} or min(hash_ids) < 0 or max(hash_ids) > MAX_HASH_ID:
        for index, value in enumerate(hash_ids):
            if type(value) is not int or not 0 <= value <= MAX_HASH_ID:
                raise WorkloadError(f"hash_ids[{index}] must be a whole number from 0 to {MAX_HASH_ID}, found {_shown(value)}")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // HASH_TOKENS)


def _shown(value: object) -> str:
    """A value as a message shows it: in JSON's terms, on one line, and cut if it is long."""
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if value is None or isinstance(value, (bool, float)):
        return json.dumps(value)
    if isinstance(value, int) and value.bit_length() > 128:  # str() refuses the longest ones.
        return f"a number of about {int(value.bit_length() * math.log10(2))} digits"
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _why_unreadable(error: OSError | ValueError) -> str:
    match error:
        case FileNotFoundError():
            return "no such file"
        case IsADirectoryError():
            return "is a directory, not a file"
        case PermissionError():
            return "may not be read (permission denied)"
        case OSError():
            return f"cannot be read ({error.strerror or type(error).__name__})"
        case _:
            return f"cannot be read ({error})"


def write_workload(requests: Iterable[WorkloadRequest], stream: TextIO) -> None:
    """Write *requests* to *stream* in the format that `read_workload` reads, one compact line each.

    A timestamp of whole milliseconds is written without a fraction. Raises `WorkloadError` for a request that could not be read
    back; nothing is written then.
    """
    lines: list[str] = []
    for index, request in enumerate(requests):
        timestamp = request.timestamp_ms
        try:
            _check_values(timestamp, request.input_length, request.output_length, request.hash_ids)
        except WorkloadError as error:
            raise WorkloadError(f"request {index}: {error}") from None
        values = (
            int(timestamp) if timestamp == int(timestamp) else timestamp,
            request.input_length,
            request.output_length,
            request.hash_ids,
        )
        lines.append(json.dumps(dict(zip(_FIELDS, values, strict=True)), separators=(",", ":")) + "\n")
    stream.writelines(lines)


@attrs.define(eq=False)
class _Conversation:
    """A conversation between two turns: its next prompt, as far as the text is already known."""

    # Invariant: `hash_ids` has only whole blocks, all in the first `input_length` tokens: before the first turn those of the
    # shared system prompt, between two turns those of the previous prompt, at the end none.
    hash_ids: tuple[int, ...]
    input_length: int
    num_turns_left: int


def generate_workload(
    *,
    requests: int,
    seed: int,
    requests_per_second: float = 2.0,
    mean_turns: float = 1.7,
    mean_think_s: float = 10.0,
    mean_first_prompt_tokens: float = 4_200.0,
    mean_new_prompt_tokens: float = 1_000.0,
    mean_output_tokens: float = 200.0,
    num_system_prompts: int = 4,
    system_prompt_tokens: int = 1_100,
    max_input_length: int = 61_440,
) -> list[WorkloadRequest]:
    """Generate exactly *requests* requests of multi-turn conversations, sorted by arrival, from *seed* alone.

    A turn's prompt is the previous prompt, the previous answer and new text. Blocks wholly within the previous one keep their
    hash ids; every other block is new, even the one that the previous prompt filled in part. (The previous answer was cached,
    too, but a file of prompts has no ids for it.) Ids count up from 0: first those of the shared system prompts, then in the
    order of arrival.

    * `requests_per_second`: mean rate once the first conversations have reached their last turns; lower before. New
      conversations begin at random (Poisson) at this rate divided by `mean_turns`; the first one at 0 ms.
    * `mean_turns`: turns per conversation, geometric. One that would exceed `max_input_length` ends early.
    * `mean_think_s`: seconds between the end of an answer (20 ms per token) and the next turn, exponential.
    * `mean_first_prompt_tokens`: the user's first prompt, without the system prompt; log-normal with a heavy tail.
    * `mean_new_prompt_tokens`, `mean_output_tokens`: the text that each later turn adds, and each answer; log-normal.
    * `num_system_prompts`, `system_prompt_tokens`: each conversation begins with one of so many system prompts of this length,
      and shares its whole blocks with the others; 0 system prompts turn this off.
    * `max_input_length`: the longest prompt, in tokens; a longer first prompt is cut to it.

    With the defaults a prompt has about 6,000 tokens and an answer about 200, and an unlimited prefix cache would hit 40 to 50
    percent of the blocks. Raises `WorkloadError` for an option out of its range.
    """
    given = dict(locals())
    for name, (whole, lowest, highest) in _RANGES.items():
        value = given[name]
        if _is_number(value) and (type(value) is int or not whole) and lowest <= value <= highest:  # NaN is in no range.
            continue
        kind = "whole number" if whole else "number"
        raise WorkloadError(f"{name} must be a {kind} from {lowest} to {highest}, not {_shown(value)}")
    if num_system_prompts and system_prompt_tokens >= max_input_length:
        raise WorkloadError(
            f"system_prompt_tokens must be less than max_input_length, not {system_prompt_tokens} with {max_input_length}"
        )
    del given["requests"], given["seed"]
    generator = _Generator(np.random.default_rng(seed), **given)
    return [generator.next_request() for _ in range(requests)]


_RANGES: Mapping[str, tuple[bool, float, float]] = {
    "requests": (True, 1, 1_000_000),
    "seed": (True, 0, 2**63 - 1),
    "requests_per_second": (False, 0.001, 1_000_000),
    "mean_turns": (False, 1, 1_000),
    "mean_think_s": (False, 0.001, 86_400),
    "mean_first_prompt_tokens": (False, 1, 2**20),
    "mean_new_prompt_tokens": (False, 1, 2**20),
    "mean_output_tokens": (False, 1, 2**20),
    "num_system_prompts": (True, 0, 10_000),
    "system_prompt_tokens": (True, 1, 2**20),
    "max_input_length": (True, 1, 2**20),
}
"""Of each option: whether it is whole, the lowest and the highest value."""


@attrs.define(eq=False)
class _Generator:
    """Generates requests of many conversations, in the order of arrival; the next one depends only on the numbers drawn so far.

    ``arrivals`` is a heap of (arrival in ms, conversation). A conversation is begun when its first turn arrives, and only then
    is the start of the next one drawn: so nothing depends on how many requests are generated.
    """

    rng: np.random.Generator
    requests_per_second: float
    mean_turns: float
    mean_think_s: float
    mean_first_prompt_tokens: float
    mean_new_prompt_tokens: float
    mean_output_tokens: float
    num_system_prompts: int
    system_prompt_tokens: int
    max_input_length: int
    arrivals: list[tuple[int, int]] = attrs.field(init=False, factory=lambda: [(0, 0)])
    conversations: list[_Conversation] = attrs.field(init=False, factory=list)
    begin_ms: float = attrs.field(init=False, default=0.0)
    num_ids: int = attrs.field(init=False)

    @num_ids.default
    def _after_system_prompts(self) -> int:
        return self.num_system_prompts * (self.system_prompt_tokens // HASH_TOKENS)

    def next_request(self) -> WorkloadRequest:
        """The next turn to arrive, of any conversation."""
        now_ms, number = heapq.heappop(self.arrivals)
        if number == len(self.conversations):
            self.conversations.append(self._begin())
            self.begin_ms += self.rng.exponential(1_000 * self.mean_turns / self.requests_per_second)
            heapq.heappush(self.arrivals, (int(self.begin_ms), number + 1))

        conversation = self.conversations[number]
        num_new = _num_blocks(conversation.input_length) - len(conversation.hash_ids)
        hash_ids = conversation.hash_ids + tuple(range(self.num_ids, self.num_ids + num_new))
        self.num_ids += num_new
        output_length = _draw_tokens(self.rng, self.mean_output_tokens, sigma=0.8)
        request = WorkloadRequest(float(now_ms), conversation.input_length, output_length, hash_ids)

        conversation.hash_ids = hash_ids[: conversation.input_length // HASH_TOKENS]
        conversation.input_length += output_length + _draw_tokens(self.rng, self.mean_new_prompt_tokens, sigma=1.0)
        conversation.num_turns_left -= 1
        think_ms = self.rng.exponential(1_000 * self.mean_think_s)
        if conversation.num_turns_left and conversation.input_length <= self.max_input_length:
            heapq.heappush(self.arrivals, (now_ms + output_length * ANSWER_TOKEN_MS + int(think_ms), number))
        else:
            conversation.hash_ids = ()  # it is over: keep its number, free its memory
        return request

    def _begin(self) -> _Conversation:
        input_length = _draw_tokens(self.rng, self.mean_first_prompt_tokens, sigma=1.2)
        system_ids: tuple[int, ...] = ()
        if self.num_system_prompts:
            num_system_blocks = self.system_prompt_tokens // HASH_TOKENS
            first_id = int(self.rng.integers(self.num_system_prompts)) * num_system_blocks
            system_ids = tuple(range(first_id, first_id + num_system_blocks))
            input_length += self.system_prompt_tokens
        num_turns = int(self.rng.geometric(1 / self.mean_turns))
        return _Conversation(system_ids, min(input_length, self.max_input_length), num_turns)


def _draw_tokens(rng: np.random.Generator, mean: float, *, sigma: float) -> int:
    """Draw a log-normal length of at least one token, with this mean; a larger *sigma* gives a heavier tail."""
    return min(MAX_LENGTH, max(1, round(rng.lognormal(math.log(mean) - sigma * sigma / 2, sigma))))
