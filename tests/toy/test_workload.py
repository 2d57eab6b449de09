"""The workload of a serving engine: reading is total, writing is reading backwards, generating is a function of the seed."""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blocklife.engines.toy import WorkloadError, WorkloadRequest, generate_workload, read_workload, write_workload
from blocklife.engines.toy import _workload as module
from blocklife.engines.toy._workload import HASH_TOKENS
from blocklife.errors import MisuseError

GOOD = b'{"timestamp": 7, "input_length": 513, "output_length": 2, "hash_ids": [4, 9]}\n'
GOOD_REQUEST = WorkloadRequest(7.0, 513, 2, (4, 9))


def read_bytes(content: bytes, limit: int | None = None) -> list[WorkloadRequest]:
    """Read *content* as standard input: no file is made, so a fuzzer can afford it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        return read_workload("-", limit)


def line_with(**fields: object) -> bytes:
    """Give the good line with some fields changed; `...` leaves a field out."""
    content = json.loads(GOOD) | fields
    return json.dumps({name: value for name, value in content.items() if value is not ...}).encode() + b"\n"


def message_of(call: Callable[[], object]) -> str:
    with pytest.raises(WorkloadError) as caught:
        call()
    message = str(caught.value)
    assert message.isprintable(), "one line, and nothing that moves the cursor"
    return message


def written(requests: list[WorkloadRequest]) -> str:
    stream = io.StringIO()
    write_workload(requests, stream)
    return stream.getvalue()


def test_read_gives_the_requests_of_a_file_in_its_order(tmp_path: Path) -> None:
    """The order is the file's, also where a timestamp is earlier than the one before."""
    path = tmp_path / "workload.jsonl"
    path.write_bytes(GOOD + line_with(timestamp=0.5, input_length=1, hash_ids=[4]))

    assert read_workload(str(path)) == [GOOD_REQUEST, WorkloadRequest(0.5, 1, 2, (4,))]


@pytest.mark.parametrize(
    "content",
    [
        GOOD.rstrip(b"\n"),
        GOOD.replace(b"\n", b"\r\n"),
        b"\n  \n" + GOOD + b"\n\t\r\n",
        b"\xef\xbb\xbf" + GOOD,
        b"\xef\xbb\xbf\n" + GOOD,
        line_with(note="ü", turns=[{"a": None}]),
        line_with(timestamp=7.0),
    ],
    ids=["no last newline", "crlf", "blank lines", "bom", "bom alone on a line", "unknown fields", "float timestamp"],
)
def test_read_accepts_harmless_variants(content: bytes) -> None:
    """What cannot be misunderstood is accepted."""
    assert read_bytes(content) == [GOOD_REQUEST]


def test_read_accepts_a_repeated_hash_and_the_limits() -> None:
    """The same block twice in a prompt is lawful, and so are the largest values."""
    content = line_with(timestamp=2**53, output_length=2**31 - 1, hash_ids=[2**63 - 1, 2**63 - 1])

    assert read_bytes(content) == [WorkloadRequest(2.0**53, 513, 2**31 - 1, (2**63 - 1,) * 2)]


def test_read_limit_stops_before_the_next_line_is_looked_at() -> None:
    """A bad line behind the limit is nobody's business."""
    assert read_bytes(GOOD + GOOD + b"nonsense\n", limit=2) == [GOOD_REQUEST] * 2
    assert "<stdin>:3: not JSON" in message_of(lambda: read_bytes(GOOD + GOOD + b"nonsense\n", limit=3))


@pytest.mark.parametrize("limit", [0, -1, True, 1.0, "1"])
def test_read_refuses_a_limit_that_is_no_count(limit: int) -> None:
    """A limit of nothing is a mistake, not an empty workload."""
    assert message_of(lambda: read_bytes(GOOD, limit)).startswith("limit must be a whole number of at least 1, not ")


