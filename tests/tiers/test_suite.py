"""The conformance suite: good stores pass, and for each check there is a store that fails it."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from blocklife.cli import main
from blocklife.errors import MisuseError
from blocklife.testing import (
    MemoryStore,
    StoreCheckVerdict,
    assert_store,
    check_address,
    check_store,
    store_checks,
)
from blocklife.tiers import ContentStore, FileStore, Page, StoreOutcome
from tests.tiers.arena import Arena
from tests.tiers.broken import BROKEN, PRIVATE, jealous, opening_fails

TWICE = ("opened_twice", "two_processes_at_once", "content_outlives_close")
"""The checks that open the store twice."""

PASSED, FAILED, SKIPPED = StoreCheckVerdict.PASSED, StoreCheckVerdict.FAILED, StoreCheckVerdict.SKIPPED


def test_files_pass_every_check(tmp_path: Path) -> None:
    """And nothing of what the checks have put is left."""
    found = list(check_address(f"fs:{tmp_path}:34M"))

    assert [str(each) for each in found if each.verdict is not PASSED] == []
    assert [each.name for each in found] == list(store_checks())
    assert len(found) > 25
    assert list(tmp_path.glob("??/*")) == []


def test_memory_passes_what_needs_no_second_store() -> None:
    """The rest is skipped, with the reason."""
    found = {each.name: each for each in check_store(lambda: MemoryStore(34 << 20), capacity=34 << 20)}

    assert {each.verdict for each in found.values()} == {PASSED, SKIPPED}
    assert {name for name, each in found.items() if each.verdict is SKIPPED} == set(TWICE)
    assert "needs an address" in found["opened_twice"].says


def test_checks_are_skipped_that_a_store_has_no_room_for() -> None:
    """Also those of a capacity that is unknown, or too large to be filled."""
    names = ["large_values", "capacity_is_kept", "small_values"]

    small = list(check_store(lambda: MemoryStore(1 << 20), capacity=1 << 20, names=names))
    assert [each.verdict for each in small] == [SKIPPED, PASSED, PASSED]
    unknown = list(check_store(MemoryStore, names=names))
    assert [each.verdict for each in unknown] == [PASSED, SKIPPED, PASSED]
    large = list(check_store(MemoryStore, capacity=1 << 40, names=names))
    assert [each.verdict for each in large] == [PASSED, SKIPPED, PASSED]


def test_every_check_has_a_store_that_fails_it() -> None:
    assert tuple(BROKEN) == store_checks()


@pytest.mark.parametrize("name", BROKEN)
def test_check_fails_for_a_store_that_is_wrong(name: str) -> None:
    """And says in a sentence what it has seen."""
    capacity = 1 << 20 if name in ("capacity_is_kept", "full_leaves_what_was_there") else None
    address = PRIVATE if name in TWICE else ""
    (found,) = check_store(BROKEN[name], capacity=capacity, names=[name], address=address)

    assert found.verdict is FAILED
    assert len(found.says) > 10
    assert "Error" not in found.says.replace("MisuseError", "")


def test_store_that_raises_or_hangs_fails() -> None:
    """The suite goes on, and ends."""
    released = threading.Event()

    class Hanging(MemoryStore):
        def exists(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
            released.wait()
            return super().exists(keys)

    class Raising(MemoryStore):
        def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
            raise ConnectionError("the store is down")

    (found,) = check_store(Hanging, names=["exists_after_put"], timeout_s=0.2)
    released.set()
    assert (found.verdict, found.says) == (FAILED, "the store did not come back within 0.2 s")
    (found,) = check_store(Raising, names=["small_values"])
    assert found.verdict is FAILED
    assert "put raised ConnectionError('the store is down')" in found.says
    (found,) = check_store(opening_fails, names=["small_values"])
    assert (found.verdict, found.says) == (FAILED, "it raised OSError('only once')")


def talkative() -> ContentStore:
    """A store that logs."""
    sys.stderr.write("opened\na line of a log\n")
    return FileStore(os.environ["BLOCKLIFE_TEST_TALKATIVE"], 1 << 20)


def test_store_that_logs_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other process's store writes to standard error is no answer of that process."""
    monkeypatch.setenv("BLOCKLIFE_TEST_TALKATIVE", str(tmp_path))
    (found,) = check_store(talkative, names=["two_processes_at_once"], address=f"{__name__}:talkative")

    assert found.verdict is PASSED, found.says


