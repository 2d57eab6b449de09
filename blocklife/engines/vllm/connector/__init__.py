"""blocklife as the offloading layer of vLLM.

`_connector` has the class that vLLM instantiates, once in the scheduler and once in each worker; it only forwards calls.
`_scheduler` translates vLLM's decisions of a step into calls of the offload scheduler, `_worker` carries out plans on the
tensors, `_store` is what both do with a store below, and `_messages` has the records that they exchange. Of these modules only
`_connector`, `_cache`, `_events` and `_metrics` import vllm, and only `_tensors` and `_worker` import torch.
"""
