"""The GPU route: batches of documents, sent to an engine process that replays graphs over a shared arena.

    group = Group(model_key, documents, on_done, on_fallback, count_only=..., kind=..., deadline_ns=...)   group.py
    route = GpuRoute(cuts, limits, on_replay)                   route.py: one for each GPU, outlives its engines
    route.serve(link)            the route's thread: serves one incarnation of the engine; returns why it ended
    route.submit(group)          any thread, never waits; exactly one of the callbacks is called, once
    route.forget(model_key)      before its slots are taken away; what waits for it falls back
    route.load(model_key)        its queue for `policy.choose_route` (a live `GpuLoad`)
    route.snapshot()             what it counted (`RouteSnapshot`)
    group.cancelled = True       what is not launched yet leaves; on_fallback(group, CANCELLED)

Results of a group, by document: `ids[i]` are packed ids, `bytes`, or for many ids `HeldIds`: a read-only array of bytes
in the slot's own memory, which `release()` or the garbage collector gives back; `ids[i].data` is a memoryview of it.
`n_tokens[i]` always. `needs_cpu[i]` is the reason of a document that the device does not answer.

Who decides: `batch.Former` what goes into the next replay, `dispatcher.policy.choose_route` which route answers; both
without threads and clocks. Who acts: `incarnation.Incarnation`, with the lock, for one engine from start to loss. What
replays cost is observed through `on_replay` (`dispatcher.costs.Costs.observe_gpu_route`).
"""
