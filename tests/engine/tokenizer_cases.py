"""Writes tokenizer_cases.json: pipelines that the golden tokenizers do not have, with Hugging Face's answers.

Each entry is a tokenizer.json (a golden one with some sections replaced, or whole) and cases
{text, parse_special, ids, ids_no_special, decoded, decoded_keep}. Made with tokenizers 0.23.3:
    pip install tokenizers==0.23.3; python3 tokenizer_cases.py > tokenizer_cases.json
Texts avoid characters newer than Unicode 14, the version PCRE2 10.42 knows.
"""
import copy, json, os, random, sys, unicodedata
from tokenizers import Tokenizer

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
GOLDEN, DEMO = "tests/golden/tokenizers/", "deploy/models/demo-9m/tokenizer.json"
RND = random.Random(20)


def load(path):
    with open(os.path.join(ROOT, path)) as f:
        return json.load(f)


def flagged_tokens(base):
    flags = [("<mask>", "lstrip special"), ("<rs>", "rstrip special"), ("<both>", "lstrip rstrip"),
             ("word", "single_word"), ("_x", "single_word special"), ("Norm", "normalized"),
             ("e\u0301f", "normalized"), ("\u00e9g", ""), ("<a", ""), ("<a>b", "special"), ("<a>bcd", ""),
             ("a>", ""), ("\u00e9", "special"), ("two words", ""), ("\u4e2d\u6587", "lstrip")]
    keys = ["single_word", "lstrip", "rstrip", "normalized", "special"]
    tokens, fresh = copy.deepcopy(base["added_tokens"]), len(base["model"]["vocab"])
    for content, on in flags:
        known = base["model"]["vocab"].get(content)
        tokens.append({"id": fresh if known is None else known, "content": content,
                       **{k: k in on.split() for k in keys}})
        fresh += known is None
    return {"added_tokens": tokens}


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def steps(*list_of_steps):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(list_of_steps)}}


O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def characters(unknown, fuse):
    entries = list("abcdefghijklmnoprstuvy -.") + ["th", "the", "in", "ing", "an", "and", "ma", "mag", "ic", "magic"]
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": byte_level(),
            "model": {"type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": fuse, "byte_fallback": False,
                      "vocab": {"<unk>": 0, **{e: i + 1 for i, e in enumerate(entries)}},
                      "merges": ["t h", "th e", "i n", "in g", "a n", "an d", "m a", "ma g", "i c", "mag ic"]}}


