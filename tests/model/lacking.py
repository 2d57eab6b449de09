"""What a CPU build of vLLM lacks, put in its place while an engine lives.

Rules of this file:

* Nothing here is about a connector: an engine without one runs with the same.
* Each is as small as its reason: what vLLM has in Python and switches off on a CPU is switched on, and only what exists as a
  kernel of a GPU alone is computed here, by its definition.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from unittest import mock

import torch
from torch.nn import functional
from vllm.config import VllmConfig
from vllm.model_executor.layers.mamba.gdn import kimi_gdn_linear_attn as layer
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.models import kimi_k3 as kimi
from vllm.models.kimi_k3.amd import linear
from vllm.models.kimi_k3.nvidia.ops.third_party import kda as kernels
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend
from vllm.v1.kv_cache_interface import MLAAttentionSpec
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

LATENTS = 16
"""Tokens in a block of latents; the kernel takes no other number."""


class _Placeholder:
    """What a stream or an event of CUDA is where everything has happened when a call returns."""

    def __init__(self, *_: object, **__: object) -> None:
        self.device = torch.device("cpu")

    def record(self, *_: object) -> None:
        """Nothing is queued."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def wait_stream(self, *_: object) -> None:
        """Nothing to wait for."""


@contextlib.contextmanager
def asynchronous_steps() -> Iterator[None]:
    """vLLM switches asynchronous scheduling off on a CPU, where it gains nothing; for tests it is switched on again."""
    before = CpuPlatform.check_and_update_config.__func__

    def keep(cls: type[CpuPlatform], vllm_config: VllmConfig) -> None:
        before(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    with (
        mock.patch.object(CpuPlatform, "check_and_update_config", classmethod(keep)),
        mock.patch.object(torch.cuda, "Stream", _Placeholder),
        mock.patch.object(torch.cuda, "Event", _Placeholder),
        mock.patch.object(torch.cuda, "current_stream", _Placeholder),
        mock.patch.object(torch.cuda, "stream", return_value=contextlib.nullcontext()),
    ):
        yield


@contextlib.contextmanager
def boundary_states() -> Iterator[None]:
    """States are kept at the end of a pass alone.

    vLLM's Mamba 2 can also keep the state of a boundary inside a pass, for which it needs the states of all chunks; the CPU
    kernel gives the last one only. A layer that does not offer it is scheduled in passes that end at boundaries.
    """
    before = MambaMixer2.get_kv_cache_spec

    def spec_of(layer: MambaMixer2, vllm_config: VllmConfig) -> object:
        spec = before(layer, vllm_config)
        return dataclasses.replace(spec, num_prefill_checkpoint_blocks=0, prefill_checkpoint_alignment=None)

    with mock.patch.object(MambaMixer2, "get_kv_cache_spec", spec_of):
        yield


@contextlib.contextmanager
def latents_behind_hits() -> Iterator[None]:
    """Latents (MLA) are computed behind a prefix that is there, in passes, and beside states.

    vLLM has all that it takes in torch; `CpuPlatform.check_and_update_config` switches prefix caching off for them, and raises
    the tokens of a pass, unless the processor has AMX. Beside states a block is as large as their pages want it to be: vLLM's
    runner divides it into those that the kernel takes, but `CPUMLABackend.supports_block_size` refuses it, and
    `CPUModelRunner._zero_block_ids` takes the numbers of blocks for those of their parts.
    """
    before, zero = CpuPlatform.check_and_update_config.__func__, CPUModelRunner._zero_block_ids

    def keep(cls: type[CpuPlatform], vllm_config: VllmConfig) -> None:
        passes, cache = vllm_config.scheduler_config, vllm_config.cache_config
        wanted = passes.enable_chunked_prefill, passes.max_num_batched_tokens, cache.enable_prefix_caching
        before(cls, vllm_config)
        passes.enable_chunked_prefill, passes.max_num_batched_tokens, cache.enable_prefix_caching = wanted

    def zero_all_parts(runner: CPUModelRunner, blocks: Sequence[int]) -> None:
        specs = [group.kv_cache_spec for group in runner.kv_cache_config.kv_cache_groups]
        parts = max((spec.block_size // LATENTS for spec in specs if isinstance(spec, MLAAttentionSpec)), default=1)
        zero(runner, [block * parts + part for block in blocks for part in range(parts)])

    with (
        mock.patch.object(CpuPlatform, "check_and_update_config", classmethod(keep)),
        mock.patch.object(CPUMLABackend, "supports_block_size", lambda size: size is None or size % LATENTS == 0),
        mock.patch.object(CPUModelRunner, "_zero_block_ids", zero_all_parts),
    ):
        yield


def _delta(given: Mapping[str, torch.Tensor], bias: str, parts: Sequence[torch.Tensor], state: torch.Tensor) -> torch.Tensor:
    """Kimi's delta attention of one request by its definition, one token after the other; *state* is changed in place.

    A head's state maps keys to values. With each token it decays by a gate for each channel of the key, and then takes up the
    value: a share (*beta*) of what is missing in what the state has for that key. Shapes: tokens, heads, channels; of the
    state heads, values, keys.
    """
    query, key, value, gate, beta = parts
    heads, channels = gate.shape[1:]
    kept = torch.exp(-given["A_log"].exp().view(heads, 1) * functional.softplus(gate + given[bias].view(heads, channels)))
    query, key = functional.normalize(query, dim=-1) * channels**-0.5, functional.normalize(key, dim=-1)
    said, beta = torch.empty_like(value), torch.sigmoid(beta).unsqueeze(-1)
    for token in range(len(value)):
        state *= kept[token].unsqueeze(1)
        missing = beta[token] * (value[token] - torch.einsum("hvk,hk->hv", state, key[token]))
        state += missing.unsqueeze(-1) * key[token].unsqueeze(1)
        said[token] = torch.einsum("hvk,hk->hv", state, query[token])
    return said


def _delta_of_prompts(**given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Parts of prompts one behind the other, each with its own state."""
    said, states = torch.empty_like(given["v"]), given["initial_state"].clone()
    for number, (start, end) in enumerate(itertools.pairwise(given["cu_seqlens"].tolist())):
        parts = [given[name][0, start:end] for name in ("q", "k", "v", "raw_g", "raw_beta")]
        said[0, start:end] = _delta(given, "g_bias", parts, states[number])
    return said, states


def _delta_of_tokens(**given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of each request, whose state is in the cache."""
    gate, states = given["raw_g"][0], given["initial_state"]
    columns = [*given["mixed_qkv"].view(len(gate), 3, *gate.shape[1:]).unbind(1), gate, given["raw_beta"][0]]
    said = torch.empty_like(columns[0])
    for at, block in enumerate(given["state_indices"].tolist()):
        said[at : at + 1] = _delta(given, "dt_bias", [each[at : at + 1] for each in columns], states[block])
    return said.unsqueeze(0), states


@contextlib.contextmanager
def delta_attention() -> Iterator[None]:
    """Kimi Linear as vLLM has it for devices that are not NVIDIA's, and its kernels, which are Triton's, in torch."""
    with (
        mock.patch.object(kimi, "KimiLinearForCausalLM", linear.KimiLinearForCausalLM),
        mock.patch.object(kernels, "chunk_kda_with_fused_gate", _delta_of_prompts),
        mock.patch.object(kernels, "fused_recurrent_kda_packed_decode", _delta_of_tokens),
        mock.patch.object(layer, "gather_initial_states", lambda state, at, has: state[at] * has.view(-1, 1, 1, 1)),
    ):
        yield
