"""Asks the needle questions of one length as a Python client; prints the answers as a JSON list.

usage: needle_client.py --stubs DIR --needles FILE --length 1K --server HOST:PORT
"""

import argparse
import json
import sys


def parse_arguments():
    parser = argparse.ArgumentParser()
    for name in ("--stubs", "--needles", "--length", "--server"):
        parser.add_argument(name, required=True)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    sys.path.insert(0, arguments.stubs)
    import grpc
    from augur.v1 import completions_pb2 as pb
    from augur.v1 import completions_pb2_grpc as rpc

    with open(arguments.needles, encoding="utf-8") as file:
        needles = json.load(file)[arguments.length]
    answers = []
    with grpc.insecure_channel(arguments.server, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = rpc.CompletionsStub(channel)
        for needle in needles:
            request = pb.CompleteRequest(text=needle["prompt"], sampling=pb.SamplingParams(temperature=0),
                                         stopping=pb.StoppingCriteria(max_tokens=12, stop=["\n"]))
            answers.append("".join(response.chunk.text for response in stub.Complete(request)))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
