"""Wrong bytes give other tokens: the controls of `test_tokens`, each of which must go red.

Method: the same models, engines and requests, with one fault in the copies. A fault that changes no token would say that the
tests beside it prove nothing for that model.
"""

from __future__ import annotations

import pytest

from tests.model.connectors import FAULTS, Copies
from tests.model.test_tokens import MODELS, SEED, differing, engine_with, reference, waves


@pytest.mark.sampled
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("model", MODELS)
def test_wrong_bytes_give_other_tokens(model: str, fault: str) -> None:
    copies = Copies(fault=fault, seed=SEED)
    with engine_with(model, ours={"host_blocks": 256}, copies=copies) as running:
        answers = running.answer(waves(model))

    assert running.seen.loaded > 0, running.seen
    assert differing(answers, reference(model)), (
        f"{running.seen.loaded} blocks were loaded with this fault, and no token is another one"
    )