def test_read_accepts_a_text_only_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller may have put a StringIO in the place of standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO(GOOD.decode()))

    assert read_workload("-") == [GOOD_REQUEST]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nonsense\n", "not JSON (expecting value, column 1)"),
        (b"{'a': 1}\n", "not JSON (expecting property name enclosed in double quotes, column 2)"),
        (GOOD.strip() + b" {}\n", "not JSON (extra data, column 79)"),
        (GOOD[:40] + b"\n", "not JSON ("),
        (b"\xef\xbb\xbf" + GOOD, "not JSON ("),
        (b"\0\0\n", "not JSON (expecting value, column 1)"),
        (b'{"a": "\xff"}\n', "not UTF-8 (byte 8 of the line)"),
        (GOOD.decode().encode("utf-16"), "not UTF-8 (byte 1 of the line)"),
        (b"[]\n", "must be an object, found a list"),
        (b'"a\\nb"\n', "must be an object, found 'a\\nb'"),
        (b"null\n", "must be an object, found null"),
        (b"NaN\n", "must be an object, found NaN"),
        (b"[" * 100_000 + b"\n", "not a request (nested too deeply)"),
        (b'{"a":' * 100_000 + b"\n", "not a request (nested too deeply)"),
        (b"9" * 100_000 + b"\n", "not a request (a number has too many digits)"),
        (b"{}\n", "missing fields timestamp, input_length, output_length, hash_ids"),
        (line_with(output_length=...), "missing field output_length"),
        (line_with(timestamp=-1), "timestamp must be a number of ms from 0 to 9007199254740992, found -1"),
        (line_with(timestamp=2**53 + 1), "timestamp must be a number of ms from 0 to 9007199254740992, found 9007199254740993"),
        (line_with(timestamp=float("nan")), "timestamp must be a number of ms from 0 to 9007199254740992, found NaN"),
        (line_with(timestamp=float("inf")), "timestamp must be a number of ms from 0 to 9007199254740992, found Infinity"),
        (GOOD.replace(b"7", b"1e999"), "timestamp must be a number of ms from 0 to 9007199254740992, found Infinity"),
        (line_with(timestamp=False), "timestamp must be a number of ms from 0 to 9007199254740992, found false"),
        (line_with(timestamp="7"), "timestamp must be a number of ms from 0 to 9007199254740992, found '7'"),
        (line_with(input_length=0), "input_length must be a whole number from 1 to 2147483647, found 0"),
        (line_with(input_length=True), "input_length must be a whole number from 1 to 2147483647, found true"),
        (line_with(input_length=513.0), "input_length must be a whole number from 1 to 2147483647, found 513.0"),
        (
            line_with(input_length=10**100),
            "input_length must be a whole number from 1 to 2147483647, found a number of about 100 digits",
        ),
        (line_with(input_length=2**31), "input_length must be a whole number from 1 to 2147483647, found 2147483648"),
        (line_with(output_length=None), "output_length must be a whole number from 1 to 2147483647, found null"),
        (line_with(output_length="\u2028" * 99), "output_length must be a whole number from 1 to 2147483647, found '\\u2028"),
        (line_with(hash_ids={}), "hash_ids must be a list, found an object"),
        (line_with(hash_ids=[1]), "hash_ids must hold 2 ids, one per 512 of 513 tokens, found 1"),
        (line_with(hash_ids=[1, 2, 3]), "hash_ids must hold 2 ids, one per 512 of 513 tokens, found 3"),
        (line_with(hash_ids=[1, True]), "hash_ids[1] must be a whole number from 0 to 9223372036854775807, found true"),
        (line_with(hash_ids=[-1, 1]), "hash_ids[0] must be a whole number from 0 to 9223372036854775807, found -1"),
        (line_with(hash_ids=[1, 2**63]), "hash_ids[1] must be a whole number from 0 to 9223372036854775807, found 92233"),
        (line_with(hash_ids=[1, [2]]), "hash_ids[1] must be a whole number from 0 to 9223372036854775807, found a list"),
    ],
)
def test_read_refuses_a_bad_line_and_says_where_and_why(line: bytes, message: str) -> None:
    """The message has the line as the file counts it, blank lines included, and what was found."""
    assert message_of(lambda: read_bytes(GOOD + b"\n" + line)).startswith(f"<stdin>:3: {message}")


@settings(deadline=None)
@given(st.integers(1, len(GOOD) - 2))
def test_read_says_when_the_file_ends_in_the_middle_of_a_line(length: int) -> None:
    """Wherever the last line is cut, the message says that it is cut."""
    message = message_of(lambda: read_bytes(GOOD + GOOD[:length]))

    assert message == "<stdin>:2: the file ends in the middle of a line"


