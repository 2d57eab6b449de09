"""`blocklife replay --policy` with a policy of a module: found in the present folder, it evicts; a wrong one is refused."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from functools import cache
from pathlib import Path

import pytest

from blocklife.cli import main
from blocklife.offload import replacement as replacement_module

POLICIES = """
from blocklife.offload import register
from blocklife.offload.replacement import Lru

CALLED = []

class NewestFirst(Lru):
    def victims(self, count, evictable, coming):
        order = list(self.snapshot(range(64)))
        return [slot for slot in reversed(order) if evictable(slot)][:count]

def newest(num_slots):
    CALLED.append(num_slots)
    return NewestFirst()

class Half:
    def __init__(self, num_slots):
        pass
    insert = touch = remove = print

class Home:
    newest = newest

def fails(num_slots):
    raise OSError("no memory")

def leaves(num_slots):
    raise SystemExit(3)

number = 3
register("newest of all", newest)
"""
SMALL = ("--requests", "40", "--gpu-blocks", "200", "--host-slots", "20", "--json")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with policies in the present folder, which nobody has imported; what it registers is forgotten afterwards."""
    name = f"policies_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(POLICIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(replacement_module, "_factories", dict(replacement_module._factories))
    return name


@cache
def hit_with_lru() -> int:
    """The tokens that the same run finds in the host tier with the policy that it has by itself."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["replay", *SMALL, "--policy", "lru"]) == 0
    return int(json.loads(out.getvalue())["tokens_hit_host"])


@pytest.mark.parametrize("what", ["newest", "Home.newest", "newest of all"])
def test_policy_of_a_module_evicts(what: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Named as a factory of the module or as what it registers, it is made for the slots of the run, each time anew."""
    for _ in range(2):
        assert main(["replay", *SMALL, "--policy", f"{module}:{what}"]) == 0
        found = json.loads(capsys.readouterr().out)

        assert found["tokens_hit_host"] != hit_with_lru()
    assert set(sys.modules[module].CALLED) == {1, 20}


def test_policy_that_is_registered_is_taken(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By its name alone where the program itself has registered it; a name that nobody has is answered with it."""
    assert main(["replay", *SMALL, "--policy", f"{module}:newest of all"]) == 0
    assert main(["replay", *SMALL, "--policy", "newest of all"]) == 0
    capsys.readouterr()

    assert main(["replay", *SMALL, "--policy", "oldest"]) == 2
    assert "replacement 'oldest': unknown (known are arc, lru, newest of all, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("no_such_module:newest", "no_such_module cannot be imported: No module named 'no_such_module'"),
        (":newest", "there is no such module (write module:name, such as my_policies:NewestFirst)"),
        ("MODULE:", "there is no such module (write module:name"),
        ("./MODULE.py:newest", "there is no such module (write module:name"),
        ("MODULE:oldest", "has no attribute 'oldest'"),
        ("MODULE:number", "number cannot be called (name a function or a class)"),
        ("MODULE:Half", "it lacks victims"),
        ("MODULE:Home", "Home(1) raised TypeError: "),
        ("MODULE:fails", "fails(1) raised OSError: no memory"),
        ("MODULE:leaves", "leaves(1) raised SystemExit: 3"),
    ],
)
def test_policy_that_cannot_be_made(policy: str, says: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line with the option and what is wrong; it is not registered by that, and the second call says the same."""
    policy = policy.replace("MODULE", module)
    for _ in range(2):
        assert main(["replay", *SMALL, "--policy", policy]) == 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1)
        assert f"--policy {policy}: " in told.err
        assert says in told.err
