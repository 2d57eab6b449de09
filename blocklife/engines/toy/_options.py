"""The options of a replay. Each is declared once: its default, its range, and what the command line says of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from attrs import field, fields, frozen

from blocklife._theirs import factory_in, is_dotted, module_named, told
from blocklife.copiers._faults import FaultRates
from blocklife.engines.toy._memory import WORD_BYTES
from blocklife.engines.toy._workload import HASH_TOKENS
from blocklife.errors import MisuseError
from blocklife.extras import to_install
from blocklife.groups import MAX_BLOCKS_PER_CHUNK
from blocklife.ledger import Checking, Contract
from blocklife.offload import BelowPolicies, FullAttention, Geometry, Mode
from blocklife.offload.replacement import Replacement, register, replacement, replacements
from blocklife.policies import BUILT_IN
from blocklife.tiers import StoreFaultRates

if TYPE_CHECKING:
    from blocklife.engines.toy._tensors import TensorDevice

ValueT = TypeVar("ValueT")

MAX_WORKERS = 64
SPARE_REQUESTS = 1024
"""Requests that the ledger has room for besides running ones: preempted requests stay known."""
MAX_RUNNING = (1 << 16) - 1 - SPARE_REQUESTS
MAX_DEADLINE = 1 << 16
"""The longest deadline, in steps: a hanging copy holds its request that long."""
LEDGER_BYTES = 96
"""Bytes that one place costs in the ledger: columns, queues, keys."""
DEFAULT_BLOCK_TOKENS = 128
"""Tokens of a block if no option names the groups."""
COPIERS = ("cpu", "torch", "cuda")
"""The copiers: between numpy arrays, CPU tensors and host memory, or a CUDA device and pinned host memory."""


def option(default: ValueT, meaning: str, *, flag: str = "", most: int | None = None, **more: object) -> ValueT:
    """Declare an option with what the command line says of it; *most*: it is a whole number from 1 to that.

    *more* is for argparse.
    """
    more = more if most is None else {"type": int, "metavar": "N", **more}
    return field(default=default, metadata={"words": {"help": meaning, **more}, "flag": flag, "most": most})


def _check_range(name: str, value: int, most: int) -> None:
    if value < 1:
        raise MisuseError(f"{name} must be at least 1, not {value}")
    if value > most:
        raise MisuseError(f"{name} can be at most {most}, not {value}")


@frozen(kw_only=True)
class BelowOptions:
    """The tier below of a replay."""

    store: str
    """The address of the store (`open_store`)."""
    policies: BelowPolicies = field(factory=BelowPolicies)
    """The policies of the scheduler; its unit of time is a step."""
    faults: StoreFaultRates | None = None
    """Faults that are planted in the store."""


@frozen(kw_only=True)
class ReplayOptions:
    """Everything that decides what a replay does, except the workload. The command line has the same, by the same names.

    Refuses: MisuseError for options that cannot work, named as the command line spells them.
    """

    gpu_blocks: int = option(2048, "blocks on the device, the null block included", most=1 << 31)
    host_slots: int = option(8192, "slots in host memory; a slot holds one chunk", most=1 << 31)
    block_bytes: int = option(128, "bytes of a block", most=1 << 30)
    workers: int = option(1, "ranks; each has its own memory and copies its share of every job", most=MAX_WORKERS)
    step_tokens: int = option(8192, "maximum number of tokens that a step computes", most=1 << 40)
    max_running: int = option(256, "requests that run or load at the same time", most=MAX_RUNNING)
    link_blocks: int = option(
        24, "blocks that --copier cpu moves in a step, per direction; other copiers have no such limit", most=1 << 31
    )
    max_jobs: int = option(32, "maximum number of outstanding jobs", most=1 << 16)
    deadline: int = option(128, "deadline of a job, in steps", most=MAX_DEADLINE)
    groups: Geometry | str | None = option(
        None,
        "full:BLOCK, swa:BLOCK:WINDOW, local:BLOCK:PART or mamba:BLOCK, in tokens, with commas between; blocks divide 512",
        metavar="GROUPS",
    )
    block_tokens: int | None = option(
        None, f"short for --groups full:N (default {DEFAULT_BLOCK_TOKENS}; not together with --groups)", type=int, metavar="N"
    )
    blocks_per_chunk: int | None = option(None, "blocks that are offloaded as one (default 1)", type=int, metavar="N")
    mode: Mode = option(Mode.EAGER, "store chunks as they fill, or when they are about to be evicted")
    asynchronous: bool = option(False, "plan each step while the previous one runs", flag="--async")
    policy: str = option(
        "lru",
        f"eviction policy of the host tier: {', '.join(BUILT_IN)}, one that is registered, or module:name, for what a module "
        "registers by that name, or makes when it is called with the number of slots",
    )
    copier: str = option(
        "cpu",
        "what moves the bytes: cpu between numpy arrays, torch between CPU tensors and host memory, cuda between the "
        "current GPU and pinned host memory",
        choices=COPIERS,
    )
    contract: Contract = option(Contract.FENCE, "what may happen to a block that a copy reads")
    checking: Checking = option(Checking.STRICT, "what happens when a rule is broken (default strict: stop)")
    faults: FaultRates | None = option(
        None,
        "inject faults: fail, late, twice, reorder, never=SHARE of copies; with --below also below_fail, below_slow, "
        "below_hang, below_cut, below_flip, below_lose=SHARE of entries",
        nargs="?",
        const="default",
        metavar="RATES",
    )
    abort: float | None = option(
        None, "share of requests that are aborted (default 0; 0.02 with --faults)", type=float, metavar="SHARE"
    )
    below: BelowOptions | None = option(
        None,
        "keep content below host memory, too: fs:DIR, fs:DIR:BYTES, mooncake:HOST:PORT or package.module:factory "
        "(default: nowhere)",
        metavar="STORE",
    )
    seed: int = option(0, "seed of faults, aborts, sampling and the generated workload", type=int, metavar="N")
    speed: float | None = option(
        None, "milliseconds of workload time per step (default: all requests arrive at once)", type=float, metavar="MS"
    )
    verify: float = option(1.0, "share of the blocks read that are verified", type=float, metavar="SHARE")
    geometry: Geometry = field(init=False, eq=False)
    """The groups that ``groups``, ``block_tokens`` and ``blocks_per_chunk`` result in."""

    @geometry.default
    def _geometry(self) -> Geometry:
        return _geometry(self.groups, self.block_tokens, self.blocks_per_chunk)

    @property
    def has_faults(self) -> bool:
        """Whether faults are planted, in copies or in the store below."""
        return self.faults is not None or (self.below is not None and self.below.faults is not None)

    def __attrs_post_init__(self) -> None:
        for each in fields(ReplayOptions):
            if each.metadata.get("most") is not None:
                _check_range(f"--{each.name.replace('_', '-')}", getattr(self, each.name), each.metadata["most"])
        if self.gpu_blocks < 2:
            raise MisuseError("--gpu-blocks must be at least 2: block 0 is the null block and is never handed out")
        if self.block_bytes % WORD_BYTES:
            raise MisuseError(f"--block-bytes must be a multiple of {WORD_BYTES}, not {self.block_bytes}")
        _know_policy(self.policy)
        for name, share in (("verify", self.verify), ("abort", self.abort)):
            if share is not None and not 0.0 <= share <= 1.0:
                raise MisuseError(f"--{name} must be a share from 0 to 1, not {share}")
        if self.speed is not None and not 0.0 < self.speed < 1e12:
            raise MisuseError(f"--speed must be above 0 milliseconds a step, not {self.speed}")
        if not 0 <= self.seed < 1 << 63:
            raise MisuseError(f"--seed must be from 0 to {(1 << 63) - 1}, not {self.seed}")
        self._check_memory()

    def _check_memory(self) -> None:
        """Refuse more memory than the machine and its device have, and a copier that cannot run here."""
        size, on_device = self.geometry.blocks_per_chunk, self.gpu_blocks * self.workers * self.block_bytes
        if self.copier not in COPIERS:
            raise MisuseError(f"--copier must be one of {', '.join(COPIERS)}, not {self.copier!r}")
        device = device_for(self.copier)
        room = None if device is None else device.room()
        if room is not None and on_device > room:
            raise MisuseError(
                f"--workers {self.workers} x --gpu-blocks {self.gpu_blocks} x --block-bytes {self.block_bytes} "
                f"need {on_device / 2**30:.1f} GiB, and the device has room for {room / 2**30:.1f} GiB (lower one)"
            )
        needed = (self.gpu_blocks + self.host_slots * size) * (self.workers * self.block_bytes + LEDGER_BYTES)
        needed -= on_device * (room is not None)
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > 0.8 * there:
            slots = f"--host-slots {self.host_slots}" + f" x --blocks-per-chunk {size}" * (size > 1)
            raise MisuseError(
                f"--workers {self.workers} x (--gpu-blocks {self.gpu_blocks} + {slots}) x --block-bytes {self.block_bytes} "
                f"need {needed / 2**30:.1f} GiB, and this machine has {there / 2**30:.1f} GiB (lower one)"
            )


def _know_policy(name: str) -> None:
    """Refuse a policy that cannot be made. One that ``module:name`` names is registered under that text."""
    module, colon, what = name.partition(":")
    if name in replacements() or not colon:
        replacement(name, 1)
        return
    option = f"--policy {name}"
    if not is_dotted(module) or not what:
        raise MisuseError(f"{option}: there is no such module (write module:name, such as my_policies:NewestFirst)")
    home = module_named(module, option)
    make: Callable[[int], Replacement]
    make = partial(replacement, what) if what in replacements() else factory_in(home, what, option)
    try:
        replacement(make(1), 1)
    except MisuseError as problem:
        raise MisuseError(f"{option}: {problem}") from problem
    except (Exception, SystemExit) as problem:
        raise MisuseError(f"{option}: {what}(1) raised {told(problem)}") from problem
    register(name, make)


def device_for(copier: str) -> TensorDevice | None:
    """The device of a copier; None for numpy. Refuses: MisuseError for a copier that cannot run here."""
    if copier == "cpu":
        return None
    try:
        from blocklife.engines.toy._tensors import TensorDevice
    except (ImportError, OSError) as problem:  # a torch that does not load raises either
        why = (str(problem).splitlines() or ["no message"])[0]
        raise MisuseError(f"--copier {copier} needs torch: {why} ({to_install('torch')})") from None
    return TensorDevice(copier)


def _geometry(groups: Geometry | str | None, block_tokens: int | None, blocks_per_chunk: int | None) -> Geometry:
    """The geometry that these options result in. Refuses: MisuseError if they contradict each other."""
    if blocks_per_chunk is not None:
        _check_range("--blocks-per-chunk", blocks_per_chunk, MAX_BLOCKS_PER_CHUNK)
    if groups is None:
        block_tokens = DEFAULT_BLOCK_TOKENS if block_tokens is None else block_tokens
        _check_range("--block-tokens", block_tokens, HASH_TOKENS)
        if HASH_TOKENS % block_tokens:
            raise MisuseError(f"--block-tokens must divide {HASH_TOKENS}, the tokens of one hash; {block_tokens} does not")
        return Geometry([FullAttention(block_tokens)], blocks_per_chunk or 1)
    if block_tokens is not None:
        raise MisuseError(f"--block-tokens {block_tokens} and --groups {groups} both name the groups (give one of them)")
    if isinstance(groups, Geometry):
        found, size = groups, groups.blocks_per_chunk
        if blocks_per_chunk not in (None, size):
            raise MisuseError(f"--blocks-per-chunk {blocks_per_chunk} and groups with blocks_per_chunk {size} do not agree")
    else:
        try:
            found = Geometry.parse(groups, blocks_per_chunk or 1)
        except MisuseError as problem:
            raise MisuseError(f"--groups: {problem}") from None
    for each in found.groups:
        if HASH_TOKENS % each.block_tokens:
            raise MisuseError(f"--groups: {each} has blocks that do not divide {HASH_TOKENS}, the tokens of one hash")
    return found
