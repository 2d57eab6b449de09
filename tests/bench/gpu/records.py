"""What was measured, as records: nothing here knows a device. They go to JSON and come back."""

from __future__ import annotations

import json
import statistics

from attrs import asdict, field, frozen

from blocklife.errors import MisuseError

LIMIT, COPIER, NEIGHBOURS, EACH, GATHER = "limit", "copier", "neighbours", "copy_ a block", "index_select"
"""One large copy; ours; ours with neighbouring blocks; one ``copy_`` for each page; gathered on the device and sent as one."""

MOVERS = ("slices", "batch", "kernel")
"""Ours, by one mover only."""

VLLM_BATCH, VLLM_KERNEL, SGLANG, LMCACHE = PACKAGES = ("vLLM batch", "vLLM kernel", "SGLang", "LMCache")
"""By the calls of other packages, where these can be imported."""

KIB = 1 << 10
LARGE_PAGE = 64 * KIB
LIMIT_SHARE_MIN = 0.9
"""From `LARGE_PAGE` on, ours should reach this share of the limit."""
EACH_RATIO_MIN = 3.0
"""Below it, ours should be so many times as fast as one copy a block."""


@frozen(kw_only=True)
class Timed:
    """One competitor in one case. ``seconds`` and ``held_us`` have one number for each repetition."""

    name: str
    nbytes: int
    seconds: tuple[float, ...] = ()
    """From the first launch until the last byte has landed, on the device's clock."""
    held_us: tuple[float, ...] = ()
    """How long one launch held the calling thread: the median of the launches."""
    trouble: str = ""
    """Why it has no figures; empty if it has."""

    @property
    def rate(self) -> float:
        """Gigabytes a second, median."""
        return self.nbytes / statistics.median(self.seconds) / 1e9

    @property
    def slowest(self) -> float:
        """The worst repetition's rate."""
        return self.nbytes / max(self.seconds) / 1e9

    @property
    def quickest(self) -> float:
        """The best repetition's rate."""
        return self.nbytes / min(self.seconds) / 1e9

    @property
    def launch_us(self) -> float:
        """Microseconds that a launch holds the calling thread, median."""
        return statistics.median(self.held_us)


@frozen(kw_only=True)
class Case:
    """All competitors with one page size and one direction: store, load, or both at once."""

    page: int
    direction: str
    timed: tuple[Timed, ...]
    chosen: str = ""
    """The mover that ours takes here, or one for each direction; empty where it has none to choose from."""

    def of(self, name: str) -> Timed | None:
        """The figures of a competitor; None where it has none."""
        return next((each for each in self.timed if each.name == name and each.seconds), None)

    def ratio(self, name: str, to: str) -> float | None:
        """How many times as fast one is as another; None where one of them has no figures."""
        one, other = self.of(name), self.of(to)
        return None if one is None or other is None else one.rate / other.rate

    @property
    def bar(self) -> str:
        """The target of this case, and whether ours meets it."""
        large = self.page >= LARGE_PAGE
        ratio, least = self.ratio(COPIER, LIMIT if large else EACH), LIMIT_SHARE_MIN if large else EACH_RATIO_MIN
        words = f"{least:.0%} of the limit" if large else f"{least:g} x copy_"
        return f"{words}: {'not measured' if ratio is None else 'met' if ratio >= least else 'MISSED'}"

    @property
    def best(self) -> str:
        """The quickest of the movers."""
        there = [each for each in map(self.of, MOVERS) if each is not None]
        return max(there, key=lambda each: each.rate).name if there else ""


@frozen(kw_only=True)
class Beside:
    """A matrix product alone, and beside copies of one competitor in one direction: milliseconds each, every one."""

    page: int
    direction: str
    mover: str
    alone_ms: tuple[float, ...]
    beside_ms: tuple[float, ...]
    copied_rate: float
    """Gigabytes a second that were copied meanwhile."""
    multiprocessors: int = 0
    """How many the device has; 0 where nobody says."""

    @property
    def slowdown(self) -> float:
        """By which share the product takes longer."""
        return statistics.median(self.beside_ms) / statistics.median(self.alone_ms) - 1

    @property
    def taken(self) -> float:
        """Multiprocessors that the product lost, as if speed were all that they give: the share of its speed that is gone."""
        return self.multiprocessors * (1 - 1 / (1 + max(self.slowdown, 0.0)))


@frozen(kw_only=True)
class Report:
    """One run."""

    facts: dict[str, str]
    """The machine, the versions, the day, the sizes."""
    cases: tuple[Case, ...]
    beside: tuple[Beside, ...]
    absent: dict[str, str] = field(factory=dict)
    """Movers and packages that are not there, and why."""
    left_out: tuple[str, ...] = ()
    """What there was no time for."""
    broken: str = ""
    """Why it ended early, where a device was lost, say; what was measured by then is here."""

    @property
    def troubles(self) -> list[str]:
        """Who moved wrong bytes, or raised."""
        return [
            f"{case.direction}, pages of {size(case.page)}, {each.name}: {each.trouble}"
            for case in self.cases
            for each in case.timed
            if each.trouble
        ]


def size(nbytes: int) -> str:
    """Bytes as people say them."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):g} {unit}"
    return f"{nbytes} B"


def to_json(report: Report) -> str:
    """Everything, each repetition included."""
    return json.dumps(asdict(report), indent=1)


def from_json(text: str) -> Report:
    """The inverse of `to_json`. Refuses: MisuseError for what is no report."""
    try:
        read = json.loads(text)
        return Report(
            facts=dict(read["facts"]),
            cases=tuple(
                Case(
                    page=case["page"],
                    direction=case["direction"],
                    chosen=case["chosen"],
                    timed=tuple(
                        Timed(**{**each, "seconds": tuple(each["seconds"]), "held_us": tuple(each["held_us"])})
                        for each in case["timed"]
                    ),
                )
                for case in read["cases"]
            ),
            beside=tuple(
                Beside(**{**each, "alone_ms": tuple(each["alone_ms"]), "beside_ms": tuple(each["beside_ms"])})
                for each in read["beside"]
            ),
            absent=dict(read["absent"]),
            left_out=tuple(read["left_out"]),
            broken=read["broken"],
        )
    except (ValueError, KeyError, TypeError) as problem:
        raise MisuseError(f"no report of this benchmark: {problem!r} (give what --json printed)") from problem
