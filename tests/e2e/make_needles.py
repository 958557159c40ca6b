"""Makes needle questions: documents of a given length with one fact hidden in each, and a question for it.

usage: make_needles.py OUTPUT.json TEXT...

The filler is paragraphs of our own technical prose in random order, lines of 76 columns as they stand in the
files; the fact is a line of its own between two others, anywhere in the document. The digits of a number differ
from each other: the bundled model sometimes loses count in a run of equal digits, whoever runs it. Everything
is drawn from fixed seeds, so every run of every client asks the same.

Measured with a plain numpy forward pass of the model, on 1K tokens of this filler: see tests/e2e/README.md.
"""

import json
import random
import re
import sys

LENGTHS = {"1K": 1000, "4K": 4000, "7K": 7000}  # tokens, about
QUESTIONS = 20
BYTES_PER_TOKEN = 3.55  # of this filler
ADJECTIVES = "amber silver crimson quiet distant hollow bright frozen gentle rapid".split()
NOUNS = "falcon harbor meadow lantern canyon badger orchard anchor thistle comet".split()


def read_paragraphs(paths):
    paragraphs = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for paragraph in file.read().strip().split("\n\n"):
                lines = [line for line in paragraph.split("\n") if "special magic number" not in line]
                if len(lines) > 1:  # no headings
                    paragraphs.append("\n".join(lines))
    return paragraphs


def make_document(rng, paragraphs, num_bytes):
    pieces, size = [], 0
    while size < num_bytes:
        for paragraph in rng.sample(paragraphs, len(paragraphs)):
            pieces.append(paragraph)
            size += len(paragraph) + 2
    return "\n\n".join(pieces)[:num_bytes]


def make_question(seed, paragraphs, tokens):
    rng = random.Random(seed)
    key = f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"
    digits = rng.sample("0123456789", 7)
    number = "".join(reversed(digits) if digits[0] == "0" else digits)
    fact = f"One of the special magic numbers for {key} is: {number}."
    question = (f"What is the special magic number for {key} mentioned in the text? "
                f"The special magic number for {key} is")
    size = int(tokens * BYTES_PER_TOKEN) - len(fact) - len(question)
    document = make_document(rng, paragraphs, size)
    line_ends = [match.start() for match in re.finditer("\n", document)]
    at = rng.choice(line_ends)
    return {"prompt": document[:at] + "\n" + fact + document[at:] + "\nQuestion: " + question,
            "answer": number, "tokens": tokens}


def main():
    output, *texts = sys.argv[1:]
    paragraphs = read_paragraphs(texts)
    needles = {name: [make_question(1000 * tokens + number, paragraphs, tokens) for number in range(QUESTIONS)]
               for name, tokens in LENGTHS.items()}
    with open(output, "w", encoding="utf-8") as file:
        json.dump(needles, file)


if __name__ == "__main__":
    main()
