"""What the page for operators says is what the connector and the watch do.

Goal: nobody sizes a machine by a page that is wrong. Method: the page's calls of `blocklife size` are made;
releases are asked of the code that refuses them. Alerts and the dashboard have `test_monitoring.py`.
"""

from __future__ import annotations

import ast
import csv
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from blocklife.cli import main
from blocklife.engines.vllm import _versions as versions
from blocklife.engines.vllm.connector._config import ALIASES, keys
from blocklife.errors import RefusedError
from tests.project.pages import ROOT, blocks_of
from tests.vllm.releases import CHECKSUMS

SPECS = ROOT / "specs"
PAGE = (SPECS / "operating.md").read_text(encoding="utf-8")
FRONT = (SPECS / "README.md").read_text(encoding="utf-8")
INSTALL = (SPECS / "install.md").read_text(encoding="utf-8")
CONNECTOR = ROOT / "blocklife" / "engines" / "vllm" / "connector"


# --- sizes -------------------------------------------------------------------------------------------------------------


def test_sizes_of_the_page_are_those_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each call of the page says what stands below it, of the model above it."""
    found = 0
    for block, answer in pairwise(blocks_of(SPECS / "operating.md")):
        if block.language == "json" and "architectures" in block.text:
            (tmp_path / "config.json").write_text(block.text, encoding="utf-8")
        elif block.text.startswith("$ blocklife size "):
            words = block.text.split()[2:]
            words[words.index("config.json")] = str(tmp_path / "config.json")
            assert main(words) == 0
            assert capsys.readouterr().out == answer.text, block
            found += 1
    assert found == 2


def test_figures_of_the_page_are_those_that_were_measured() -> None:
    """What a tier of so many blocks brought stands in the table that the page links."""
    found = re.search(
        r"a host tier of (\d+) blocks brought (\d+) tokens, one of (\d+) blocks\s(\d+), "
        r"one of (\d+) blocks (\d+), and one of (\d+) blocks (\d+)",
        PAGE,
    )
    assert found is not None
    with (SPECS / "measurements" / "vllm-hits.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["host blocks"], row["Blocklife"]) for row in csv.DictReader(file) if row["policy"] == "arc"]

    assert list(zip(found.groups()[::2], found.groups()[1::2], strict=True)) == rows


@pytest.mark.parametrize(
    "key", ["max_load_tokens", "max_store_tokens", "max_offload_tokens", "cpu_bytes_to_use", "host_blocks"]
)
def test_page_names_keys_that_exist(key: str) -> None:
    """What is switched off by a key is switched off by a key that is read."""
    source = (CONNECTOR / "_config.py").read_text(encoding="utf-8")

    assert f"`{key}`" in PAGE or f'"{key}"' in PAGE
    assert key in (*keys(), *ALIASES) or f'"{key}"' in source


def test_each_way_back_says_what_it_costs_and_how_to_verify_it() -> None:
    """A list a part, no table: its last column, which says whether it worked, would be out of sight on a phone."""
    section = PAGE[PAGE.index("## Rolling back") : PAGE.index("**`/reset_prefix_cache`**")]
    parts = re.findall(r"(?m)^\*\*(.+)\*\*\n\n((?:\* .+\n)+)", section)

    assert len(parts) >= 8
    assert all(re.findall(r"(?m)^\* (\w+): ", listed) == ["Do", "Lost", "Verify"] for _, listed in parts)
    assert "|" not in section.replace("metrics | grep", "")


# --- what is supported -------------------------------------------------------------------------------------------------


def matrix() -> list[list[str]]:
    """The rows of the table of releases."""
    table = PAGE[PAGE.index("| vLLM | connector") :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_releases_of_the_page_are_those_that_the_code_takes() -> None:
    """A release is refused, or watched, as its row says; no release is in two rows."""
    rows: dict[str, list[str]] = {}
    for release, *cells in matrix()[:-1]:
        first, _, last = release.partition(" to ")
        for minor in range(int(first[2:]), int((last or first)[2:]) + 1):
            rows[f"0.{minor}"] = cells
    for minor in range(10, 50):
        connector, watched, _ = rows.get(f"0.{minor}", ["refused", "watches nothing, and says so", ""])
        assert versions.is_supported(f"0.{minor}.1") == (connector == "yes")
        assert versions.is_watched(f"0.{minor}.1") == (watched in {"yes", "accepted"})
    assert len(rows) == len(range(21, 34))


def test_releases_that_the_page_calls_tested_are_those_of_the_nightly_run() -> None:
    """What `make nightly-vllm` runs is what the page may call tested."""
    tested = [found[0] for cells in matrix() if (found := re.match(r"\d+\.\d+\.\d+", cells[3]))]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    taken = re.search(r"(?m)^TAKEN +:= ([\d. ]+)$", makefile)
    nightly = re.search(r"test-vllm VLLM='\$\(TAKEN\) ([\d. ]+)'", makefile)

    assert taken is not None
    assert nightly is not None
    assert tested == [*taken[1].split(), *nightly[1].split()]
    assert [versions.is_supported(each) for each in tested] == [each in taken[1].split() for each in tested]
    assert set(tested) == set(CHECKSUMS)


def test_every_supported_release_has_an_adapter() -> None:
    """One module each, and none for a release that is refused."""
    adapters = sorted(path.stem for path in (CONNECTOR / "releases").glob("_vllm_*.py"))

    assert adapters == [f"_vllm_{each.replace('.', '_')}" for each in versions.SUPPORTED]


def test_remedies_of_the_page_are_those_of_the_connector() -> None:
    """What the page says to do instead of what is refused is what the error says; the connector's page has every remedy."""
    remedies, page = " ".join(remedy for _, remedy in refusals()), (SPECS / "vllm-connector.md").read_text(encoding="utf-8")
    told = re.findall(r"(?m)^\| .* \| refused(?: [^:|]*)?: (.+?) \|$", PAGE)

    assert len(told) >= 5
    assert len(refusals()) >= 12
    assert [remedy for _, remedy in refusals() if remedy not in page] == []
    assert [each for each in told if each.removesuffix(" are what there is") not in remedies] == []


