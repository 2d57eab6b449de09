import pytest
from attrs import evolve
from tests.vllm.connector_rig import ConnectorRig, walk, with_guesses
from tests.vllm.worlds import *
F,W,S=GroupSpec("full",4),GroupSpec("swa",4,window=8),GroupSpec("mamba",4)
D=GroupSpec("full",4,drafter=True)
CROWDED=WorldSpec((F,),24,40,6,48,lag=Lag(0,6))
MODELS={"fs":(F,S),"ws":(W,S),"fss":(F,S,S),"fws":(F,W,S),"ds":(D,S)}
@pytest.mark.parametrize("ahead",[False,True])
@pytest.mark.parametrize("dense",[False,True])
@pytest.mark.parametrize("model",MODELS)
@pytest.mark.parametrize("seed",range(4))
def test_walk(model,seed,dense,ahead,monkeypatch):
    with_guesses(monkeypatch,"eagle" if model=="ds" else ("mtp" if seed % 2 else "ngram"))
    rig=ConnectorRig(evolve(CROWDED,groups=MODELS[model],num_gpu_blocks=60,dense_retention=dense,async_scheduling=ahead),seed,drafts=True)
    walk(rig,seed)
    print(model,seed,dense,ahead,rig.verified,rig.stored,rig.loaded, rig.side.decided.holes)
    assert rig.stored and rig.loaded