def test_read_says_so_when_a_character_is_cut() -> None:
    """A cut in the middle of a character is a cut, not a wrong encoding."""
    cut = b'{"note": "\xc3'

    assert message_of(lambda: read_bytes(cut)) == "<stdin>:1: the file ends in the middle of a line"
    assert message_of(lambda: read_bytes(cut + b"\n")) == "<stdin>:1: not UTF-8 (byte 11 of the line)"


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", b" \t\r\n"])
def test_read_refuses_a_workload_without_requests(content: bytes) -> None:
    """Nothing to do is a mistake somewhere before us."""
    assert message_of(lambda: read_bytes(content)) == "<stdin>: holds no request"


def test_read_refuses_a_line_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without line ends is not taken into memory as a whole; a line of exactly the limit is read."""
    monkeypatch.setattr(module, "MAX_LINE_BYTES", len(GOOD))

    assert read_bytes(GOOD + GOOD) == [GOOD_REQUEST] * 2
    assert message_of(lambda: read_bytes(GOOD + b" " + GOOD)) == f"<stdin>:2: the line is longer than {len(GOOD)} bytes"


def test_read_refuses_what_is_no_readable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way not to be a file has its own words, and the name of the file before them."""
    missing = str(tmp_path / "missing")

    assert message_of(lambda: read_workload(missing)) == f"{missing}: no such file"
    assert message_of(lambda: read_workload("")) == ": no such file"
    assert message_of(lambda: read_workload(str(tmp_path))) == f"{tmp_path}: is a directory, not a file"
    assert message_of(lambda: read_workload("a\0b")).startswith("'a\\x00b': cannot be read (embedded null")
    assert message_of(lambda: read_workload("no\nsuch")) == "'no\\nsuch': no such file"
    assert message_of(lambda: read_workload("x" * 5_000)).endswith(": cannot be read (File name too long)")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "open", refuse, raising=False)  # The tests may run as somebody who may read all.

    assert message_of(lambda: read_workload(missing)) == f"{missing}: may not be read (permission denied)"


def test_read_refuses_a_file_that_fails_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails in the middle of the file is reported with the line that could not be read."""

    class Failing(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().readline(size)

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Failing(GOOD + GOOD)))

    assert message_of(lambda: read_workload("-")) == "<stdin>:2: cannot be read (Input/output error)"


def test_read_refuses_a_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process can be started without a standard input, and a program can close its own."""
    monkeypatch.setattr("sys.stdin", None)
    assert message_of(lambda: read_workload("-")) == "<stdin>: is closed"

    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    monkeypatch.setattr("sys.stdin", closed)
    assert message_of(lambda: read_workload("-")) == "<stdin>: is closed"


# Drawn from a short list and not from all of JSON: it is the kinds of values that matter, and drawing them must be quick.
JSON_VALUES = st.sampled_from(
    [None, True, 0.5, 1e300, float("nan"), float("inf"), 10**30, "", "\ud800\n", [], [[1]], {}, {"a": 1}]
)
NEARLY_GOOD = st.fixed_dictionaries(
    {},
    optional={
        "timestamp": st.integers(-1, 9) | JSON_VALUES,
        "input_length": st.integers(-1, 1_100) | JSON_VALUES,
        "output_length": st.integers(-1, 9) | JSON_VALUES,
        "hash_ids": st.lists(st.integers(-1, 2**63) | JSON_VALUES, max_size=3) | JSON_VALUES,
    },
)


CONTENTS = st.one_of(
    st.binary(),
    st.lists(NEARLY_GOOD, max_size=3).map(lambda lines: "\n".join(map(json.dumps, lines)).encode()),
    st.tuples(st.integers(0, 2 * len(GOOD) - 1), st.binary(max_size=3), st.integers(0, 3)).map(
        lambda damage: (GOOD * 2)[: damage[0]] + damage[1] + (GOOD * 2)[damage[0] + damage[2] :]
    ),
)
"""Any bytes; lines that are nearly right, which random bytes never are; a good file with a little damage."""


@settings(deadline=None, max_examples=300)
@given(CONTENTS)
@example(b"\xef\xbb\xbf\xef\xbb\xbf")
@example(b'"\\ud800"')
def test_read_gives_requests_or_one_clear_line_whatever_the_content(content: bytes) -> None:
    """Any content is a workload that can be written and read again, or one `WorkloadError` of one line."""
    refusal, requests = "", list[WorkloadRequest]()
    try:
        requests = read_bytes(content)
    except WorkloadError as error:
        refusal = str(error)

    assert bool(requests) is not bool(refusal)
    assert not refusal or (refusal.isprintable() and refusal.startswith("<stdin>:"))
    assert not requests or read_bytes(written(requests).encode()) == requests


