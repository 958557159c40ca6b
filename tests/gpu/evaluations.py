"""One run's answers of augur-eval beside another's, question by question.

usage: evaluations.py accuracy EXPECTED.json FOUND.json     shares right, their paired difference with its 95 % interval
       evaluations.py texts EXPECTED.json FOUND.json        completions of the questions that both were asked, to the letter

`accuracy` ends with 1 where an interval leaves 0 out, `texts` where a completion differs; either where the two share no
question. Intervals as in loadtest/accuracy_statistics.h.
"""

import argparse
import json
import math
import sys

Z = 1.959963984540054  # 97.5 % of the normal distribution lie below


def answers_of(path):
    """{(policy, samples, task): {(document, question): asked}}, samples 0 for exact values."""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    runs = {}
    for run in report["runs"]:
        key = (run["policy"], run["value_samples"] or 0, run["task"])
        runs[key] = {(asked["document"], asked["question"]): asked for asked in run["questions"]}
    return runs


def paired(expected, found):
    """Difference of the shares right, and its 95 % interval (Agresti and Min 2005)."""
    pairs = [(expected[key]["exact"], found[key]["exact"]) for key in expected.keys() & found.keys()]
    gained = sum(not a and b for a, b in pairs)
    lost = sum(a and not b for a, b in pairs)
    net, n = gained - lost, len(pairs) + 2
    half = Z * math.sqrt(gained + lost + 1 - net * net / n) / n
    return {"n": len(pairs), "right_expected": sum(a for a, _ in pairs), "right_found": sum(b for _, b in pairs),
            "gained": gained, "lost": lost, "difference": round(net / len(pairs), 4),
            "interval": [round(net / n - half, 4), round(net / n + half, 4)]}


def all_tasks(runs, policy, samples):
    return {(task, *key): asked for (of, number, task), answers in runs.items() if (of, number) == (policy, samples)
            for key, asked in answers.items()}


def compare_accuracy(expected, found):
    is_good = True
    modes = sorted({key[:2] for key in expected.keys() & found.keys()})
    for policy, samples in modes:
        tasks = [key[2] for key in expected if key[:2] == (policy, samples) and key in found]
        cases = [(task, expected[policy, samples, task], found[policy, samples, task]) for task in tasks]
        cases.append(("all", all_tasks(expected, policy, samples), all_tasks(found, policy, samples)))
        for task, here, there in cases:
            common = here.keys() & there.keys()
            if not common:
                continue
            record = {"policy": policy, "samples": samples, "task": task, **paired(here, there)}
            record["equal_texts"] = sum(here[key]["completion"] == there[key]["completion"] for key in common)
            print(json.dumps(record))
            is_good &= record["interval"][0] <= 0 <= record["interval"][1]
    return is_good and bool(modes)


def compare_texts(expected, found):
    asked = equal = 0
    for run in expected.keys() & found.keys():
        for key in expected[run].keys() & found[run].keys():
            asked += 1
            equal += expected[run][key]["completion"] == found[run][key]["completion"]
    print(json.dumps({"questions": asked, "equal": equal}))
    return asked > 0 and equal == asked


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["accuracy", "texts"])
    parser.add_argument("expected")
    parser.add_argument("found")
    arguments = parser.parse_args()
    compare = compare_accuracy if arguments.what == "accuracy" else compare_texts
    sys.exit(0 if compare(answers_of(arguments.expected), answers_of(arguments.found)) else 1)


if __name__ == "__main__":
    main()
