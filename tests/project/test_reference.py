"""The reference has every public name, once, and no name that there is not."""

from __future__ import annotations

import ast
import re

import pytest

import blocklife
from tests.project.doors import DOORS
from tests.project.pages import ROOT, names_of
from tests.project.test_links import is_there

REFERENCE = ROOT / "specs" / "reference"
NAMES = {page.stem: names_of(page.read_text(encoding="utf-8")) for page in sorted(REFERENCE.glob("*.md"))}
BESIDE = (
    "blocklife.errors",
    "blocklife.hook_errors",
    "blocklife.states",
    "blocklife.ledger.views",
    "blocklife.ledger.invariants",
    "blocklife.machines",
)
"""Modules that are public without being doors; pages may take names from them."""


def doors() -> dict[str, set[str]]:
    """The packages that have public names, besides the first, with these names."""
    found = dict[str, set[str]]()
    for path in sorted((ROOT / "blocklife").rglob("__init__.py")):
        room = ".".join(path.parent.relative_to(ROOT).parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        listed = (ast.literal_eval(each.value) for each in tree.body if isinstance(each, ast.Assign) and is_all(each))
        names = next(listed, handed_on(tree))
        if names and room != "blocklife":
            found[room] = set(names)
    return found | {room: set(" ".join(table.values()).split()) for room, table in DOORS.items() if room != "blocklife"}


def is_all(node: ast.Assign) -> bool:
    return ast.unparse(node.targets[0]) == "__all__"


def handed_on(tree: ast.Module) -> set[str]:
    """The names of ``from a import B as B``, which says that B is public."""
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {each.name for node in imports for each in node.names if each.asname == each.name}


def test_reference_takes_each_name_once() -> None:
    names = [name for among in NAMES.values() for name in among]

    assert len(names) > 200
    assert sorted({name for name in names if names.count(name) > 1}) == []


@pytest.mark.parametrize(("room", "public"), doors().items(), ids=lambda each: each if isinstance(each, str) else "")
def test_reference_has_what_a_door_has(room: str, public: set[str]) -> None:
    """What is public and not in the reference is added to the page of its door; what is gone goes there, too."""
    told = {name for among in NAMES.values() for name in among if name.rpartition(".")[0] == room}

    assert told == {f"{room}.{name}" for name in public}


def test_reference_names_what_is_there() -> None:
    """Also of modules that are no doors. The connector cannot be imported without vLLM, nor the linker without SGLang."""
    cannot = ("blocklife.engines.vllm.Block", "blocklife.engines.sglang.linker.Block")
    names = [name for among in NAMES.values() for name in among if not name.startswith(cannot)]

    assert [name for name in names if not is_there(name)] == []
    assert {name.rpartition(".")[0] for name in names} <= {*doors(), *BESIDE}


def test_reference_of_the_first_door_links_all_its_names() -> None:
    """`blocklife` hands on names of other doors: its page says where each is told of."""
    page = (REFERENCE / "blocklife.md").read_text(encoding="utf-8")
    linked = dict(re.findall(r"\[`(\w+)`\]\([^#)]*#([\w.]+)\)", page))

    assert set(linked) == set(blocklife.__all__) - {"__version__"}
    assert all(full.rpartition(".")[2] == name for name, full in linked.items())


def test_reference_lists_every_page() -> None:
    """The overview has a row for each, and the navigation of the site an entry."""
    listed = re.findall(
        r"(?m)^\| \[`[\w.]+`\]\(reference/([\w-]+)\.md\)", (ROOT / "specs/reference.md").read_text(encoding="utf-8")
    )
    navigated = re.findall(r"reference/([\w-]+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    assert set(listed) == set(NAMES)
    assert set(navigated) == set(NAMES)
