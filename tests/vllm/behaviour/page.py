"""The page of specs/ that tells the table: what it is, how it is run, one row a test function, and what was counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.vllm.behaviour.table import VERDICTS, Entry, Table

PAGE = Path(__file__).parents[3] / "specs" / "vllm-behaviour.md"

_HEAD = """\
# vLLM's own tests of its offloading scheduler, against ours

vLLM 0.33.0 tests the scheduler of its OffloadingConnector with {cases} cases of {tests} functions
(`test_scheduler.py` in `tests/v1/kv_connector/unit/offloading_connector`). They say what a user of offloading may rely
on, so they are asked of `BlocklifeConnector` too. Each of them has one of three verdicts:

* **passes**: it is run as it is, against our connector, and passes;
* **same**: it looks at something private, or counts what differs for a reason; tests of ours say the same of what can be
  seen from outside, under vLLM's real scheduler;
* **excluded**: it is about something that our connector does not offer, or that has no counterpart; the row says which.

{counts}

## How it is run

`make vllm` once, then:

```console
$ python -m tests.vllm.run 0.33.0 -p behaviour tests/v1/kv_connector/unit/offloading_connector/test_scheduler.py
$ python -m tests.vllm.run --ours 0.33.0 {files}
```

The first command runs what passes, red where it does not, and with 0.33.0 is an error where a test is not in the table or
a number of cases is another one. `--behaviour-all` runs the others as well, to see what has come to pass. Nothing of
vLLM's tests is copied. With 0.32.0, 0.31.0 or 0.30.0 the first command runs the tests of the same names, and no others:
[vllm-connector.md](vllm-connector.md#releases) has the counts.

## How theirs meet ours

Their runner makes vLLM's real scheduler; a pytest plugin (`tests/vllm/plugins/behaviour`) lets it make our connector on
both sides, and translates what the tests look at:

| theirs | ours |
| --- | --- |
| the mock of a worker | takes the place of the copier: gets our jobs, says which have landed, notes whom it waits for |
| blocks stored, loaded, flushed | our transfers, block by block; a chunk's key is read from the slot that the transfer names |
| the mock's `lookup` | the answers of our host tier; what the mock misses is forgotten in it beforehand |
| the mock's `prepare_store` | our tier finds no room where it refuses; what it declines is in the tier from then on |
| `complete_store`, `complete_load` | told to the mock when our ledger ends a job |
| `on_request_finished` | told to the mock when our ledger forgets a request |
| `_jobs`, `_req_status`, `_block_id_to_pending_jobs` | read from our ledger when they are asked for |
| `_events_tracker`, as far as what it keeps is asked | the descriptions that our connector keeps for events |
| a scan of one group, called alone | our lookup of one group |

What the tier has not it never has, whatever a mock says, so a test in which something is loaded passes only if we have
stored it before. What is still being written is pending, unless the mock misses it.

Four things are weaker than in theirs. How recency is noted (`touch`), and the calls with which theirs records what events
will say, are not translated; a test that wants such a call is not among those that pass. What the mock misses is evicted
in ours, so a test cannot show that ours would have kept it. Where theirs says how many workers have ended a job, the
translation says which. And `full_hit=recompute_last_token` is set where all groups are full attention, for theirs loads
whole prompts. A test that has met neither a step of our connector nor our lookup is red.
"""

_LACKS = """\
## What theirs does and ours does not

Beside what is excluded; each was found by these tests.

| what | tests |
| --- | --- |
"""


def rendered(table: Table) -> str:
    """The whole page."""
    files = sorted({name.partition("::")[0] for entry in table.entries for name in entry.by if "/test_behaviour_" in name})
    head = _HEAD.format(
        cases=sum(entry.count for entry in table.entries),
        tests=len(table.by_test()),
        counts="\n".join(_counts(table)),
        files=" ".join(files),
    )
    return "\n".join([head, *_lacks(table), *_themes(table)])


def _counts(table: Table) -> Iterator[str]:
    """Rows and cases, by theme and verdict."""
    yield "| about | " + " | ".join(f"{verdict}: rows (cases)" for verdict in VERDICTS) + " |"
    yield "| --- |" + " ---: |" * len(VERDICTS)
    for theme in table.themes:
        yield f"| {theme.title} | " + " | ".join(_count(table.total(verdict, theme.name)) for verdict in VERDICTS) + " |"
    yield "| **all** | " + " | ".join(f"**{_count(table.total(verdict))}**" for verdict in VERDICTS) + " |"


def _count(total: tuple[int, int]) -> str:
    return f"{total[0]} ({total[1]})" if total[0] else ""


def _lacks(table: Table) -> Iterator[str]:
    """What is missing, with the tests that ask for it."""
    yield _LACKS.rstrip()
    for lack in dict.fromkeys(entry.lacks for entry in table.entries if entry.lacks):
        tests = dict.fromkeys(entry.test for entry in table.entries if entry.lacks == lack)
        yield f"| {lack} | {', '.join(f'`{_short(test)}`' for test in tests)} |"
    yield ""


def _themes(table: Table) -> Iterator[str]:
    """A table for each theme."""
    for theme in table.themes:
        entries = [entry for entry in table.entries if entry.theme == theme.name]
        yield f"## {theme.title}\n"
        yield "| test | cases | verdict | |\n| --- | ---: | --- | --- |"
        yield from map(_row, entries)
        yield ""


def _row(entry: Entry) -> str:
    which = f" {', '.join(f'`[{case}]`' for case in entry.cases)}" if entry.cases else ""
    return f"| `{entry.test}`{which} | {entry.count} | {entry.verdict} | {'; '.join(_said(entry))} |"


def _said(entry: Entry) -> Iterator[str]:
    """What stands in the last column."""
    if entry.by:
        yield ", ".join(f"`{_short(name)}`" for name in entry.by)
    if entry.why:
        yield entry.why
    if entry.lacks:
        yield f"not: {entry.lacks}"


def _short(name: str) -> str:
    """A test without its folder."""
    return name.rpartition("/")[2]


def main(arguments: Sequence[str]) -> int:
    """Print the page, or write it."""
    if list(arguments) == ["--write"]:
        PAGE.write_text(rendered(Table.read()), encoding="utf-8")
        return 0
    if list(arguments) == ["--markdown"]:
        print(rendered(Table.read()), end="")
        return 0
    print("usage: python -m tests.vllm.behaviour (--markdown | --write)")
    return 2
