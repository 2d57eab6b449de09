"""`blocklife doctor`: what is installed, what of it works here, and what to install for more.

Rules of this file:

* Being installed is not enough: copiers move bytes both ways and these are compared, and a drawing is drawn.
* A check that fails in any way is one line of the report and does not stop the others.
* Figures of a device are measured in this run, or not shown.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from blocklife import __version__
from blocklife.cli import _built as built
from blocklife.cli._common import OK, WRONG, Parser, check_writable, put_out, wrapped, write_whole
from blocklife.errors import MisuseError
from blocklife.extras import to_install

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blocklife.copiers import Copier, MoverTable

_EXAMPLES = """\
examples:
  blocklife doctor                                  one line for each check
  blocklife doctor --json | jq .ok                  the same as JSON
  blocklife doctor --movers movers.json             write the table that pins who moves which copy on this GPU
exit status: 0 all that is installed works; 1 something installed does not
"""

_LINK_BYTES = 64 << 20
"""Bytes per copy when the speed of a link is measured."""
_LINK_ROUNDS = 5
_NAME_WIDTH = 15


class CheckOutcome(enum.Enum):
    """The outcome of one check."""

    FACT = "nothing to be tried"
    WORKS = "it was tried"
    ABSENT = "not there"
    BROKEN = "installed, and does not work"


@frozen
class Diagnosis:
    """One line of the report."""

    name: str
    verdict: CheckOutcome
    says: str
    install: str = ""
    """What to install or do; empty if nothing."""
    table: MoverTable | None = None
    """Which mover takes which copy, told in further lines."""

    def __str__(self) -> str:
        mark = {CheckOutcome.WORKS: "works: ", CheckOutcome.BROKEN: "BROKEN: "}.get(self.verdict, "")
        first = f"{self.name:<{_NAME_WIDTH}} {mark}{self.says}" + (f" ({self.install})" if self.install else "")
        return "\n".join([first, *(f"{'':<{_NAME_WIDTH}} {line}" for line in (self.table.lines() if self.table else ()))])

    def as_json(self) -> Mapping[str, object]:
        """The same as JSON data."""
        said = {"name": self.name, "verdict": self.verdict.name.lower(), "says": self.says, "install": self.install}
        return said | ({"table": self.table.as_json()} if self.table else {})


@frozen
class Tabled:
    """What a check says, with a table."""

    says: str
    table: MoverTable


class _OtherwiseError(Exception):
    """A check that comes out otherwise than its row says: with a verdict, what to say, and what to install."""

    def __init__(self, verdict: CheckOutcome, says: str, install: str = "") -> None:
        super().__init__(says)
        self.verdict, self.says, self.install = verdict, says, install


@frozen
class Check:
    """One check: a function that returns what to say, or raises."""

    name: str
    run: Callable[[], str | Tabled]
    verdict: CheckOutcome = CheckOutcome.FACT
    """If nothing is raised."""
    needs: str = ""
    """The module without which it is not made, named like the extra that brings it; empty where it needs none."""
    needs_gpu: str = ""
    """What it says where torch finds no GPU; empty where it needs none."""

    def made(self) -> Diagnosis:
        """Its outcome; a broken package may raise anything, even on import."""
        try:
            if self.needs and find_spec(self.needs) is None:
                raise _OtherwiseError(CheckOutcome.ABSENT, "not installed", to_install(self.needs))
            if self.needs_gpu:
                import torch

                if not torch.cuda.is_available():
                    raise _OtherwiseError(CheckOutcome.ABSENT, self.needs_gpu)
            said = self.run()
            if isinstance(said, Tabled):
                return Diagnosis(self.name, self.verdict, said.says, table=said.table)
            return Diagnosis(self.name, self.verdict, said)
        except _OtherwiseError as otherwise:
            return Diagnosis(self.name, otherwise.verdict, otherwise.says, otherwise.install)
        except Exception as problem:
            return Diagnosis(self.name, CheckOutcome.BROKEN, f"{type(problem).__name__}: {_in_a_line(problem)}")


def _in_a_line(problem: Exception) -> str:
    return " ".join(str(problem).split())[:300] or "no message"


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "Show what is installed and what works on this machine: every copier moves a few bytes in both directions, "
        "and they are compared. If there is a GPU, the speed of its link is measured.",
        _EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument(
        "--movers",
        metavar="FILE",
        help="write which mover takes which copy on this GPU, as a probe found it: the option 'movers' of the vLLM connector "
        "and of the linker for SGLang takes the file",
    )
    parser.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    if args.movers is not None:
        check_writable(args.movers)
    found: list[Diagnosis] = []
    for check in CHECKS:
        found.append(check.made())
        if not args.json:
            put_out(f"{wrapped(str(found[-1]), _NAME_WIDTH + 1)}\n")
    broken = [each.name for each in found if each.verdict is CheckOutcome.BROKEN]
    if args.json:
        core = built.examine()
        modules = {each.name: str(each) for each in core.modules}
        findings = [each.as_json() for each in found]
        put_out(json.dumps({"ok": not broken, "findings": findings, "core": {"by": core.by, "modules": modules}}) + "\n")
    else:
        put_out(f"\n{'broken: ' + ', '.join(broken) if broken else 'all that is installed works'}\n")
    if args.movers is not None:
        _write_movers(args.movers, found)
    return WRONG if broken else OK


def _write_movers(path: str, found: Sequence[Diagnosis]) -> None:
    """Write the table that a check has found. Refuses: MisuseError where none has."""
    tables = [each.table for each in found if each.table is not None]
    if not tables:
        why = "; ".join(each.says for each in found if each.name == "movers")
        raise MisuseError(f"doctor: no table of movers for {path}: {why} (run it where a GPU can be used)")
    write_whole(path, json.dumps(tables[0].as_json()) + "\n")


# --- what is installed -------------------------------------------------------------------------------------------------


def _python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"


def _platform() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{platform.platform()}, {cores} cores, {memory / 2**30:.1f} GiB of memory"


def _core() -> str:
    """Whether the core runs compiled. Where it does, this imports each compiled module, and tries one verb.

    A module of an engine that is not installed cannot be imported, and nobody can use it: it is named, and nothing is wrong.
    """
    core = built.examine()
    if not core.compiled:
        raise _OtherwiseError(CheckOutcome.FACT, str(core))
    if core.stale:
        raise ValueError(f"compiled from another source than lies here: {', '.join(core.stale)} (install it again)")
    untried = []
    for name in core.compiled:
        try:
            file = str(import_module(f"blocklife.{name}").__file__)
        except ModuleNotFoundError as missing:
            if not name.startswith("engines.") or (missing.name or "blocklife").partition(".")[0] == "blocklife":
                raise
            untried.append(f"{name} (without {missing.name})")
            continue
        if not file.endswith(tuple(EXTENSION_SUFFIXES)):
            raise ValueError(f"{name} is compiled, and Python runs {file}")
    _try_core()
    others = [each.name for each in core.modules if not each.compiled]
    rest = f"; interpreted: {', '.join(others)}" if others else ""
    rest += f"; not imported: {', '.join(untried)}" if untried else ""
    return f"{core}: {', '.join(core.compiled)}{rest}"


def _try_core() -> None:
    """One verb, and its refusal. Raises ValueError where either is not as it should be."""
    from blocklife.errors import CapacityError
    from blocklife.ledger import Ledger, Limits

    ledger = Ledger(Limits(num_blocks=3, num_slots=1))
    ledger.add_request("a")
    if len(ledger.allocate("a", 2)) != 2 or ledger.blocks.free != 0:
        raise ValueError(f"two of two blocks were allocated, and {ledger.blocks.free} are free")
    with contextlib.suppress(CapacityError):
        ledger.allocate("a", 1)
        raise ValueError("a third of two blocks was allocated")


def _torch() -> str:
    import torch

    cuda = torch.version.cuda
    says = f"{torch.__version__}, {f'built for CUDA {cuda}' if cuda else 'built without CUDA'}"
    if int(torch.arange(5).sum()) != 10:
        raise ArithmeticError("torch cannot add")
    if not cuda and Path("/proc/driver/nvidia/version").exists():
        install = "this machine has an NVIDIA driver: install a torch with CUDA"
        raise _OtherwiseError(CheckOutcome.WORKS, says, install)
    return says


def _drawing() -> str:
    """Needs all packages of the extra; the two kinds of drawing that need them are drawn."""
    parts = {"pygraphviz": "pygraphviz", "pymupdf-fonts": "pymupdf_fonts", "resvg-py": "resvg_py"}
    missing = [package for package, module in parts.items() if find_spec(module) is None]
    if missing:
        raise _OtherwiseError(CheckOutcome.ABSENT, f"{', '.join(missing)} not installed", to_install("draw"))
    from blocklife.drawing import Panel, picture, png
    from blocklife.states import SlotLife

    if not png([Panel(picture(SlotLife.table))]).startswith(b"\x89PNG"):
        raise ValueError("a drawing did not become a picture")
    return ", ".join(f"{package} {version(package)}" for package in parts) + "; one picture drawn"


# --- copiers -----------------------------------------------------------------------------------------------------------


_BLOCKS, _PLACES, _TARGETS = [0, 1, 2, 3], [5, 2, 7, 0], [4, 5, 6, 7]
"""Blocks that are stored, the host places that they go to, and the blocks that they are loaded into."""
_NUM_PLACES, _PAGE_BYTES = 8, 512


def _there_and_back(copier: Copier) -> None:
    """A store, and a load of what it stored. Raises ValueError where one of them is not reported as it should be."""
    from blocklife.ledger import Completion, Direction, JobId, Result, Transfer

    blocks, places, targets = (np.array(ids, dtype=np.int64) for ids in (_BLOCKS, _PLACES, _TARGETS))
    try:
        for number, direction, source, target in ((1, Direction.STORE, blocks, places), (2, Direction.LOAD, places, targets)):
            job = JobId(1, number)
            copier.launch(Transfer(job, direction, source, target, (len(source),)))
            copier.wait([job])
            if (reported := copier.poll()) != [Completion(job, copier.worker, Result.OK)]:
                raise ValueError(f"a {direction.name.lower()} was reported as {reported}")
    finally:
        copier.close()


def _compare(device: NDArray[np.uint8], host: NDArray[np.uint8], content: NDArray[np.uint8]) -> None:
    """Whether everything lies where it should after `_there_and_back`. Raises ValueError where it does not."""
    for what, found in (("stored", host[_PLACES]), ("loaded", device[_TARGETS]), ("kept", device[_BLOCKS])):
        if not np.array_equal(found, content):
            raise ValueError(
                f"the bytes that were {what} are not those that went ({np.count_nonzero(found != content)} differ)"
            )


def _content() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(256, size=(len(_BLOCKS), _PAGE_BYTES), dtype=np.uint8)


def _copier_cpu() -> str:
    from blocklife.copiers import CpuCopier
    from blocklife.ledger import Worker

    content = _content()
    device, host = (np.zeros((_NUM_PLACES, _PAGE_BYTES // 8), dtype=np.uint64) for _ in range(2))
    device[_BLOCKS] = content.view(np.uint64)
    _there_and_back(CpuCopier(device, host, worker=Worker(0)))
    _compare(device.view(np.uint8), host.view(np.uint8), content)
    return f"{content.nbytes:,} bytes there and back, compared"


def _copier_torch(device: str) -> str:
    import torch

    from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
    from blocklife.ledger import Worker

    content = _content()
    cache = torch.zeros((_NUM_PLACES, _PAGE_BYTES), dtype=torch.uint8, device=device)
    cache[_BLOCKS] = torch.from_numpy(content).to(device)
    with HostMemory(_PAGE_BYTES, _NUM_PLACES, pinned=device == "cuda") as host:
        copier = TorchCopier(KvCache([[cache]]), host, worker=Worker(0))
        copier.computed()
        _there_and_back(copier)
        _compare(cache.cpu().numpy(), host.rows.numpy(), content)
    return f"{content.nbytes:,} bytes between {device} tensors and host memory and back, compared"


_TAKEN_BYTES = 64 << 20
"""Bytes of host memory that are taken to say how long more would take; each processor that writes it gets some."""


def _host_memory() -> str:
    """What a host tier can have here, and what its start would take."""
    import torch

    from blocklife.copiers.torch import HostMemory
    from blocklife.copiers.torch._memory import available_bytes
    from blocklife.copiers.torch._touching import THREADS_MAX, processors_near

    pinned = torch.cuda.is_available()
    near = torch.device("cuda", torch.cuda.current_device()) if pinned else None
    processors = sorted(processors_near(near))
    threads = min(len(processors), THREADS_MAX)
    begin = time.perf_counter()
    HostMemory(1 << 20, _TAKEN_BYTES * threads >> 20, pinned=pinned, near=near).close()
    rate = _TAKEN_BYTES * threads / (time.perf_counter() - begin)
    available = available_bytes()
    parts = [
        "available: " + ("unknown" if available is None else f"{available / 2**30:.1f} GiB"),
        f"{rate / 2**30:.1f} GiB a second {'pinned' if pinned else 'taken, not pinned'}, by {threads} threads"
        + (f" on the processors {told_of_numbers(processors)} near the GPU" if pinned else ""),
        f"100 GiB would take {100 * 2**30 / rate:.0f} s",
        f"huge pages: {_chosen(Path('/sys/kernel/mm/transparent_hugepage/enabled'))}",
        f"locked at most: {_lock_limit()}",
    ]
    with contextlib.suppress(OSError):
        shared = os.statvfs("/dev/shm")
        parts.append(f"/dev/shm: {shared.f_bavail * shared.f_frsize / 2**30:.1f} GiB free")
    return "; ".join(parts)


def told_of_numbers(numbers: Sequence[int]) -> str:
    """Ascending numbers as Linux writes them: ``0-3,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _chosen(setting: Path) -> str:
    """What a file of Linux says that marks its choice with brackets."""
    with contextlib.suppress(OSError, IndexError):
        return setting.read_text().split("[")[1].split("]")[0]
    return "unknown"