def variants():
    gpt2, nfc = GOLDEN + "gpt2/tokenizer.json", GOLDEN + "qwen2/tokenizer.json"
    yield "demo", {"file": DEMO, "sections": {}}, 40
    yield "flags", {"file": gpt2, "sections": flagged_tokens(load(gpt2))}, 24
    yield "flags_nfc", {"file": nfc, "sections": flagged_tokens(load(nfc))}, 24
    for behavior in ["Removed", "Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext"]:
        for invert in [False, True]:
            patch = steps(split(r"\s|-|[0-9]", behavior, invert), byte_level())
            yield f"split_{behavior}_{invert}", {"file": gpt2, "sections": patch}, 3
        yield f"string_{behavior}", {"file": gpt2, "sections": steps(split("..", behavior, kind="String"), byte_level())}, 3
    for name, patch in {
            "empty_match": steps(split(r"x*|(?=[A-Z])"), byte_level()),
            "digit_runs": steps({"type": "Digits", "individual_digits": False}, byte_level(regex=True)),
            "prefix_space": {"pre_tokenizer": byte_level(True, True)},
            "prefix_space_digits": steps({"type": "Digits", "individual_digits": True}, byte_level(True)),
            "o200k": steps(split(O200K), byte_level()),
            "deepseek": steps(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                              split(DEEPSEEK), byte_level()),
            "words": steps(split(r"\w+|[^\w\s]+", "Removed", True), byte_level()),
            "scripts": steps(split(r"\p{Han}+|\p{^L}|\P{M}"), byte_level()),
            **{form: {"normalizer": {"type": form}} for form in ["NFC", "NFD", "NFKC", "NFKD"]},
            "normalizers": {"normalizer": {"type": "Sequence", "normalizers": [
                {"type": "NFKC"}, {"type": "Replace", "pattern": {"String": "  "}, "content": " "},
                {"type": "Prepend", "prepend": ">"}]}},
            "templates": {"post_processor": {"type": "Sequence", "processors": [byte_level(), {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                           {"SpecialToken": {"id": "Y", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"X": {"id": "X", "ids": [0, 1], "tokens": ["a", "b"]},
                                   "Y": {"id": "Y", "ids": [2], "tokens": ["c"]}}}]}}}.items():
        yield name, {"file": gpt2, "sections": patch}, 4
    for unknown in ["<unk>", None]:
        for fuse in [False, True]:
            yield f"characters_{unknown}_{fuse}", {"tokenizer": characters(unknown, fuse)}, 4


WORDS = ["The", "special", "magic", "numbers", "I'm", "we'LL", "don't", "'s", "\u2019s", "x1y22", "3.14", "1234567",
         "\u00bd", "\u00b2", "\u2460", "\u2167", "  ", "\n", "\r\n", "\t", "\u00a0", "\u180e", "\u200b", "\u2003", "\u0085",
         "\u001c", "\u00e9", "e\u0301", "a\u0301\u0323", "\u4e2d\u6587", "\u65e5\u672c\u8a9e", "\u0628", "\u0915\u094d\u0937\u093f",
         "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u0000", "\u017f", "'\u017f", "\u212a", "\u0130",
         "_", "-", "...", "!!", "(){}", "<|", "|>", "<", "\ufeff", "\uac00", "\u1100\u1161\u11a8", "\ufb01", "\U0001d518",
         "\u0345", "\u0e33", "\u0663", "\u200c", "\ufffd", "word", "_x", "Norm", "e\u0301f", "\u00e9f", "e\u0301g", "<a>",
         "<a>bc", "xx", "AxB", ".."]


def random_text(specials):
    parts = []
    for _ in range(RND.randint(4, 28)):
        pick = RND.random()
        if pick < .15 and specials:
            parts.append(RND.choice(specials))
        elif pick < .85:
            parts.append(RND.choice(WORDS) * RND.choice([1, 1, 1, 2, 4]))
        elif pick < .9:
            parts.append(" " * RND.randint(1, 9))
        else:
            c = chr(RND.choice([RND.randint(0, 0x7f), RND.randint(0, 0x2fff), RND.randint(0x10000, 0x1ffff)]))
            parts.append("" if unicodedata.category(c) in ("Cn", "Cs") else c)
        parts.append(" " if RND.random() < .3 else "")
    return "".join(parts)


def answers(tokenizer, count):
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    size = tokenizer.get_vocab_size()
    for i in range(count):
        text, parse_special = random_text(specials), i % 2 == 0
        tokenizer.encode_special_tokens = not parse_special
        stray = [RND.randrange(min(size, 400 if i % 4 else size)) for _ in range(12)]
        yield {"text": text, "parse_special": parse_special, "ids": tokenizer.encode(text).ids,
               "ids_no_special": tokenizer.encode(text, add_special_tokens=False).ids, "stray": stray,
               "decoded": tokenizer.decode(stray), "decoded_keep": tokenizer.decode(stray, skip_special_tokens=False)}


def main():
    entries = []
    for name, source, count in variants():
        whole = source.get("tokenizer") or {**load(source["file"]), **source["sections"]}
        tokenizer = Tokenizer.from_str(json.dumps(whole))
        entries.append({"name": name, **source, "cases": list(answers(tokenizer, count))})
    lines = ",\n".join(json.dumps(e, separators=(",", ":")) for e in entries)
    sys.stdout.write("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()
