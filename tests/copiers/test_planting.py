"""Rates of planted faults, of copies and of stores: as a text and back, and what is wrong with a text is said in one line."""

from __future__ import annotations

import attrs
import pytest

from blocklife.copiers import FaultRates
from blocklife.errors import MisuseError
from blocklife.tiers import StoreFaultRates

KINDS = (FaultRates, StoreFaultRates)


@pytest.mark.parametrize("kind", KINDS)
def test_rates_are_read_as_they_are_written(kind: type[FaultRates | StoreFaultRates]) -> None:
    assert kind.parse("slow=0.5, lose=1" if kind is StoreFaultRates else "late=0.5, never=1") == kind(
        **{"slow": 0.5, "lose": 1.0} if kind is StoreFaultRates else {"late": 0.5, "never": 1.0}
    )
    assert kind.parse("default") == kind.parse(str(kind.default())) == kind.default()
    assert kind.parse("below_fail=.25", prefix="below_") == kind(fail=0.25)
    assert all(0 <= rate < 0.1 for rate in attrs.asdict(kind.default()).values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown"),
        ("fial=0.1", "'fial': unknown .write fail="),
        ("fail=0.1,", "unknown"),
        ("fail=0.1,fail=0.2", "named twice"),
        ("fail=often", "is not a number"),
        ("fail", "is not a number"),
        ("fail=1.5", "is not a share of the (jobs|keys)"),
        ("fail=-1", "is not a share"),
        ("fail=nan", "is not a share"),
    ],
)
def test_nonsense_is_refused_in_one_line(kind: type[FaultRates | StoreFaultRates], text: str, says: str) -> None:
    with pytest.raises(MisuseError, match=says) as refused:
        kind.parse(text)

    assert "\n" not in str(refused.value)


def test_rates_with_a_prefix_are_named_with_it() -> None:
    with pytest.raises(MisuseError, match=r"'fail': unknown .write below_fail="):
        StoreFaultRates.parse("fail=1", prefix="below_")
