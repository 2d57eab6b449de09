"""blocklife as the offloading layer of vLLM.

`connector` is the class that vLLM makes, once in the scheduler and once in each worker; it only passes calls on. `scheduler`
translates what vLLM decided in a step into calls of the offload scheduler, `worker` carries plans out on the tensors, and
`messages` is what travels between them. `offload` and `ledger` are the library's own, with what an engine needs that names
content as soon as it is scheduled. Of these only `connector`, `cache`, `events` and `metrics` import vllm, and only `tensors`
and `worker` torch.
"""