REQUESTS = st.integers(1, 4 * HASH_TOKENS).flatmap(
    lambda input_length: st.builds(
        WorkloadRequest,
        timestamp_ms=st.floats(0, 2**53) | st.integers(0, 2**53),
        input_length=st.just(input_length),
        output_length=st.integers(1, 2**31 - 1),
        hash_ids=st.lists(
            st.integers(0, 2**63 - 1), min_size=-(-input_length // HASH_TOKENS), max_size=-(-input_length // HASH_TOKENS)
        ).map(tuple),
    )
)


@settings(deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=4))
def test_write_is_undone_by_read(requests: list[WorkloadRequest]) -> None:
    """What was written is read back as equal requests, in the same order."""
    assert read_bytes(written(requests).encode()) == requests


def test_write_gives_one_compact_line_each_with_ints_as_ints() -> None:
    """The format is the public one: no spaces, and no fraction that says nothing."""
    assert written([GOOD_REQUEST]) == '{"timestamp":7,"input_length":513,"output_length":2,"hash_ids":[4,9]}\n'
    assert written([WorkloadRequest(0.5, 1, 1, (0,))]).startswith('{"timestamp":0.5,')
    assert written([]) == ""


@pytest.mark.parametrize(
    "bad",
    [
        WorkloadRequest(float("nan"), 1, 1, (0,)),
        WorkloadRequest(0.0, 1, 0, (0,)),
        WorkloadRequest(0.0, HASH_TOKENS, 1, (0, 1)),
        WorkloadRequest(0.0, 1, 1, (True,)),
    ],
)
def test_write_refuses_what_could_not_be_read_back_and_writes_nothing(bad: WorkloadRequest) -> None:
    """A refused write leaves the stream as it was, good requests before the bad one included."""
    stream = io.StringIO()

    assert message_of(lambda: write_workload([GOOD_REQUEST, bad], stream)).startswith("request 1: ")
    assert stream.getvalue() == ""


def share_seen_before(requests: list[WorkloadRequest]) -> float:
    """Share of prompt blocks that lie in a prefix which an unbounded cache of prompts has seen."""
    seen: set[int] = set()
    num_hits = num_blocks = 0
    for request in requests:
        num_blocks += len(request.hash_ids)
        num_hits += next((i for i, h in enumerate(request.hash_ids) if h not in seen), len(request.hash_ids))
        seen.update(request.hash_ids)
    return num_hits / num_blocks


def test_generate_is_a_function_of_the_seed() -> None:
    """The same seed gives the same workload, another seed another, and a shorter one is the beginning of a longer one."""
    requests = generate_workload(requests=400, seed=5)

    assert generate_workload(requests=400, seed=5) == requests
    assert generate_workload(requests=90, seed=5) == requests[:90]
    assert generate_workload(requests=400, seed=6) != requests


def test_generate_gives_lawful_requests_sorted_by_arrival() -> None:
    """What is generated can be written and read, begins at 0 ms, is sorted, and its times are whole milliseconds."""
    requests = generate_workload(requests=500, seed=1)
    times = [request.timestamp_ms for request in requests]

    assert len(requests) == 500
    assert read_bytes(written(requests).encode()) == requests
    assert times[0] == 0
    assert times == sorted(times)
    assert all(time == int(time) for time in times)


@pytest.mark.parametrize("seed", range(5))
def test_generate_looks_by_default_like_a_busy_chat_service(seed: int) -> None:
    """The documented character holds: lengths, tail, and how much of the prompts was seen before."""
    requests = generate_workload(requests=1_000, seed=seed)
    lengths = [request.input_length for request in requests]

    assert 5_000 < statistics.mean(lengths) < 7_500
    assert 30_000 < max(lengths) <= 61_440
    assert 170 < statistics.mean(request.output_length for request in requests) < 230
    assert 0.38 < share_seen_before(requests) < 0.54


