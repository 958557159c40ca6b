"""Writes trained_tokenizers.json: one small tokenizer in each pipeline that people's models have, trained here, with
Hugging Face's answers.

Each entry is {name, tokenizer, cases}; cases as in tokenizer_cases.py. Trained on the handbook, the needle corpus and
the lines below. Made with tokenizers 0.23.3:
    pip install tokenizers==0.23.3; python3 trained_tokenizers.py > trained_tokenizers.json

`decoded` of byte-fallback pipelines: Hugging Face turns every byte of a run of byte tokens into U+FFFD where the run is
not UTF-8; Augur repairs it as all other bytes (engine/tokenizer/README.md, Decisions), and so does this script. Where
all runs are UTF-8 both must agree, and the script demands it.
"""
import collections, copy, json, os, random, re, sys
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import tokenizer_cases
from tokenizer_cases import DEEPSEEK, O200K, ROOT, byte_level, random_text, split

LINES = """The ship left Reykjavík at 06:45; its log says 17,250 nm in 1984-85 (±3 %).
Zażółć gęślą jaźń, pchnąć w tę łódź jeża. Ærø, Ísland, Ünü, naïve façade.
Съешь ещё этих мягких французских булок, да выпей чаю. Привет, мир!
Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία. Άλφα βήτα γάμμα.
我能吞下玻璃而不伤身体。天地玄黄，宇宙洪荒。日本語のテキスト、カタカナとひらがな。
다람쥐 헌 쳇바퀴에 타고파. नमस्ते दुनिया। สวัสดีชาวโลก שלום עולם مرحبا بالعالم
👍🏽 👩‍👩‍👧 🇩🇪 🙂🙃 ✈️ ½ ² Ⅷ ﬁ ｆｕｌｌ　ｗｉｄｔｈ
def f(x):\n    return x ** 2  # comment\n\tif (a != b) { c += 1; }\r\n    "it's", 'we'll', I'D, THEY'VE
""" * 4
CURATED = ["", " ", "  ", "\n", "a", " a", "a ", "\u2581", "\u2581a\u2581\u2581b", "<s>", "</s>hello", "x<s> y", "<s>  <s>",
           "\u00e9\U0001f642\u4e2d", "\U0001d518\U00010348", "tab\tand\r\nline", "12345 6.78", "I'LL we've", "\ufb01\u212b\uac00",
           "e\u0301\u0323 \u1100\u1161", "\x00\x01\x7f", "<0x41> <0xE4>", "<|tool|>", " <|tool|> x", "word words sword word",
           "<mask> <mask>x", "x  <mask>", "<half", "<half>>", "  leading", "trailing  ", "\u3000wide\u00a0space"]
GPT2_WORDS = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
          r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
SPACE = "\u2581"
UNSPACE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
RESPACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def metaspace(scheme, cut, **more):
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": cut, **more}


def template(*before):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": t, "type_id": 0}} for t in before] + [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [0], "tokens": [t]} for t in before}}


def pipelines():
    """(name, is byte-level, sections)"""
    def pre(*steps):
        return sequence("pretokenizers", *steps)
    level = byte_level()
    byte = {"decoder": level, "post_processor": level}
    yield "gpt2", True, {**byte, "pre_tokenizer": GPT2_WORDS}
    yield "starcoder", True, {**byte, "pre_tokenizer": pre({"type": "Digits", "individual_digits": True}, byte_level(regex=True))}
    yield "llama3", True, {**byte, "pre_tokenizer": pre(split(LLAMA3), level), "ignore_merges": True,
                           "post_processor": sequence("processors", level, template("<s>"))}
    yield "qwen2", True, {**byte, "pre_tokenizer": pre(split(QWEN2), level), "normalizer": {"type": "NFC"}}
    yield "tekken", True, {**byte, "pre_tokenizer": pre(split(TEKKEN), level), "ignore_merges": True}
    yield "o200k", True, {**byte, "pre_tokenizer": pre(split(O200K, "Removed", True), level)}
    yield "deepseek3", True, {**byte, "decoder": sequence("decoders", level), "pre_tokenizer": pre(
        split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK), level)}
    yield "deepseek-coder", True, {**byte, "pre_tokenizer": pre(
        split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(r"\s+$"),
        split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), {"type": "Digits", "individual_digits": True}, level)}
    spelled = sequence("normalizers", {"type": "Prepend", "prepend": SPACE}, RESPACE)
    stripped = sequence("decoders", UNSPACE, FALLBACK, FUSE, STRIP)
    yield "llama2", False, {"normalizer": spelled, "decoder": stripped, "post_processor": template("<s>")}
    yield "mistral", False, {"pre_tokenizer": metaspace("first", False), "decoder": stripped, "post_processor": template("<s>")}
    yield "mistral-legacy", False, {"pre_tokenizer": metaspace("always", False), "decoder": stripped}
    yield "gemma", False, {"normalizer": RESPACE, "decoder": sequence("decoders", UNSPACE, FALLBACK, FUSE),
                           "pre_tokenizer": split(" ", "MergedWithPrevious", kind="String")}
    yield "metaspace-words", False, {"pre_tokenizer": metaspace("always", True), "decoder": metaspace("always", True),
                                     "byte_fallback": False, "fuse_unk": False}
    yield "metaspace-first", False, {"pre_tokenizer": metaspace("first", True), "normalizer": {"type": "NFKC"},
                                     "decoder": sequence("decoders", metaspace("first", True), FALLBACK, FUSE)}
    yield "metaspace-never", False, {"pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": True},
                                                               metaspace("never", True)),
                                     "decoder": metaspace("never", True), "byte_fallback": False}
    old = {"type": "Metaspace", "replacement": "_", "add_prefix_space": True}
    yield "metaspace-old", False, {"pre_tokenizer": old, "decoder": old, "byte_fallback": False}
    yield "no-unknown", False, {"pre_tokenizer": sequence("pretokenizers", split(r"\s", "Removed"), metaspace("first", True)),
                                "decoder": metaspace("always", True), "byte_fallback": False, "unk_token": None}


