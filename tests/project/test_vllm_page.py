"""What `examples/vllm_offload.md` says of the connector and of the watch is what they take, word for word."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from blocklife.engines.vllm.connector._config import ALIASES, ConnectorConfig, keys
from blocklife.offload import Mode as StoreMode
from blocklife.watch import Options, WatchMode

PAGE = (Path(__file__).parents[2] / "examples" / "vllm_offload.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> list[str]:
    """The first cells of the first table below a heading."""
    table = PAGE[PAGE.index(heading) :].split("| --- |", 1)[1].split("\n\n")[0]
    return [line.split("|")[1] for line in table.splitlines()[1:]]


def quoted(cells: list[str]) -> list[str]:
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def test_page_shows_a_configuration_that_is_accepted() -> None:
    """The JSON of the command is JSON, and its extra configuration is read."""
    found = re.search(r"--kv-transfer-config '(.*?)'", PAGE, flags=re.DOTALL)
    assert found is not None
    given = json.loads(found[1])
    config = ConnectorConfig.read(given["kv_connector_extra_config"])

    assert (config.host_bytes, config.policy) == (64 << 30, "arc")
    assert given["kv_connector_module_path"] == "blocklife.engines.vllm"


def test_page_lists_keys_that_exist_with_their_defaults() -> None:
    names = quoted(first_cells("everything else has a default"))

    assert set(names) <= set(keys())
    assert all(f"`{alias}`" in PAGE for alias in ALIASES)
    assert ConnectorConfig(host_blocks=1).policies.mode is StoreMode.EAGER


@pytest.mark.parametrize("setting", quoted(first_cells("| setting |")))
def test_page_shows_settings_that_the_watch_understands(setting: str) -> None:
    """Each line of the table is taken from the environment as it stands."""
    name, _, value = setting.partition("=")
    options = Options.from_environment({"BLOCKLIFE_WATCH": "log", name: value})

    assert options is not None
    assert {
        "BLOCKLIFE_WATCH": options.mode.name.lower(),
        "BLOCKLIFE_WATCH_SAMPLE": str(options.sample),
        "BLOCKLIFE_WATCH_RECORD": options.record,
    }[name] == value


def test_page_names_every_mode_of_the_watch() -> None:
    assert {f"BLOCKLIFE_WATCH={mode.name.lower()}" for mode in WatchMode} <= set(quoted(first_cells("| setting |")))
