"""The doctor says what is there, tries what can be tried, and is not fooled by what is installed and broken.

Method: the real machine is asked once, in both forms. Then single checks are driven over memory and packages that are broken on
purpose: a copier that loses bytes or reports nothing, a package that raises when it is imported, one that is not there.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from blocklife import __version__
from blocklife.cli import _built as built
from blocklife.cli import _doctor as doctor
from blocklife.cli import main
from blocklife.cli._doctor import Check, told_of_movers
from blocklife.copiers import CpuCopier, read_movers
from blocklife.copiers._movers import USUAL
from blocklife.extras import to_install
from blocklife.ledger.records import Completion, Worker

NAMES = [
    "python", "platform", "blocklife", "core", "numpy", "torch", "drawing", "copier cpu", "copier torch", "copier cuda",
    "host memory", "movers", "ranks", "store mooncake", "gpu", "link",
]  # fmt: skip

VLLM = "engines.vllm.connector._scheduler"
Capture = pytest.CaptureFixture[str]
Found = Callable[..., tuple[int, dict[str, dict[str, str]]]]


def examined(capsys: Capture, *argv: str) -> tuple[int, str]:
    status = main(["doctor", *argv])
    found = capsys.readouterr()

    assert found.err == ""
    return status, found.out


# --- this machine ------------------------------------------------------------------------------------------------------


def test_doctor_says_one_line_a_fact(capsys: Capture) -> None:
    """Every check has one line, in order, and nothing that is installed here is broken."""
    status, out = examined(capsys)
    *lines, blank, last = out.splitlines()

    assert status == 0, out
    assert [line[:15].strip() for line in lines] == NAMES
    assert (blank, last) == ("", "all that is installed works")
    assert f"CPython {platform.python_version()}" in lines[0]
    assert lines[2].split() == ["blocklife", __version__]
    assert lines[3].startswith("core            ")
    assert str(built.examine()) in lines[3]
    assert lines[4].split() == ["numpy", np.__version__]
    assert lines[7].endswith("works: 2,048 bytes there and back, compared")


def test_doctor_says_the_same_to_machines(capsys: Capture) -> None:
    """One JSON object: each finding with its verdict and what to do for more; each module of the core with how it runs.

    With torch installed its copier has moved bytes both ways; a GPU is measured or said not to be there.
    """
    status, out = examined(capsys, "--json")
    report = json.loads(out)

    assert (status, report["ok"], out.count("\n")) == (0, True, 1)
    assert [finding["name"] for finding in report["findings"]] == NAMES
    assert all(set(finding) == {"name", "verdict", "says", "install"} for finding in report["findings"])
    assert {finding["verdict"] for finding in report["findings"]} <= {"fact", "works", "absent"}
    core, told = report["core"], {finding["name"]: finding for finding in report["findings"]}
    assert list(core["modules"]) == list(built.CORE)
    assert set(core["modules"].values()) == {"compiled" if core["by"] else "interpreted"}
    if find_spec("torch") is not None:
        import torch

        assert told["copier torch"]["verdict"] == "works"
        assert told["copier torch"]["says"] == "2,048 bytes between cpu tensors and host memory and back, compared"
        there = "works" if torch.cuda.is_available() else "absent"
        assert {told[name]["verdict"] for name in ("copier cuda", "movers", "link")} == {there}


@pytest.mark.parametrize(
    ("module", "missing", "stale", "said"),
    [
        (VLLM, "vllm", False, f"; not imported: {VLLM} (without vllm)"),
        (VLLM, "blocklife.nothing", False, "BROKEN: ModuleNotFoundError"),
        ("ledger._ledger", "vllm", False, "BROKEN: ModuleNotFoundError"),
        ("ledger.core", None, True, "BROKEN: ValueError: compiled from another source than lies here: ledger.core (install it"),
        ("errors", None, False, "BROKEN: ValueError: errors is compiled, and Python runs "),
    ],
    ids=["engine absent", "engine broken", "core broken", "other source", "not what Python takes"],
)
def test_doctor_tries_a_compiled_core(
    module: str, missing: str | None, stale: bool, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Each compiled module is what Python runs, from the source beside it. Of an engine that is absent none is missed."""

    def refuse(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    core = built.InstalledCore((built.Module(module, compiled=True, stale=stale),), "Cython 9")
    monkeypatch.setattr(built, "examine", lambda: core)
    monkeypatch.setattr(doctor, "CHECKS", [each for each in doctor.CHECKS if each.name == "core"])
    if missing is not None:
        monkeypatch.setattr(doctor, "import_module", refuse)
    status, out = examined(capsys)

    assert said in out
    assert status == int("BROKEN" in said)


# --- what is not there, and what is broken -----------------------------------------------------------------------------


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Iterator[Found]:
    """What some checks find where modules of these texts stand before all others; and the status."""
    before = dict(sys.modules)

    def finds(files: dict[str, str], *checks: str) -> tuple[int, dict[str, dict[str, str]]]:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            top = name.partition("/")[0].removesuffix(".py")
            for module in [each for each in sys.modules if each.partition(".")[0] == top]:
                del sys.modules[module]
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(doctor, "CHECKS", [each for each in doctor.CHECKS if each.name in checks])
        status, out = examined(capsys, "--json")
        return status, {finding["name"]: finding for finding in json.loads(out)["findings"]}

    yield finds
    for module in sys.modules.keys() - before.keys():
        del sys.modules[module]
    sys.modules.update(before)


def test_doctor_names_a_package_that_is_broken(found: Found) -> None:
    """A torch and a drawing package that raise when imported are broken, with their error; all else is told as ever."""
    files = {
        "torch/__init__.py": "raise OSError('libcudart.so.13: cannot open shared object file')\n",
        "resvg_py.py": "def svg_to_bytes(**_options):\n    return b'not a picture'\n",
    }
    status, told = found(files, "torch", "drawing", "copier torch", "copier cpu")

    assert status == 1
    assert told["torch"]["says"] == "OSError: libcudart.so.13: cannot open shared object file"
    assert {name: each["verdict"] for name, each in told.items()} == {
        "torch": "broken", "drawing": "broken", "copier torch": "broken", "copier cpu": "works",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("module", "says", "install"),
    [
        (
            "raise ImportError('libibverbs.so.1: cannot open shared object file: No such file or directory')",
            "cannot be imported: libibverbs.so.1: cannot open shared object file: No such file or directory",
            "on Debian: apt install libibverbs1 librdmacm1 libcurl4 libnuma1",
        ),
        ("nothing = None", "cannot be imported: mooncake.store is not that of Mooncake Store", to_install("mooncake")),
        ("raise OSError('told\\nin two lines')", "OSError: told in two lines", ""),
    ],
    ids=["library", "other package", "anything"],
)
def test_doctor_says_why_mooncake_cannot_be_used(found: Found, module: str, says: str, install: str) -> None:
    """A package that is installed and does not load is broken; a library of the system that it lacks has its own remedy."""
    status, told = found({"mooncake/__init__.py": "", "mooncake/store.py": f"{module}\n"}, "store mooncake")

    assert status == 1
    assert told["store mooncake"] == {"name": "store mooncake", "verdict": "broken", "says": says, "install": install}


@pytest.mark.parametrize("package", ["mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine", ""])
def test_doctor_names_the_version_of_mooncake(found: Found, package: str) -> None:
    """Whichever package brought it, and also if none is known."""
    files = {"mooncake/__init__.py": "", "mooncake/store.py": "class MooncakeDistributedStore: pass\n"}
    if package:
        folder = f"{package.replace('-', '_')}-9.8.7.dist-info"
        files[f"{folder}/METADATA"] = f"Metadata-Version: 2.1\nName: {package}\nVersion: 9.8.7\n"
    told = found(files, "store mooncake")[1]["store mooncake"]

    assert told["verdict"] == "fact"
    assert told["says"].startswith(f"{package} 9.8.7, can be imported; " if package else "a mooncake of unknown version, ")
    assert told["install"] == ""


def test_doctor_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """What is not installed is no fault: the status is 0, and each line names the command."""
    monkeypatch.setattr(doctor, "find_spec", lambda _module: None)
    status, out = examined(capsys)
    lines = {line[:15].strip(): line[16:] for line in out.splitlines()}

    assert status == 0
    for name in ("torch", "copier torch", "copier cuda", "movers", "ranks", "gpu", "link"):
        assert lines[name] == f"not installed ({to_install('torch')})"
    assert lines["store mooncake"] == f"not installed ({to_install('mooncake')})"
    assert lines["drawing"] == f"pygraphviz, pymupdf-fonts, resvg-py not installed ({to_install('draw')})"


def test_doctor_ends_with_what_is_broken(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The status is 1, the line says so, and the last line names it; an error without words is named by its kind."""

    def broken() -> str:
        raise RuntimeError("first line\nsecond line")

    def silent() -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(doctor, "CHECKS", (Check("good", lambda: "yes"), Check("bad", broken), Check("sum", silent)))
    status, out = examined(capsys)
    _, told = examined(capsys, "--json")

    assert status == 1
    assert out.splitlines() == [
        f"{'good':<15} yes",
        f"{'bad':<15} BROKEN: RuntimeError: first line second line",
        f"{'sum':<15} BROKEN: ZeroDivisionError: no message",
        "",
        "broken: bad, sum",
    ]
    assert json.loads(told)["ok"] is False


# --- copiers -----------------------------------------------------------------------------------------------------------


class Silent(CpuCopier):
    """A copier that moves its bytes and reports nothing."""

    def poll(self) -> list[Completion]:
        super().poll()
        return []


def losing(array: str, place: int) -> type[CpuCopier]:
    """A copier that reports all it should, and loses one word at the end."""

    class Losing(CpuCopier):
        def close(self) -> None:
            super().close()
            memory[array][place, 0] ^= np.uint64(0xFF)

        def __init__(self, device: NDArray[np.uint64], host: NDArray[np.uint64], *, worker: Worker) -> None:
            memory.update(device=device, host=host)
            super().__init__(device, host, worker=worker)

    memory: dict[str, NDArray[np.uint64]] = {}
    return Losing


@pytest.mark.parametrize(
    ("copier", "said"),
    [
        (Silent, "a store was reported as []"),
        (losing("host", 7), "the bytes that were stored are not those that went (1 differ)"),
        (losing("device", 5), "the bytes that were loaded are not those that went (1 differ)"),
        (losing("device", 0), "the bytes that were kept are not those that went (1 differ)"),
    ],
    ids=["silent", "stored", "loaded", "source"],
)
def test_doctor_is_not_fooled_by_a_copier(
    copier: type[CpuCopier], said: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """One that reports nothing does not work; nor does one by which one byte is not what it was, wherever it lies."""
    monkeypatch.setattr("blocklife.copiers.CpuCopier", copier)
    monkeypatch.setattr(doctor, "CHECKS", [each for each in doctor.CHECKS if each.name == "copier cpu"])

    assert examined(capsys) == (1, f"copier cpu      BROKEN: ValueError: {said}\n\nbroken: copier cpu\n")


def test_movers_that_do_not_work_are_told_with_their_reason() -> None:
    """What works stands first; the sentence ends there if nothing is missing."""
    left_out = {"kernel": "ModuleNotFoundError: no triton", "batch": "RuntimeError: too old"}
    without = "copies are slower without kernel (ModuleNotFoundError: no triton); batch (RuntimeError: too old)"

    assert told_of_movers(("kernel", "batch", "slices"), {}) == "kernel, batch, slices"
    assert told_of_movers(("slices",), left_out) == f"slices; {without}"


def test_doctor_writes_and_tells_the_table_of_movers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """In lines for people, in its finding for machines, and in a file that a configuration takes."""
    monkeypatch.setattr(doctor, "CHECKS", [Check("movers", lambda: doctor.Tabled("batch, slices", USUAL))])
    file = tmp_path / "movers.json"
    status, out = examined(capsys, "--movers", str(file))
    _, machines = examined(capsys, "--json")
    (finding,) = json.loads(machines)["findings"]

    assert status == 0
    assert out.splitlines()[:2] == [
        "movers          batch, slices",
        "                runs of           4 KiB    8 KiB    16 KiB   32 KiB   64 KiB",
    ]
    assert len(out.splitlines()) == 2 + 2 * len(USUAL.num_runs) + 2
    assert read_movers("movers", finding["table"]) == read_movers("movers", str(file)) == USUAL


def test_doctor_writes_no_table_where_nothing_was_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is not touched, and the reason is told."""
    monkeypatch.setattr(doctor, "CHECKS", [Check("movers", lambda: "not tried: no GPU")])
    file = tmp_path / "movers.json"

    assert main(["doctor", "--movers", str(file)]) == 2
    assert not file.exists()
    assert main(["doctor", "--movers", str(tmp_path / "none" / "movers.json")]) == 2


# --- host memory --------------------------------------------------------------------------------------------------------


def test_doctor_says_what_host_memory_takes() -> None:
    """Some of it was taken; nobody is told of processors near a GPU where there is none."""
    torch = pytest.importorskip("torch")
    made = Check("host memory", doctor._host_memory, doctor.CheckOutcome.WORKS, needs="torch").made()

    assert made.verdict is doctor.CheckOutcome.WORKS, made.says
    for part in ("available: ", "GiB a second", "100 GiB would take", "huge pages: ", "locked at most: "):
        assert part in made.says
    assert ("near the GPU" in made.says) == torch.cuda.is_available()


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1], "0-1"), ([0, 1, 2, 3, 8, 10, 11], "0-3,8,10-11")])
def test_numbers_are_told_as_linux_writes_them(numbers: list[int], text: str) -> None:
    assert doctor.told_of_numbers(numbers) == text
