"""200 needle questions of 1K to 7K tokens, asked of a running daemon; and one run's answers against another's.

usage: needles.py ask --server HOST:PORT --stubs DIR --out FILE [--quick] [--alone]
       needles.py compare EXPECTED FOUND [--differences FILE]

`ask` asks every question alone (greedy), then all at once, then a quarter of them with temperature and a seed, alone
and at once: a request's text must not depend on its company. `compare` counts equal texts and right answers, wants
the same verdict for 98 % of the questions, and writes the questions whose texts differ, with both texts, for top_two (tests/gpu/top_two_main.cc).
"""

import argparse
import concurrent.futures
import json
import pathlib
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
LENGTHS = {"1K": 1000, "2K": 2000, "4K": 4000, "7K": 7000}
EACH = 50
AT_ONCE = 48
SAMPLED = 50
ANSWER_TOKENS = 12


def make_questions():
    sys.path.insert(0, str(SOURCE / "tests/e2e"))
    import make_needles

    paragraphs = make_needles.read_paragraphs([SOURCE / "deploy/handbook.txt",
                                               SOURCE / "tests/e2e/corpus/mail_gateway.txt"])
    return [make_needles.make_question(1000 * tokens + number, paragraphs, tokens)
            for number in range(EACH) for tokens in LENGTHS.values()]


class Asker:
    def __init__(self, server, stubs):
        sys.path.insert(0, stubs)
        import grpc
        from augur.v1 import completions_pb2 as pb
        from augur.v1 import completions_pb2_grpc as rpc

        self.pb = pb
        channel = grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0)])
        self.stub = rpc.CompletionsStub(channel)

    def ask(self, question, seed=None):
        sampling = self.pb.SamplingParams(temperature=0)
        stopping = self.pb.StoppingCriteria(max_tokens=ANSWER_TOKENS, stop=["\n"])
        if seed is not None:
            sampling = self.pb.SamplingParams(temperature=1.5, seed=seed)
            stopping = self.pb.StoppingCriteria(max_tokens=64, ignore_eos=True)
        request = self.pb.CompleteRequest(text=question["prompt"], sampling=sampling, stopping=stopping,
                                          bypass_prefix_cache=True)
        return "".join(response.chunk.text for response in self.stub.Complete(request))

    def ask_at_once(self, questions, seeded):
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda i: self.ask(questions[i], i if seeded else None), range(len(questions))))


def is_right(question, text):
    return text.lstrip().startswith(question["answer"])


def count_equal(one, other):
    return sum(a == b for a, b in zip(one, other, strict=True))


def ask(arguments):
    questions = make_questions()
    if arguments.quick:
        questions = questions[:8]
    asker = Asker(arguments.server, arguments.stubs)
    alone = [asker.ask(question) for question in questions]
    if arguments.alone:
        result = {"answers": alone, "right": sum(map(is_right, questions, alone)), "questions": len(questions)}
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(result, file)
        print(json.dumps({key: value for key, value in result.items() if key != "answers"}))
        return True
    at_once = asker.ask_at_once(questions, seeded=False)
    some = questions[:SAMPLED]
    sampled = [asker.ask(question, seed) for seed, question in enumerate(some)]
    sampled_at_once = asker.ask_at_once(some, seeded=True)
    result = {"answers": alone, "right": sum(map(is_right, questions, alone)), "questions": len(questions),
              "same_at_once": count_equal(alone, at_once), "sampled": len(some),
              "sampled_same_at_once": count_equal(sampled, sampled_at_once)}
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(result, file)
    print(json.dumps({key: value for key, value in result.items() if key != "answers"}))
    return result["same_at_once"] == len(questions) and result["sampled_same_at_once"] == len(some)


def compare(arguments):
    with open(arguments.expected, encoding="utf-8") as file:
        expected = json.load(file)
    with open(arguments.found, encoding="utf-8") as file:
        found = json.load(file)
    questions = make_questions()[:len(expected["answers"])]
    differences = [{"prompt": question["prompt"], "expected": a, "found": b}
                   for question, a, b in zip(questions, expected["answers"], found["answers"], strict=True) if a != b]
    if arguments.differences:
        with open(arguments.differences, "w", encoding="utf-8") as file:
            json.dump(differences, file)
    verdicts = sum(is_right(question, a) == is_right(question, b)
                   for question, a, b in zip(questions, expected["answers"], found["answers"], strict=True))
    print(json.dumps({"questions": len(questions), "equal": len(questions) - len(differences), "same_verdict": verdicts,
                      "right_expected": expected["right"], "right_found": found["right"],
                      "differences": [[d["expected"], d["found"]] for d in differences]}))
    return verdicts >= 0.98 * len(questions)


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("ask")
    for name in ("--server", "--stubs", "--out"):
        command.add_argument(name, required=True)
    command.add_argument("--quick", action="store_true")
    command.add_argument("--alone", action="store_true", help="only each question alone, greedy")
    command.set_defaults(run=ask)
    command = commands.add_parser("compare")
    command.add_argument("expected")
    command.add_argument("found")
    command.add_argument("--differences")
    command.set_defaults(run=compare)
    arguments = parser.parse_args()
    sys.exit(0 if arguments.run(arguments) else 1)


if __name__ == "__main__":
    main()
