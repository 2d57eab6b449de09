"""CONTRIBUTING names files, tests and commands that exist, and the parts that its recipes ask for are all there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import attrs
import pytest
import yaml

from blocklife.cli import COMMANDS
from blocklife.cli._draw import FORMATS
from blocklife.offload import Policies, replacement
from blocklife.policies import BUILT_IN
from blocklife.testing import Driver
from blocklife.testing.scenarios._words import verb, verbs_of
from tests.project.makefile import modules_of, prerequisites_of
from tests.project.test_links import missing
from tests.project.test_recipe_of_a_state import SAID

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "blocklife"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

RECIPES = ("A state", "A policy", "A replacement", "A drawing format", "An engine", "A scenario verb")


def test_contributing_has_every_recipe() -> None:
    assert tuple(re.findall(r"^### (.+)$", PAGE, flags=re.MULTILINE)) == RECIPES


def test_contributing_says_for_each_step_what_fails() -> None:
    """A step of a recipe has a file, and whoever forgets any but the first is told by somebody."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)
    ]

    assert all(len(row) == 4 for row in rows)
    assert [row for row in rows if not row[3] and row[0] != "1"] == []


def without_kind() -> str:
    """What is said of a verb whose parameter says nothing of its values."""

    class Wrong(Driver):
        @verb()
        def slow(self, requests: Sequence[str]) -> None:
            """Which of them are what?"""

    with pytest.raises(TypeError) as refused:
        verbs_of(Wrong, Driver)
    return str(refused.value)


def test_contributing_quotes_what_is_said() -> None:
    """A message that a recipe quotes is part of one that the test of the recipe, or this one, has provoked."""
    said = [*(sentence for _, _, sentence in SAID), without_kind()]
    cells = re.findall(r"(?:the import: |says that )([^|;]+)", PAGE)
    quoted = {each for cell in cells for each in re.findall(r"`([^`]+)`", cell)}

    assert len(quoted) > 6
    assert [each for each in quoted if not any(each in sentence for sentence in said)] == []
    assert [sentence for sentence in said if not any(each in sentence for each in quoted)] == []


def test_check_leaves_out_what_exists() -> None:
    """Each file and test that `make check` leaves out is there; whatever is new is not left out."""
    found = re.search(r"^LONG := ((?:.*\\\n)*.*)$", MAKEFILE, flags=re.MULTILINE)
    assert found is not None
    text = re.sub(
        r"\$\(addprefix ([^,]+),([^)]*)\)",
        lambda each: " ".join(f"{each[1]}{name}" for name in each[2].split()),
        found[1].replace("\\\n", " "),
    )
    left_out = text.split()

    assert left_out
    assert [each for each in left_out if missing(each)] == []


# --- what a contributor's tools read --------------------------------------------------------------------------------------

HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
TEMPLATES = [*sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md")), ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md"]


def test_hooks_are_parts_of_check() -> None:
    """Each calls make for what `make check` begins with, and for nothing that is not here: no repository is named."""
    assert [repository["repo"] for repository in HOOKS] == ["local"]
    hooks = HOOKS[0]["hooks"]

    assert all(hook["language"] == "system" and hook["pass_filenames"] is False for hook in hooks)
    assert [hook["entry"] for hook in hooks] == [f"make --silent {each}" for each in prerequisites_of(ROOT, "check")]


@pytest.mark.parametrize("part", [hook["entry"].split()[-1] for hook in HOOKS[0]["hooks"]])
def test_hook_has_its_commands(part: str) -> None:
    """Modules that are here, which `make check` and `make test` run, too, and read the files of the project."""
    commands = modules_of(ROOT, part)

    assert commands
    assert [words for words in commands if find_spec(words[0]) is None] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", [hook["entry"].split()[-1] for hook in HOOKS[0]["hooks"]])
def test_hook_runs(part: str) -> None:
    """What make runs for it, without making an environment first."""
    commands = modules_of(ROOT, part)

    assert commands
    for words in commands:
        ran = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (words, ran.stdout + ran.stderr)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_name_what_exists(template: Path) -> None:
    """Files, targets of make and commands; and each says where a vulnerability goes, or is a wish."""
    text = template.read_text(encoding="utf-8")

    assert [name for name in re.findall(r"[\w./-]+\.md", text) if not (ROOT / name).exists()] == []
    assert set(re.findall(r"`make (\w+)", text)) <= set(re.findall(r"^(\w+):", MAKEFILE, flags=re.MULTILINE))
    assert set(re.findall(r"[`>]blocklife ([a-z]+)", text)) <= set(COMMANDS)
    assert "SECURITY.md" in text or template.name == "wish.md"


# --- what recipes ask for ------------------------------------------------------------------------------------------------


def test_every_policy_is_read() -> None:
    """A choice that nothing asks for is no choice."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "offload").glob("*.py"))

    assert [each.name for each in attrs.fields(Policies) if f"policies.{each.name}" not in text] == []


def test_every_replacement_has_a_name() -> None:
    """Each class that has all methods of a policy can be chosen by name."""
    module = replacement
    methods = {"insert", "touch", "remove", "victims", "snapshot", "restore"}
    classes = {each for each in vars(module).values() if isinstance(each, type) and methods <= vars(each).keys()}

    assert classes == {type(module.replacement(name, 3)) for name in BUILT_IN}


def test_every_renderer_is_a_format() -> None:
    """Each module of the drawing room that turns panels into text or bytes is behind a format of the command."""
    renderers = {
        path.stem.removeprefix("_")
        for path in (PACKAGE / "drawing").glob("_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and path.stem == f"_{node.name}"
        and node.args.args and ast.unparse(node.args.args[0].annotation or ast.Constant("")) in ("Sequence[Panel]", "Panel")
    }  # fmt: skip

    assert {"svg", "png", "mermaid", "dot"} <= renderers
    assert renderers - {"page", "terminal", "legend", "layout"} <= set(FORMATS)


@pytest.mark.parametrize("engine", [path.parent.name for path in sorted((PACKAGE / "engines").glob("*/__init__.py"))])
def test_every_engine_has_tests_and_a_room_in_the_house(engine: str) -> None:
    """Its tests lie in a folder of its name, and the table of rooms names it."""
    house = (ROOT / "specs" / "house.md").read_text(encoding="utf-8")
    row = next(line for line in house.splitlines() if line.startswith("| `engines/` |"))

    assert list((ROOT / "tests" / engine).glob("test_*.py"))
    assert engine in row.lower()
