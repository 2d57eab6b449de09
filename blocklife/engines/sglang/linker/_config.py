"""The options of the linker, from `linker_extra_config`: keys, defaults and checks.

Rules of this file:

* An unknown key is an error that suggests the nearest known one. Nothing is ignored.
* Every option has a default, documented here; only the size of host memory has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial

from attrs import evolve, field, fields, frozen

from blocklife.copiers import MoverTable, read_movers
from blocklife.engines import _options as options
from blocklife.errors import MisuseError
from blocklife.ledger import Checking
from blocklife.ledger._limits import MAX_SLOTS
from blocklife.offload import BelowPolicies

PLACE = "linker_extra_config"
"""Where the options stand."""

USUAL_BELOW = BelowPolicies(max_wait=0.05, max_slots=1 << 12, job_slots=64)
"""The policies of the tier below of a linker that is told nothing; the unit of time is the second."""
_BELOW = {key: each for key, each in options.BELOW.items() if key != "below_told"}
"""Those that are options: SGLang takes no events from a linker."""


@frozen(kw_only=True)
class LinkerConfig:
    """The options of one rank. Give exactly one of ``host_bytes`` and ``host_pages``."""

    host_bytes: int | None = field(default=None, metadata={"read": options.num_bytes})
    """Host memory of each rank, in bytes or as a text like 64GiB."""
    host_pages: int | None = field(default=None, metadata={"read": options.count})
    """Host memory of each rank, in pages of SGLang; for windows and states it has as many times what the device has."""
    policy: str = field(default="arc", metadata={"read": options.replacement})
    """The eviction policy of host memory, by its name in `blocklife.offload.replacement` or one that was registered there."""
    deadline_s: float = field(default=60.0, metadata={"read": options.seconds})
    """How long a copy to the host may take, in seconds from its launch. Then it has failed, and a step waits for its end."""
    load_parts: int = field(default=1, metadata={"read": partial(options.count, most=options.MAX_PARTS)})
    """In how many parts of neighbouring layers loads go. With more than one, each layer of the forward pass waits only for its
    own part, and the rest is loaded behind the layers before; with one, the pass waits for whole loads."""
    movers: MoverTable | None = field(default=None, metadata={"read": read_movers})
    """Which method of copying takes which copy on a CUDA device: the path of what `blocklife doctor --movers FILE` wrote, or
    what is in it. Default: each rank probes its own device when it starts."""
    below: str | None = field(default=None, metadata={"read": options.address})
    """The address of a store below host memory, in a form that `blocklife.tiers.open_store` takes; default: none."""
    policies_below: BelowPolicies = USUAL_BELOW
    """The policies of the tier below, each under its own name behind ``below_``. ``below_wait_s`` is how long the lookups of a
    step wait for it, all together."""
    below_generation: str = field(default="", metadata={"read": options.text})
    """Anything; change it to leave all content of the store behind, for example after the weights have changed."""
    checking: Checking = field(default=Checking.COUNT, metadata={"read": options.one_of(Checking)})
    """What happens when a rule of the ledger is broken: strict raises, count counts it and goes on, off does not check."""

    def __attrs_post_init__(self) -> None:
        if (self.host_bytes is None) is (self.host_pages is None):
            given = "neither" if self.host_bytes is None else "both"
            raise MisuseError(f"{PLACE}: {given} of host_bytes and host_pages given (say how much host memory there is, once)")

    @classmethod
    def read(cls, extra: Mapping[str, object]) -> LinkerConfig:
        """Read the options from a dictionary. Refuses: an unknown key, an invalid value."""
        readers = {each.name: each.metadata["read"] for each in fields(cls) if "read" in each.metadata}
        readers |= {key: options.knob(each) for key, each in _BELOW.items()}
        found: dict[str, object] = {}
        for key, value in extra.items():
            options.known_key(PLACE, key, readers, "linker")
            found[key] = readers[key](f"{PLACE}: {key}", value)
        options.check_below(PLACE, found)
        told: Callable[..., BelowPolicies] = partial(evolve, USUAL_BELOW)
        make: Callable[..., LinkerConfig] = cls  # the readers have made them what they are
        return make(policies_below=told(**options.policies(found, _BELOW)), **found)

    def num_slots(self, memories: Sequence[tuple[int, int]]) -> list[int]:
        """How many slots each memory of the device has on the host, so many times as many for all. The first has the pages.

        *memories*: pages on the device, and bytes of a page. Refuses a memory with less than one slot, with the numbers.
        """
        if self.host_pages is not None:
            ratio, given = Fraction(self.host_pages, memories[0][0]), f"host_pages={self.host_pages}"
        else:
            all_bytes = sum(count * size for count, size in memories)
            ratio, given = Fraction(self.host_bytes or 0, all_bytes), f"host_bytes={self.host_bytes}"
        found = []
        for count, size in memories:
            slots = int(ratio * count)
            beside = f" beside {len(memories) - 1} other memories" * (len(memories) > 1)
            if slots < 1:
                raise MisuseError(f"{PLACE}: {given} holds no page, which takes {size} bytes{beside} (give more)")
            if slots > MAX_SLOTS:
                raise MisuseError(
                    f"{PLACE}: {given} holds {slots} pages, of which there can be {MAX_SLOTS} at most (give less)"
                )
            found.append(slots)
        return found
