"""Addresses: each form opens what it says, and a wrong one says what was given and what is expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from blocklife.cli import main
from blocklife.errors import MisuseError
from blocklife.tiers import ContentStore, FileStore, open_store

OPENED: list[ContentStore] = []


def make() -> ContentStore:
    """A factory for an address."""
    return OPENED.pop()


def refuse() -> ContentStore:
    raise MisuseError("not today")


def fail() -> ContentStore:
    raise OSError("no network")


class Maker:
    """A factory within a class."""

    make = staticmethod(make)


def bound_of(address: str) -> int:
    store = open_store(address)
    assert isinstance(store, FileStore)
    store.close()
    return store.statistics().max_bytes


@pytest.mark.parametrize(
    ("size", "bound"), [("1", 1), ("4096", 4096), ("3K", 3 << 10), ("5M", 5 << 20), ("2G", 2 << 30), ("007", 7)]
)
def test_files_have_the_bound_of_their_address(tmp_path: Path, size: str, bound: int) -> None:
    """Units are binary."""
    assert bound_of(f"fs:{tmp_path}/store:{size}") == bound
    assert (tmp_path / "store" / "blocklife-store").is_file()


def test_folder_may_be_relative_and_may_have_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert bound_of("fs:here:5M") == 5 << 20
    assert bound_of("fs:a:7M/") > 7 << 20
    assert bound_of("fs:a:7M:5M") == 5 << 20
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a:7M", "here"]


def test_factory_is_called(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 1)
    for name in ("make", "Maker.make"):
        OPENED.append(store)
        assert open_store(f"{__name__}:{name}") is store
    store.close()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("", "is no address"),
        ("fs", "is no address"),
        ("fs:", "is no address"),
        (":x", "is no address"),
        ("/data/kv", "is no address"),
        ("fs:DIR:", "'' is no number of bytes"),
        ("fs:DIR:10X", "'10X' is no number of bytes"),
        ("fs:DIR:-5", "'-5' is no number of bytes"),
        ("fs:DIR:1.5G", "'1.5G' is no number of bytes"),
        ("fs:DIR:5 M", "'5 M' is no number of bytes"),
        ("fs::5M", "'5M' is no number of bytes"),
        ("fs:DIR:0", "keeps nothing"),
        ("fs:DIR:0K", "keeps nothing"),
        ("fs:DIR:999999T", "on a disk of"),
        ("fs:DIR:" + "9" * 20 + "T", "on a disk of"),
        ("fs:DIR:" + "9" * 21, "is no number of bytes"),
        ("fs:DIR:" + "9" * 5_000, "is no number of bytes"),
        ("http://host/x", "there is no store 'http'"),
        ("redis:host:5", "there is no store 'redis'"),
        ("no.such.module:make", "no.such.module cannot be imported"),
        ("tests.tiers.test_address:nothing", "has no attribute 'nothing'"),
        ("tests.tiers.test_address:OPENED", "OPENED cannot be called"),
        ("tests.tiers.test_address:refuse", "not today"),
        ("tests.tiers.test_address:fail", "fail raised OSError: no network"),
        ("tests.tiers.arena:Arena", "what Arena returns has no register"),
        ("tests.tiers.awkward:leaving", "leaving raised SystemExit: 7"),
        ("tests.tiers.awkward:Methods", "Methods raised KeyError: 'unknown'"),
    ],
)
def test_wrong_address_says_what_is_wrong(address: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MisuseError) as caught:
        open_store(address)

    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(:", "cannot be imported: SyntaxError: "),
        ("import os\nURL = os.environ['BLOCKLIFE_TEST_NOT_SET']", "cannot be imported: KeyError: 'BLOCKLIFE_TEST_NOT_SET'"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("''.nothing", "cannot be imported: AttributeError: "),
        ("def __getattr__(name): raise OSError('no disk')", "factory raised OSError: no disk"),
        ("import no_such_module_of_theirs", "cannot be imported: No module named 'no_such_module_of_theirs'"),
    ],
)
@pytest.mark.parametrize("command", ["store check", "replay --requests 1 --below"])
def test_module_that_cannot_be_imported_is_refused(
    text: str,
    says: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever it raises: one line, and status 2."""
    name = f"store_of_theirs_{abs(hash((text, command)))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    assert main([*command.split(), f"{name}:factory"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert says in captured.err


def test_address_that_is_no_text_is_refused() -> None:
    with pytest.raises(MisuseError, match="is no address"):
        open_store(5)  # type: ignore[arg-type]
