"""``python -m tests.sglang.run VERSION [TEST ...] [pytest options]``: our tests under a fetched release of SGLang, on the CPU.

With ``--theirs`` they are SGLang's own unit tests of its cache, from the checkout that was fetched, with the code beside them.
Whatever stands behind the version goes to pytest, or to what the option names, as it is: ``-n 2``, ``-k name``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence

from tests.behind.running import SHARED, Make, around_without, parser, pytest_of_ours
from tests.behind.shelf import ON_PATH, PROJECT, Command, release_asked
from tests.programs import HANGS_S, refused
from tests.sglang.releases import DEFAULT, HERE, Shelf, transformers_of

PROGRAM = "tests.sglang.run"
PLUGINS = HERE / "plugins"
NOT_OURS = ("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
"""Warnings that come with importing SGLang and what it imports; all others are errors, as in the project's other tests."""
OURS = ("--timeout", str(HANGS_S), *(word for warning in NOT_OURS for word in ("-W", warning)))
"""The options of pytest that our tests are run with."""
THEIRS = "test/registered/unit/mem_cache"
"""Where SGLang's own unit tests of its cache lie."""
RUNNING = (
    *("radix_cache_unit", "evict_policy", "registry", "radix_cache_slru_accuracy", "radix_force_miss", "mem_pool_host"),
    *("hicache_file_lru_unit", "hiradix_pp_sync_drain", "unified_radix_hicache_dispatch", "hicache_staged_write_back_dispatch"),
    *("hicache_load_back_timing", "hiradix_cache_unit", "decode_radix_lock_ref", "streaming_session_unit"),
    *("session_token_share_unit", "swa_lock_release_lifecycle", "swa_unittest", "swa_eviction_boundary", "mamba_unittest"),
    *("mem_cache_utils", "layout_compat", "multi_ended_allocator", "unified_radix_cache_unittest"),
)
"""Those of them that run without a GPU, without its kernels and without other machines: ``test_NAME.py``."""

UNABLE = ("registered/unit/mem_cache/test_radix_cache_unit.py::TestRadixCache::test_memory_allocated",)
"""It asks torch how much memory of a GPU is in use."""


def surroundings(shelf: Shelf, release: str, around: Mapping[str, str]) -> dict[str, str]:
    """The environment variables under which a release runs, given those *around*."""
    return _with_paths(shelf, [str(shelf.source(release))], shelf.metadata(release), around)


def _with_paths(shelf: Shelf, paths: list[str], metadata: str, around: Mapping[str, str]) -> dict[str, str]:
    other = transformers_of(metadata)
    if other is not None:
        paths = [*paths, str(shelf.transformers(other))]
    fixed = {
        "PYTHONPATH": os.pathsep.join([*paths, str(PLUGINS), *ON_PATH]),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(shelf.cache / "huggingface"),
        "OMP_NUM_THREADS": "1",  # what is computed here is tiny: threads cost more than they bring
    }
    return {"PYTHONHASHSEED": "0", **around_without(around), **fixed}


def ours(shelf: Shelf, release: str, wanted: Sequence[str], around: Mapping[str, str]) -> Command:
    """Tests of this folder, with the project's settings."""
    return pytest_of_ours(shelf, OURS, wanted, (HERE, SHARED), surroundings(shelf, release, around))


def python(shelf: Shelf, release: str, wanted: Sequence[str], around: Mapping[str, str]) -> Command:
    """A program of ours."""
    return Command([str(shelf.python), *wanted], PROJECT, surroundings(shelf, release, around))


def theirs(shelf: Shelf, release: str, wanted: Sequence[str], around: Mapping[str, str]) -> Command:
    """SGLang's own tests, with the code that they were written for; *release* lends its compiled parts and no more."""
    words = [str(shelf.python), "-m", "pytest", "--quiet", "--no-header", "-p", "no:cacheprovider", "-p", "cpu_device"]
    words += ["--timeout", str(HANGS_S), "--continue-on-collection-errors", "-W", "ignore"]
    paths = [str(shelf.sources / "python")]
    pins = (shelf.sources / "python" / "pyproject.toml").read_text(encoding="utf-8")
    wants = "\n".join(f"Requires-Dist: {line.strip().strip(',').strip(chr(34))}" for line in pins.splitlines())
    words += [f"--deselect={each}" for each in UNABLE]
    named = any(not each.startswith("-") for each in wanted[:1])
    tests = wanted if named else [*(f"test_{name}.py" for name in RUNNING), *wanted]
    environ = _with_paths(shelf, paths, wants, around)
    del environ["CUDA_VISIBLE_DEVICES"]  # they take its first letter for a number
    return Command([*words, *tests], shelf.sources / THEIRS, environ)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    makes: Mapping[Make[Shelf], str] = {
        python: "no tests: the environment's Python, with what follows (-m tests.sglang.drive, say)",
        theirs: "SGLang's own unit tests of its cache, all that can run if none is named",
    }
    return parser(PROGRAM, __doc__, "[--python | --theirs]", ours, makes).parse_args(arguments)


def chosen_command(arguments: Sequence[str] | None, shelf: Shelf, around: Mapping[str, str]) -> Command:
    """The command that was asked for, if it can be run."""
    chosen = parsed(arguments)
    release = release_asked(PROGRAM, chosen.version, shelf, DEFAULT)
    if chosen.make is theirs and not shelf.sources.is_dir():
        refused(PROGRAM, "SGLang's own tests are not here (python -m tests.sglang.fetch --sources CHECKOUT)")
    command: Command = chosen.make(shelf, release, chosen.wanted, around)
    return command


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for."""
    chosen_command(arguments, Shelf(), os.environ).become()


if __name__ == "__main__":
    main()