@pytest.mark.parametrize("answer", [None, (), [True], ["OK"], [StoreOutcome.OK] * 2])
def test_outcomes_of_another_kind_fail(answer: object) -> None:
    class Wrong(MemoryStore):
        def exists(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
            return answer  # type: ignore[return-value]

    (found,) = check_store(Wrong, names=["exists_after_put"])

    assert found.verdict is FAILED
    assert found.says.startswith("exists ")


def test_assert_store_names_every_check_that_fails() -> None:
    assert_store(MemoryStore)
    with pytest.raises(
        AssertionError, match=r"(?s)^2 of \d+ checks of the store failed:\nfailed  put_again: .*threads_on_one_key: "
    ):
        assert_store(jealous)


def test_unknown_check_is_refused() -> None:
    with pytest.raises(MisuseError, match="there is no check 'speed'"):
        check_store(MemoryStore, names=["speed"])


# --- the command -------------------------------------------------------------------------------------------------------


def test_command_says_one_line_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "check", f"fs:{tmp_path}:1M"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert [line.split(":")[0].split() for line in lines[:-1]] == [
        ["skipped" if "skipped" in line else "passed", name] for line, name in zip(lines, store_checks(), strict=False)
    ]
    assert "skipped large_values: keeps 16,777,216 bytes at once" in "\n".join(lines)
    assert lines[-1].startswith(f"{len(store_checks())} checks of fs:{tmp_path}:1M: ")
    assert lines[-1].endswith(": 27 passed, 0 failed, 5 skipped")


def test_command_fails_where_a_check_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json, one record a check and nothing else; --only chooses."""
    arguments = ["store", "check", PRIVATE, "--json", "--only", "opened_twice", "--only", "any_key"]

    assert main(arguments) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["name"], each["verdict"]) for each in found] == [("opened_twice", "failed"), ("any_key", "passed")]
    assert found[0]["says"] == "get gave ABSENT, not OK"


def test_command_lists_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "check", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert [line.split()[0] for line in lines] == list(store_checks())
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fs:"], "is no address"),
        ([], "no store is named (give fs:DIR"),
        (["fs:here", "--only", "speed"], "there is no check 'speed'"),
        (["tests.tiers.broken:opening_fails"], "opening_fails raised OSError: only once"),
        (["tests.tiers.awkward:Unclosed"], "close raised RuntimeError: still busy"),
    ],
)
def test_command_refuses_what_is_no_store(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status = main(["store", "check", *arguments])

    captured = capsys.readouterr()
    assert status == 2
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_command_tells_a_store_that_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    """It has come back, if not as it should."""
    assert main(["store", "check", "tests.tiers.awkward:Leaving", "--only", "small_values"]) == 1
    assert "put raised SystemExit(7)" in capsys.readouterr().out


def test_command_prints_its_own_words_only(capsys: pytest.CaptureFixture[str]) -> None:
    """What a store prints goes to standard error, also that of the second process, where it is no answer."""
    chosen = ["small_values", "removed_key", "two_processes_at_once"]
    arguments = ["store", "check", "tests.tiers.awkward:printing", "--json"]

    assert main([*arguments, *(f"--only={name}" for name in chosen)]) == 1
    captured = capsys.readouterr()
    found = [json.loads(line) for line in captured.out.splitlines()]
    assert [(each["name"], each["verdict"]) for each in found] == list(zip(chosen, ("passed", "passed", "failed"), strict=True))
    assert "24 gave ABSENT" in found[-1]["says"]  # as each process has memory of its own
    assert "connected\n" in captured.err
    assert "putting\n" in captured.err


# --- stores in a replay ------------------------------------------------------------------------------------------------


REPLAY = ["replay", "--requests", "20", "--json", "--below"]


def test_replay_prints_its_own_words_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One report in JSON, or one recording, whatever the store prints."""
    assert main([*REPLAY, "tests.tiers.awkward:printing"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["below"]["bytes_demoted"] > 0
    assert captured.err.startswith("connected\nputting\n")


def test_replay_refuses_a_store_that_takes_no_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REPLAY, "tests.tiers.awkward:Unregistered"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "blocklife: --below: the store takes no memory: RuntimeError: no memory today\n"


def test_replay_reports_although_its_store_cannot_be_closed(capsys: pytest.CaptureFixture[str]) -> None:
    """The run is over and verified; what close has raised is one line."""
    assert main([*REPLAY, "tests.tiers.awkward:Unclosed"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["requests"] == 20
    assert captured.err == "blocklife: --below: close raised RuntimeError: still busy\n"


@pytest.mark.parametrize("words", [(), ("--only", "speed"), ("--only", "capacity_is_kept")], ids=" ".join)
@pytest.mark.parametrize("there", [None, "", "lock", "lost+found", "lock lost+found"], ids=repr)
def test_command_leaves_a_folder_as_it_was(there: str | None, words: Sequence[str], tmp_path: Path) -> None:
    """A folder that it made goes, with those around it; in one that was there, names, contents and rights are the same."""
    folder = tmp_path / "some" / "where"
    if there is not None:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        for name in there.split():
            (folder / name).write_bytes(b"")
    before = traces(tmp_path)

    assert main(["store", "check", f"fs:{folder}:2M", *words]) == (2 if "speed" in words else 0)
    assert traces(tmp_path) == before


def traces(folder: Path) -> dict[str, int]:
    """All below a folder, with the rights of each."""
    return {str(path.relative_to(folder)): path.stat().st_mode for path in folder.rglob("*")}


def test_checks_remove_nothing_of_a_store_or_of_others(tmp_path: Path) -> None:
    """A store stays one, a foreign folder is refused untouched, and what comes in meanwhile is kept with its marker."""
    store, foreign, busy = tmp_path / "store", tmp_path / "foreign", tmp_path / "busy"
    FileStore(store).close()
    (foreign / "ab").mkdir(parents=True)
    with pytest.raises(MisuseError, match="is no store and not empty"):
        check_address(f"fs:{foreign}")
    assert [each.verdict for each in check_address(f"fs:{store}", names=["any_key"])] == [PASSED]
    made = check_address(f"fs:{busy}", names=["any_key", "small_values"])
    next(made)
    arena = Arena(1 << 20)
    kept = FileStore(busy)
    arena.join(kept)
    arena.put(kept, "a", bytes(1000))
    assert [each.verdict for each in made] == [PASSED]
    kept.close()

    assert (store / "blocklife-store").is_file()
    assert (foreign / "ab").is_dir()
    assert (busy / "blocklife-store").is_file()
    assert len(list(busy.glob("??/*"))) == 1


def test_command_evicts_nothing_of_a_folder_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bound counts for all that is in the folder, so checks with one would make room at the cost of what was there."""
    store, arena = FileStore(tmp_path, 64 << 20), Arena(1 << 20)
    arena.join(store)
    for name in ("a", "b"):
        arena.put(store, name, bytes(499_712))
    store.close()
    before = sorted(tmp_path.glob("??/*"))

    assert main(["store", "check", f"fs:{tmp_path}:2M"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert f"'fs:{tmp_path}:2M': 999,424 bytes are kept there already" in captured.err
    assert "give an empty folder" in captured.err
    assert main(["store", "check", f"fs:{tmp_path}:2M", "--only", "small_values"]) == 2
    assert main(["store", "check", f"fs:{tmp_path}"]) == 0
    assert sorted(tmp_path.glob("??/*")) == before
