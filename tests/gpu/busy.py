"""How long the engine's thread is busy a step, by augurd's own metrics, while it decodes a full batch.

usage: busy.py --server HOST:PORT --metrics HOST:PORT --stubs DIR [--batch N] [--prompt TOKENS] [--tokens N]

Prompts are token ids, so that a daemon with random weights will do. Counts only steps made while all decode: from when
each request has had its first token until the first one ends.
"""

import argparse
import json
import sys
import threading
import urllib.request

NAMES = ("augur_step_seconds", "augur_step_host_seconds")


def scrape(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    found = {}
    for line in lines:
        for name in NAMES:
            for part in ("_sum", "_count"):
                if line.startswith((name + part + " ", name + part + "{")):
                    found[name + part] = found.get(name + part, 0) + float(line.rsplit(" ", 1)[1])
    return found


class Load:
    def __init__(self, server, stubs, batch):
        sys.path.insert(0, stubs)
        import grpc
        from augur.v1 import completions_pb2 as pb
        from augur.v1 import completions_pb2_grpc as rpc

        self.pb = pb
        self.stub = rpc.CompletionsStub(grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0)]))
        self.lock = threading.Lock()
        self.started = 0
        self.batch = batch
        self.all_started, self.one_ended = threading.Event(), threading.Event()

    def run(self, number, prompt, tokens):
        ids = self.pb.TokenIds(ids=[3 + (number * 7919 + i * 31) % 4000 for i in range(prompt)])
        request = self.pb.CompleteRequest(token_ids=ids, sampling=self.pb.SamplingParams(temperature=0),
                                          stopping=self.pb.StoppingCriteria(max_tokens=tokens, ignore_eos=True),
                                          bypass_prefix_cache=True)
        first = True
        for response in self.stub.Complete(request):
            if first and response.WhichOneof("event") == "chunk":
                first = False
                with self.lock:
                    self.started += 1
                    if self.started == self.batch:
                        self.all_started.set()
        self.one_ended.set()


def main():
    parser = argparse.ArgumentParser()
    for name in ("--server", "--metrics", "--stubs"):
        parser.add_argument(name, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=400)
    options = parser.parse_args()
    load = Load(options.server, options.stubs, options.batch)
    threads = [threading.Thread(target=load.run, args=(i, options.prompt, options.tokens)) for i in range(options.batch)]
    for thread in threads:
        thread.start()
    if not load.all_started.wait(120):
        sys.exit("busy.py: not all requests got a token")
    before = scrape(options.metrics)
    load.one_ended.wait(120)
    after = scrape(options.metrics)
    for thread in threads:
        thread.join()
    record = {"batch": options.batch, "prompt": options.prompt, "tokens": options.tokens}
    for name in NAMES:
        steps = after[name + "_count"] - before[name + "_count"]
        record[f"{name}_steps"] = steps
        record[f"{name}_mean_us"] = (after[name + "_sum"] - before[name + "_sum"]) / max(steps, 1) * 1e6
    print(json.dumps(record))


if __name__ == "__main__":
    main()