def test_generate_keeps_exactly_the_whole_blocks_of_the_former_prompt() -> None:
    """Goal: the one rule of block names. Method: without system prompts, a first block names its conversation, if it is whole.

    Each turn shares with the former turn the whole blocks of the former prompt and not one more; all its other blocks are new
    to the workload; it is longer by at least the former answer, and arrives later. Conversations do interleave.
    """
    requests = generate_workload(requests=600, seed=3, mean_turns=6, num_system_prompts=0)
    former_turn: dict[int, WorkloadRequest] = {}
    seen: set[int] = set()
    num_later_turns = num_interleaved = 0
    previous = requests[0]
    for request in requests:
        former = former_turn.get(request.hash_ids[0])
        num_kept = 0
        if former is not None:
            num_kept = former.input_length // HASH_TOKENS
            assert request.hash_ids[:num_kept] == former.hash_ids[:num_kept]
            assert request.input_length > former.input_length + former.output_length
            assert request.timestamp_ms > former.timestamp_ms
            num_later_turns += 1
            num_interleaved += former is not previous
        assert seen.isdisjoint(request.hash_ids[num_kept:])
        seen.update(request.hash_ids)
        former_turn[request.hash_ids[0]] = previous = request

    assert num_later_turns > 300
    assert num_interleaved > 200
    assert sorted(seen) == list(range(len(seen)))


def test_generate_shares_the_whole_blocks_of_the_system_prompts() -> None:
    """With conversations of one turn, all that is shared is the whole blocks of so many system prompts."""
    requests = generate_workload(
        requests=200, seed=2, mean_turns=1, num_system_prompts=3, system_prompt_tokens=2 * HASH_TOKENS + 1
    )
    prefixes = {request.hash_ids[:2] for request in requests}
    rest = [hash_id for request in requests for hash_id in request.hash_ids[2:]]

    assert prefixes == {(0, 1), (2, 3), (4, 5)}
    assert len(set(rest)) == len(rest)
    assert min(rest) == 6


def test_generate_never_exceeds_the_longest_prompt() -> None:
    """A long first prompt is cut, and a conversation that would outgrow the limit ends."""
    requests = generate_workload(requests=300, seed=4, mean_turns=50, max_input_length=1_500)

    assert max(request.input_length for request in requests) == 1_500
    assert all(len(request.hash_ids) <= 3 for request in requests)


def test_generate_follows_its_rate_and_means() -> None:
    """Twice the rate, twice the answers and more turns are what the options say they are."""
    slow = generate_workload(requests=2_000, seed=8, mean_turns=1, requests_per_second=1, mean_output_tokens=100)
    fast = generate_workload(requests=2_000, seed=8, mean_turns=1, requests_per_second=10, mean_output_tokens=300)

    assert 1_700_000 < slow[-1].timestamp_ms < 2_300_000
    assert 170_000 < fast[-1].timestamp_ms < 230_000
    assert 90 < statistics.mean(request.output_length for request in slow) < 110
    assert 270 < statistics.mean(request.output_length for request in fast) < 330


@pytest.mark.parametrize("value", [-1, 10**30, float("nan"), float("inf"), True, "9", None])
@pytest.mark.parametrize(
    "option",
    [
        "requests",
        "seed",
        "requests_per_second",
        "mean_turns",
        "mean_think_s",
        "mean_first_prompt_tokens",
        "mean_new_prompt_tokens",
        "mean_output_tokens",
        "num_system_prompts",
        "system_prompt_tokens",
        "max_input_length",
    ],
)
def test_generate_refuses_an_option_out_of_its_range(option: str, value: object) -> None:
    """Each option has a range; the message names option and range."""
    options: dict[str, object] = {"requests": 1, "seed": 0, option: value}

    assert message_of(lambda: generate_workload(**options)).startswith(f"{option} must be a ")  # type: ignore[arg-type]


def test_generate_refuses_zero_where_it_means_nothing() -> None:
    """Zero is a seed and turns system prompts off; anywhere else it is out of range, and so is a system prompt without room."""
    assert len(generate_workload(requests=1, seed=0, num_system_prompts=0)) == 1
    assert (
        message_of(lambda: generate_workload(requests=0, seed=0)) == "requests must be a whole number from 1 to 1000000, not 0"
    )
    with pytest.raises(MisuseError, match="mean_turns must be a number from 1 to 1000, not 0"):
        generate_workload(requests=1, seed=0, mean_turns=0)
    with pytest.raises(MisuseError, match="system_prompt_tokens must be less than max_input_length, not 1100 with 1100"):
        generate_workload(requests=1, seed=0, max_input_length=1_100)
