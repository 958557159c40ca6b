#!/usr/bin/env python3
"""What PyTorch's scaled_dot_product_attention does at the shapes of `augur-bench attention`.

One JSON line a case, of the same form. Decode: one query row against a dense KV cache, flash and
cuDNN; every repeat reads another copy, together far more than the L2. Prefill: causal; chunks as
augur-bench has them (a chunk's rows see the whole context before them, by the lower-right causal
mask, which flash alone has), and in one piece. Times are medians of CUDA graphs of many calls; a case whose capture fails is timed by events
around plain calls and says so, a case that PyTorch refuses prints its error.
"""
import argparse
import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
SHAPES = [(32, 2, 128), (32, 8, 128)]  # query heads, kv heads, head dim
ROTATED_BYTES = 400 << 20  # of all copies of the KV together
GRAPH_SECONDS = 10e-3
MAX_CALLS = 400


def numbers(text):
    return [int(part) for part in text.split(",") if part]


def event_seconds(run):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def median_seconds(call, repeats):
    """Median time of one call(i) and how it was taken."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(3):
            call(i)
        stream.synchronize()
        guess = event_seconds(lambda: call(3))
        count = max(1, min(MAX_CALLS, int(GRAPH_SECONDS / guess)))

        def calls():
            for i in range(count):
                call(i)

        run, how = calls, "events"
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                calls()
            run, how = graph.replay, "graph"
        except RuntimeError:
            torch.cuda.synchronize()
        run()
        stream.synchronize()
        return statistics.median(event_seconds(run) / count for _ in range(repeats)), how


def random_tensor(*shape):
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").uniform_(-1, 1)


def decode(shape, batch, tokens):
    q_heads, kv_heads, dim = shape
    kv_bytes = 2 * batch * kv_heads * tokens * dim * 2
    copies = min(64, max(2, -(-ROTATED_BYTES // kv_bytes)))
    q = random_tensor(batch, q_heads, 1, dim)
    kv = [tuple(random_tensor(batch, kv_heads, tokens, dim) for _ in "kv") for _ in range(copies)]

    def call(i):
        k, v = kv[i % copies]
        torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return call, kv_bytes


def prefill(shape, rows, context):
    """`rows` query rows at the end of `context` tokens."""
    q_heads, kv_heads, dim = shape
    q = random_tensor(1, q_heads, rows, dim)
    k, v = (random_tensor(1, kv_heads, context, dim) for _ in "kv")

    def call(_):
        if rows == context:
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                             enable_gqa=True)
        else:
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=causal_lower_right(rows, context), enable_gqa=True)

    return call


def head_fields(bench, backend, shape):
    return {"bench": bench, "backend": f"torch {torch.__version__} sdpa {backend}",
            "dtype": "bfloat16", "q_heads": shape[0], "kv_heads": shape[1], "head_dim": shape[2]}


def measure(fields, backend, repeats, calls, rates):
    """Prints fields, the sum of the calls' times, and rates(seconds)."""
    try:
        with sdpa_kernel([BACKENDS[backend]]):
            times = [median_seconds(make(), repeats) for make in calls]
        seconds = sum(time for time, _ in times)
        how = "graph" if all(way == "graph" for _, way in times) else "events"
        fields = {**fields, "us": round(seconds * 1e6, 2), "timed_by": how, **rates(seconds)}
    except RuntimeError as error:  # out of memory, too
        fields = {**fields, "error": str(error).splitlines()[0]}
    print(json.dumps(fields), flush=True)
    torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=numbers, default=[1, 4, 16])
    parser.add_argument("--contexts", type=numbers, default=[8192, 32768, 131072])
    parser.add_argument("--prompts", type=numbers, default=[8192, 32768])
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for shape in SHAPES:
        for backend in BACKENDS:
            for tokens in options.contexts:
                for batch in options.batches:
                    kv_bytes = 2 * batch * shape[1] * tokens * shape[2] * 2
                    measure({**head_fields("attention_decode", backend, shape),
                             "batch": batch, "tokens": tokens}, backend, options.repeats,
                            [lambda: decode(shape, batch, tokens)[0]],
                            lambda s: {"kv_gb_per_s": round(kv_bytes / s / 1e9, 1)})
            for tokens in options.prompts:
                flops = 4 * shape[0] * shape[2] * 0.5 * tokens * (tokens + 1)
                chunks = {tokens, min(options.chunk, tokens)} if backend == "flash" else {tokens}
                for chunk in sorted(chunks):
                    calls = [lambda first=first: prefill(shape, min(chunk, tokens - first),
                                                         min(first + chunk, tokens))
                             for first in range(0, tokens, chunk)]
                    measure({**head_fields("attention_prefill", backend, shape),
                             "tokens": tokens, "chunk": chunk}, backend, options.repeats, calls,
                            lambda s: {"tflops": round(flops / s / 1e12, 1)})


if __name__ == "__main__":
    main()
