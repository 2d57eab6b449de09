"""The figures that `specs/vllm-findings.md` names are those that are found."""

from __future__ import annotations

import pytest

from tests.vllm import figures


@pytest.mark.slow
def test_faults_of_chunks_show_in_the_cells_that_the_page_names_and_in_no_other() -> None:
    """A corner of the tables, with cells of both kinds; `figures` plays all of them."""
    rows = list(figures.rows(False, windows=(1, 3), chunks=(2, 3, 5)))

    assert len(rows) == 12
    assert any(each.split("[")[-1].startswith("1, 0, 0]") for each in rows)
    assert [each for each in rows if "NOT AS SAID" in each] == []


@pytest.mark.slow
def test_random_resets_spoil_answers() -> None:
    """What finding 4 does to users, under default settings."""
    wrong, answers = figures.wrong_answers(0)

    assert 0 < wrong < answers