def _lock_limit() -> str:
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return (
        "no limit"
        if most == resource.RLIM_INFINITY
        else f"{most / 2**20:,.1f} MiB (ulimit -l; CUDA's own locking may ignore it)"
    )


def _movers() -> Tabled:
    """How the cuda copier moves bytes on this machine: each mover that is named has carried some there and back."""
    import torch

    from blocklife.copiers.torch import HostMemory, KvCache
    from blocklife.copiers.torch._layout import CopyLayout
    from blocklife.copiers.torch._probe import mover_for_cuda

    cache = KvCache([[torch.zeros((_NUM_PLACES, _PAGE_BYTES), dtype=torch.uint8, device="cuda")]])
    with HostMemory(_PAGE_BYTES, _NUM_PLACES, pinned=True) as host:
        mover = mover_for_cuda(CopyLayout(cache, host))
    return Tabled(told_of_movers(mover.names, mover.left_out), mover.table)


def told_of_movers(names: tuple[str, ...], left_out: dict[str, str]) -> str:
    """Which there are, and why others are not."""
    reasons = "; ".join(f"{name} ({why})" for name, why in left_out.items())
    return ", ".join(names) + (f"; copies are slower without {reasons}" if reasons else "")


def _ranks() -> str:
    """What `torch.distributed` needs for ranks on this machine."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_gloo_available()):
        install = "install a torch with torch.distributed and gloo"
        raise _OtherwiseError(CheckOutcome.ABSENT, "torch is built without gloo", install)
    return "torch.distributed with gloo; start them with torchrun"


# --- stores and devices --------------------------------------------------------------------------------------------------


_MOONCAKES = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine", "mooncake-transfer-engine-cuda13")
"""The package is built in several ways, each with its own name."""


def _mooncake() -> str:
    """Whether the package of Mooncake Store can be imported, with its libraries. No master is asked."""
    from blocklife.tiers._mooncake import INSTALL_LIBRARIES, find_mooncake

    try:
        find_mooncake()
    except ImportError as problem:
        install = INSTALL_LIBRARIES if ".so" in str(problem) else to_install("mooncake")
        raise _OtherwiseError(CheckOutcome.BROKEN, f"cannot be imported: {_in_a_line(problem)}", install) from problem
    package = "a mooncake of unknown version"
    for name in reversed(_MOONCAKES):
        with contextlib.suppress(PackageNotFoundError):
            package = f"{name} {version(name)}"
    return f"{package}, can be imported; no master was asked (blocklife store check mooncake:HOST:PORT)"


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        without = "torch sees none" if torch.version.cuda else "torch is built without CUDA, and looks for none"
        raise _OtherwiseError(CheckOutcome.ABSENT, without)
    told = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        told.append(f"{index}: {about.name}, {about.total_memory / 2**30:.1f} GiB, capability {about.major}.{about.minor}")
    return "; ".join(told)


def _link() -> str:
    """Best of some rounds in each direction, from and to pinned memory: what a copier can hope for at most."""
    import torch

    host = torch.ones(_LINK_BYTES, dtype=torch.uint8).pin_memory()
    device = torch.zeros(_LINK_BYTES, dtype=torch.uint8, device="cuda")

    def measure(target: torch.Tensor, source: torch.Tensor) -> float:
        best = float("inf")
        for _ in range(_LINK_ROUNDS):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begin)
        return _LINK_BYTES / best / 1e9

    to_device = measure(device, host)
    host.zero_()
    to_host = measure(host, device)
    if not bool(host.all()):
        raise ValueError("the bytes that came back are not those that went")
    how = f"{_LINK_BYTES >> 20} MiB, pinned, best of {_LINK_ROUNDS}"
    return f"{to_device:.1f} GB/s to the device, {to_host:.1f} GB/s to the host ({how})"


_WORKS = CheckOutcome.WORKS
CHECKS: Sequence[Check] = (
    Check("python", _python),
    Check("platform", _platform),
    Check("blocklife", lambda: __version__),
    Check("core", _core, _WORKS),
    Check("numpy", lambda: np.__version__),
    Check("torch", _torch, _WORKS, needs="torch"),
    Check("drawing", _drawing, _WORKS),
    Check("copier cpu", _copier_cpu, _WORKS),
    Check("copier torch", lambda: _copier_torch("cpu"), _WORKS, needs="torch"),
    Check("copier cuda", lambda: _copier_torch("cuda"), _WORKS, needs="torch", needs_gpu="not tried: no GPU"),
    Check("host memory", _host_memory, _WORKS, needs="torch"),
    Check("movers", _movers, _WORKS, needs="torch", needs_gpu="not tried: no GPU"),
    Check("ranks", _ranks, needs="torch"),
    Check("store mooncake", _mooncake, needs="mooncake"),
    Check("gpu", _gpu, needs="torch"),
    Check("link", _link, _WORKS, needs="torch", needs_gpu="not measured: no GPU"),
)
"""Every check, in the order in which they are told."""