ADDED = [("<|tool|>", "special"), ("<mask>", "lstrip rstrip special"), ("word", "single_word normalized"), ("<half", ""),
         ("<half>>", "rstrip"), ("sword w", "lstrip normalized")]


def text():
    parts = [LINES]
    for path in ["deploy/handbook.txt", "tests/e2e/corpus/mail_gateway.txt"]:
        with open(os.path.join(ROOT, path)) as f:
            parts.append(f.read())
    return re.findall(r"\s?\S+|\s+", "\n".join(parts))


def of_frequent_characters(words, most):
    """The trainer's own limit_alphabet breaks ties by chance."""
    counts = collections.Counter("".join(words))
    kept = set(sorted(counts, key=lambda c: (-counts[c], c))[:most])
    return ["".join(c for c in word if c in kept) for word in words]


def trained(is_byte_level, sections):
    sections = dict(sections)
    options = {key: sections.pop(key) for key in ["ignore_merges", "byte_fallback", "fuse_unk", "unk_token"] if key in sections}
    learner = Tokenizer(models.BPE())
    alphabet, specials = [], ["<s>", "</s>"]
    if is_byte_level:
        learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        space = sections.get("decoder", {}).get("replacement", SPACE)
        learner.normalizer = normalizers.Replace(" ", space)
        options = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>", **options}
        specials = ["<s>", "</s>", "<unk>"] + ([f"<0x{byte:02X}>" for byte in range(256)] if options["byte_fallback"] else [])
    words = text() if is_byte_level else of_frequent_characters(text(), 120)
    learner.train_from_iterator(words, trainers.BpeTrainer(
        vocab_size=700, special_tokens=specials, initial_alphabet=alphabet, show_progress=False))
    whole = json.loads(learner.to_str())
    whole.update({"normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, **sections})
    whole["model"].update(options)
    keys = ["single_word", "lstrip", "rstrip", "normalized", "special"]
    whole["added_tokens"] = [t for t in whole["added_tokens"] if not t["content"].startswith("<0x")]
    fresh = len(whole["model"]["vocab"])
    for content, on in ADDED:
        whole["added_tokens"].append({"id": fresh, "content": content, **{k: k in on.split() for k in keys}})
        fresh += 1
    return whole


def repaired(whole, tokenizer, ids, skip):
    """Decoding as Augur defines it: byte tokens are bytes, whatever their run looks like."""
    special = {t["id"] for t in whole["added_tokens"] if t["special"]}
    pieces, valid, run = b"", True, b""
    for token in [tokenizer.id_to_token(i) for i in ids if not (skip and i in special)] + [""]:
        byte = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
        if byte:
            run += bytes([int(byte[1], 16)])
            continue
        valid = valid and run.decode("utf-8", "ignore").encode() == run
        pieces, run = pieces + run + token.replace(SPACE, " ").encode(), b""
    decoded = pieces.decode("utf-8", "replace")
    steps = [step["type"] for step in whole["decoder"]["decoders"]]
    if "Strip" in steps and decoded.startswith(" "):
        decoded = decoded[1:]
    return decoded, valid


def answers(whole, tokenizer):
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values() if not t.content.startswith("<0x")]
    falls_back = whole["model"]["byte_fallback"] and whole["decoder"]["type"] == "Sequence"
    plain = falls_back and "Replace" in [step["type"] for step in whole["decoder"]["decoders"]]
    for i, case in enumerate(CURATED * 2 + [random_text(specials) for _ in range(12)]):
        parse_special = i < len(CURATED) if i < 2 * len(CURATED) else i % 2 == 0
        tokenizer.encode_special_tokens = not parse_special
        ids = tokenizer.encode(case).ids
        stray = ids if i % 3 else [tokenizer_cases.RND.randrange(tokenizer.get_vocab_size()) for _ in range(12)]
        texts = []
        for skip in [True, False]:
            decoded = tokenizer.decode(stray, skip_special_tokens=skip)
            if plain:
                ours, valid = repaired(whole, tokenizer, stray, skip)
                assert ours == decoded or not valid, (stray, ours, decoded)
                decoded = ours
            texts.append(decoded)
        if falls_back and not plain and "\ufffd" in texts[1]:
            continue
        yield {"text": case, "parse_special": parse_special, "ids": ids,
               "ids_no_special": tokenizer.encode(case, add_special_tokens=False).ids, "stray": stray,
               "decoded": texts[0], "decoded_keep": texts[1]}


def main():
    tokenizer_cases.RND = random.Random(21)
    entries = []
    for name, is_byte_level, sections in pipelines():
        whole = trained(is_byte_level, copy.deepcopy(sections))
        tokenizer = Tokenizer.from_str(json.dumps(whole))
        entries.append({"name": name, "tokenizer": whole, "cases": list(answers(whole, tokenizer))})
    lines = ",\n".join(json.dumps(e, separators=(",", ":"), sort_keys=True) for e in entries)
    sys.stdout.write("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()