def refusals() -> list[tuple[str, str]]:
    """What the connector refuses: the message and the remedy of each."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(CONNECTOR.glob("*.py"))]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [node for node in nodes if ast.unparse(node.func) == "refusal"]
    return [(ast.unparse(call.args[0]), ast.literal_eval(call.args[1])) for call in calls]


def test_features_of_the_page_that_only_some_releases_take_are_said_so() -> None:
    """What the code refuses before a release, the page does not refuse for all."""
    table = PAGE[PAGE.index("| feature | connector |") :].split("\n\n")[0].splitlines()
    first = {message: found[1] for message, _ in refusals() if (found := re.search(r"before (0\.\d+)", message))}

    assert len(first) >= 3
    for message, release in first.items():
        name = " ".join(re.findall(r"[a-zA-Z]+", message)[:2]).removeprefix("f ")
        rows = [row for row in table if name.split()[0] in row and name.split()[-1] in row]
        assert any(f"works from vLLM {release} on, and is refused before" in row for row in rows), (message, rows)
        assert not any(row.endswith("| refused: switch it off |") for row in rows), rows


def test_page_says_for_whom_the_size_counts() -> None:
    """Data parallelism is several engines, as the option itself says, and as the log does."""
    source = (CONNECTOR / "_config.py").read_text(encoding="utf-8")
    guide = (ROOT / "examples" / "vllm_offload.md").read_text(encoding="utf-8")
    log = (CONNECTOR / "_cache.py").read_text(encoding="utf-8")

    assert all("data parallelism" in each.lower() for each in (PAGE, source, guide, log))
    assert "host memory of this engine: " in PAGE
    assert "host memory of this engine: " in log


# --- the front page, and how it is installed ---------------------------------------------------------------------------


def test_front_page_has_the_example_of_the_readme() -> None:
    """One short example, in both places."""
    front, readme = (
        [each.text for each in blocks_of(page) if each.language == "python"]
        for page in (SPECS / "README.md", ROOT / "README.md")
    )

    assert front == readme
    assert [len(each.splitlines()) <= 24 for each in readme] == [True]


def test_front_page_begins_like_the_readme() -> None:
    """What it is, the gain, both commands and the refusal are those of the README, and stand before anything else."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    fold = FRONT[: FRONT.index("\n## ")]
    blocks = re.findall(r"(?ms)^```\w+\n(.*?)^```$", fold)
    gain = r"\*\*A hit in host memory is ([\d.]+) times faster\*\*"

    assert [block.split()[0] for block in blocks] == ["$", "$", "RefusedError"]
    assert [said for said in (FRONT.split("\n\n")[1], *blocks) if " ".join(said.split()) not in readme] == []
    assert re.findall(gain, fold) == re.findall(gain, readme) == re.findall(r": ([\d.]+) times faster", FRONT)
    assert "](measurements/run.svg)" in fold


def test_front_page_shows_what_its_example_is_told() -> None:
    """Whoever seals the block at the example's first assertion gets this very refusal."""
    (block,) = (each for each in blocks_of(SPECS / "README.md") if each.language == "python")
    program, _, _ = block.text.partition("assert ")
    program = program.replace('ledger.allocate("second", 1)\n', 'again = ledger.allocate("second", 1)\n')
    with pytest.raises(RefusedError) as refused:
        exec(f"{program}ledger.seal(again, [b'other'])", {})  # a page of ours

    assert f"\nRefusedError {refused.value}\n" in FRONT


def test_front_page_quotes_what_was_measured() -> None:
    """The figure stands in the table of the measurements, with these conditions."""
    measured = (SPECS / "measurements.md").read_text(encoding="utf-8")
    found = re.search(
        r"comes after ([\d,]+) ms where all is computed, and after ([\d.]+) ms .*?: ([\d.]+) times faster",
        FRONT,
        flags=re.DOTALL,
    )
    assert found is not None
    computed, loaded, times = found.groups()

    assert re.search(rf"(?m)^\| computed, no prefix cache \| {computed} ", measured)
    assert re.search(rf"(?m)^\| host memory, BlocklifeConnector \| {loaded} [^|]*\| {times} \|", measured)
    assert round(float(computed.replace(",", "")) / float(loaded), 1) == float(times)
    assert all(word in measured for word in ("5 rounds", "vLLM 0.33.0", "AMD EPYC, 2 cores", "system prompts of 2,000 tokens"))


def test_install_page_lists_every_extra_and_every_python() -> None:
    """Neither more nor less than the package declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = INSTALL[INSTALL.index("| extra |") :].split("\n\n")[0]
    pythons = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    packages = [re.split(r"[<>=]", each)[0] for each in project["dependencies"]]

    assert set(re.findall(r"(?m)^\| `(\w+)` \|", table)) == set(project["optional-dependencies"])
    assert f"| Python | {', '.join(pythons[:-1])} or {pythons[-1]} |" in INSTALL
    assert f"| packages | {', '.join(packages)}: " in INSTALL
