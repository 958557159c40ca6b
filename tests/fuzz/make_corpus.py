#!/usr/bin/env python3
"""Writes the seeds of the corpus: files that are right (ok-*), and the same with one thing wrong each (bad-*).

What the fuzzer found on top has other names and stays. usage: make_corpus.py   (writes beside itself)
"""
import copy
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def write(target, seeds):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    for old in list(folder.glob("ok-*")) + list(folder.glob("bad-*")):
        old.unlink()
    for name, data in seeds.items():
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def header(text, data_bytes):
    return b"h" + struct.pack("<I", data_bytes) + (text if isinstance(text, str) else compact(text)).encode()


def checkpoint_seeds():
    def tensor(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    two = {"a": tensor("F32", [2, 3], 0, 24), "b": tensor("BF16", [4], 24, 32)}
    meta = {"__metadata__": {"format": "pt"}, **two, "empty": tensor("F16", [0, 5], 32, 32)}
    seeds = {"ok-two": header(two, 32), "ok-metadata": header(meta, 32), "ok-nothing": header({}, 0),
             "ok-scalar": header({"s": tensor("F32", [], 0, 4)}, 4),
             "ok-order": header({"b": two["b"], "a": two["a"]}, 32),
             "ok-spaces": header(" " + compact(two) + "    ", 32)}

    def bad(name, data_bytes=32, **changes):
        seeds["bad-" + name] = header({**two, **changes}, data_bytes)
    bad("overlap", b=tensor("BF16", [4], 20, 28), data_bytes=28)
    bad("inside", b=tensor("BF16", [4], 8, 16), data_bytes=24)
    bad("hole", b=tensor("BF16", [4], 28, 36), data_bytes=36)
    bad("late-start", a=tensor("F32", [2, 3], 4, 28), b=tensor("BF16", [4], 28, 36), data_bytes=36)
    bad("past-the-end", 31)
    bad("bytes-behind", 33)
    bad("backwards", a=tensor("F32", [2, 3], 24, 0))
    bad("negative-offset", a=tensor("F32", [2, 3], -24, 0))
    bad("short-range", a=tensor("F32", [2, 3], 0, 20), b=tensor("BF16", [6], 20, 32))
    bad("dtype", a=tensor("I32", [2, 3], 0, 24))
    bad("dtype-width", a=tensor("F16", [2, 3], 0, 24))
    bad("negative-extent", a=tensor("F32", [-2, -3], 0, 24))
    bad("float-extent", a=tensor("F32", [2.0, 3], 0, 24))
    bad("big-extent", a=tensor("F32", [2**64 - 2, 3], 0, 24))
    bad("product-wraps", a=tensor("F32", [2**62, 2, 2, 2], 0, 24))
    bad("product-wraps-to-24", a=tensor("F32", [2**61 + 2, 3, 1], 0, 24))
    bad("product-is-2-to-64", a=tensor("F32", [2**62], 0, 0), b=tensor("BF16", [4], 0, 8), data_bytes=8)
    bad("product-is-24-more", a=tensor("F32", [2**62 + 6], 0, 24))
    bad("rank", a=tensor("F32", [2, 3, 1, 1, 1, 1, 1, 1, 1], 0, 24))
    bad("three-offsets", a={**two["a"], "data_offsets": [0, 24, 24]})
    bad("one-offset", a={**two["a"], "data_offsets": 24})
    bad("shape-number", a={**two["a"], "shape": 6})
    bad("no-shape", a={"dtype": "F32", "data_offsets": [0, 24]})
    bad("tensor-list", a=[])
    huge = 2**63 - 2
    seeds["bad-huge-ranges"] = header({c: tensor("F16", [2**62 - 1], 0, huge) for c in "abcd"}, 32)
    seeds["bad-twice"] = header(compact({"b": two["b"], "a": two["a"]})[:-1] + ',"a":' + compact(two["a"]) + "}", 32)
    seeds["bad-name-of-two-lines"] = header({"a\nb\x00": tensor("I8", [1], 0, 1)}, 1)
    seeds["bad-deep"] = header('{"a":' + "[" * 200 + "]" * 200 + "}", 0)
    seeds["bad-list"] = header([], 0)
    seeds["bad-cut"] = header(compact(two)[:-3], 32)
    seeds["bad-utf8"] = header('{"\x80":1}', 0).replace(b"\xc2\x80", b"\xff")
    text = compact(two).encode()
    whole = struct.pack("<Q", len(text)) + text + bytes(32)
    seeds["ok-file"] = b"f" + whole
    for name, length in {"zero": 0, "one": 1, "longer": len(text) + 33, "all": len(whole), "sign": 2**63, "most": 2**64 - 1}.items():
        seeds["bad-length-" + name] = b"f" + struct.pack("<Q", length) + whole[8:]
    for size in [0, 1, 7, 8, 9, len(whole) - 33, len(whole) - 1]:
        seeds[f"bad-file-of-{size}"] = b"f" + whole[:size]
    index = {"metadata": {"total_size": 8}, "weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}
    seeds["ok-index"] = "i" + compact(index)
    for name, changes in {"missing-tensor": {"x": "a.safetensors"}, "wrong-shard": {"w": "b.safetensors"},
                          "swapped-shards": {"w": "b.safetensors", "v": "a.safetensors"},
                          "missing-shard": {"x": "c.safetensors"}, "path": {"w": "../a.safetensors"},
                          "folder": {"w": ""}, "dot": {"w": "."}, "number": {"w": 1}, "nul": {"w": "a.safetensors\0"},
                          "itself": {"w": "model.safetensors.index.json"}}.items():
        seeds["bad-index-" + name] = "i" + compact({**index, "weight_map": {**index["weight_map"], **changes}})
    seeds["bad-index-twice"] = 'i{"weight_map":{"w":"a.safetensors","w":"b.safetensors"}}'
    seeds["bad-index-no-map"] = "i{}"
    seeds["bad-index-list"] = "i[]"
    return seeds


def config_seeds():
    base = json.loads((ROOT / "tests/golden/models/llama/config.json").read_text())
    seeds = {"ok-sparse": compact({**base, "sparse_config": {"kernel_size": 32, "kernel_stride": 16, "init_blocks": 1,
                                                            "block_size": 64, "window_size": 2048, "topk": 64,
                                                            "use_nope": False, "dense_len": 8192}}),
             "ok-eos-list": compact({**base, "eos_token_id": [1, 2]})}
    for path in sorted((ROOT / "tests/golden/models").glob("*/config*.json")):
        seeds[f"ok-{path.parent.name}-{path.stem}"] = path.read_text()
    wrong = {"model_type": ["gpt9", 7, None], "vocab_size": [0, -1, 2**31, 2**63, 2**64, 1e9, "384", []],
             "hidden_size": [0, -64, 2**40], "num_attention_heads": [0, -8, 7, 2**24], "num_key_value_heads": [3, 0, -2],
             "head_dim": [-2, 7, 300], "num_hidden_layers": [0, -1, 2**40], "max_position_embeddings": [0, -1, 2**50],
             "rms_norm_eps": [0, -1, "1e-6"], "rope_theta": [0, -1], "eos_token_id": [384, -1, [2**40], "2", 2**64 - 1],
             "hidden_act": ["gelu", 3], "quantization_config": [{"bits": 4}], "tie_word_embeddings": ["no", 1],
             "rope_scaling": [{"rope_type": "unheard"}, {"rope_type": 3}]}
    for key, values in wrong.items():
        for i, value in enumerate(values):
            seeds[f"bad-{key}-{i}"] = compact({**base, key: value})
    seeds["bad-infinity"] = compact(base)[:-1] + ',"x":1e999}'
    seeds["bad-twice"] = compact(base)[:-1] + ',"vocab_size":384}'
    seeds["bad-deep"] = compact(base)[:-1] + ',"x":' + "[" * 100 + "]" * 100 + "}"
    seeds["bad-cut"] = compact(base)[:-1]
    seeds["bad-list"] = "[]"
    seeds["bad-empty"] = ""
    return seeds


def small_tokenizer():
    """Every section, few tokens."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokens = ["a", "b", "ab", "<s>", "\u2581", "\u2581a", "\u0120", "<0xE4>", "<0xB8>", "<0xAD>", "<0x20>", "w", "o", "wo", "<unk>"]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 3, "content": "<s>", **flags, "special": True},
                         {"id": 15, "content": "<x>", **flags, "normalized": True, "lstrip": True},
                         {"id": 16, "content": "wow", **flags, "single_word": True, "rstrip": True}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFKC"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            {"type": "Prepend", "prepend": "\u2581"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"\s+(?!\S)|\p{N}{1,3}"}, "behavior": "Isolated", "invert": False},
            {"type": "Digits", "individual_digits": True},
            {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}]},
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": [["a", "b"], ["\u2581", "a"], "w o"]}}


def byte_level_tokenizer():
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {**small_tokenizer(), "normalizer": {"type": "NFC"}, "pre_tokenizer": level, "decoder": level,
            "post_processor": level}


def changed(whole, path, value):
    whole = copy.deepcopy(whole)
    at = whole
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return whole


def tokenizer_seeds():
    small = small_tokenizer()
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    seeds = {"ok-small": compact(small), "ok-byte-level": compact(byte_level_tokenizer()),
             "ok-metaspace": compact({**small, "normalizer": None, "pre_tokenizer": metaspace, "decoder": metaspace}),
             "ok-bare": compact({**small, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
                                 "post_processor": None}),
             "ok-hard-regex": compact(changed(small, ["pre_tokenizer", "pretokenizers", 0, "pattern"],
                                              {"Regex": "(?:(?:a|a)(?:a|a)?)+c|(?:\u2581*)*w"}))}
    sequence = {"type": "Sequence", "pretokenizers": []}
    for _ in range(20):
        sequence = {"type": "Sequence", "pretokenizers": [sequence, sequence][:2 if _ < 5 else 1]}
    deep = '{"type":"Sequence","normalizers":[' * 500 + "]}" * 500
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"}
    level = byte_level_tokenizer()["decoder"]
    wrong = {
        "no-model": (["model"], None), "unigram": (["model", "type"], "Unigram"), "no-tokens": (["model", "vocab"], {}),
        "id-twice": (["model", "vocab"], {**small["model"]["vocab"], "zz": 0}),
        "id-twice-of-a-byte": (["model", "vocab"], {**small["model"]["vocab"], "zz": 10}), "negative-id": (["model", "vocab", "zz"], -1), "hole": (["model", "vocab", "zz"], 4000000),
        "big-id": (["model", "vocab", "zz"], 2**31), "float-id": (["model", "vocab", "zz"], 15.0),
        "id-64": (["model", "vocab", "zz"], 2**32), "merge-unknown": (["model", "merges", 0], ["a", "zz"]),
        "merge-result": (["model", "merges", 0], ["b", "a"]), "merge-one": (["model", "merges", 0], ["a"]),
        "merge-number": (["model", "merges", 0], ["a", 1]), "merge-text": (["model", "merges", 2], "w o w"),
        "merge-half": (["model", "merges", 2], "w "), "unknown-token": (["model", "unk_token"], "nope"),
        "added-id": (["added_tokens", 1, "id"], 2), "added-hole": (["added_tokens", 1, "id"], 3000000),
        "added-twice": (["added_tokens", 2, "content"], "<x>"), "added-same-id": (["added_tokens", 2, "id"], 15),
        "added-empty": (["added_tokens", 1, "content"], ""), "added-long": (["added_tokens", 1, "content"], "x" * 2000),
        "added-wrong-id": (["added_tokens", 0, "id"], 15), "added-negative": (["added_tokens", 1, "id"], -1),
        "template-id": (["post_processor", "special_tokens", "<s>", "ids"], [17]),
        "template-negative": (["post_processor", "special_tokens", "<s>", "ids"], [-1]),
        "template-twice": (["post_processor", "single"], [{"Sequence": {"id": "A"}}] * 2),
        "template-none": (["post_processor", "single"], []),
        "template-many": (["post_processor", "special_tokens", "<s>", "ids"], [3] * 1000),
        "regex-open": (["pre_tokenizer", "pretokenizers", 0, "pattern"], {"Regex": "(a"}),
        "regex-kind": (["pre_tokenizer", "pretokenizers", 0, "pattern"], {"Regex": "\\bx"}),
        "regex-range": (["pre_tokenizer", "pretokenizers", 0, "pattern"], {"Regex": "[z-a]"}),
        "regex-repeat": (["pre_tokenizer", "pretokenizers", 0, "pattern"], {"Regex": "(?:(?:a{999}){999}){999}"}),
        "split-behaviour": (["pre_tokenizer", "pretokenizers", 0, "behavior"], "Odd"),
        "replacement-two": (["pre_tokenizer", "pretokenizers", 2, "replacement"], "ab"),
        "replacement-none": (["pre_tokenizer", "pretokenizers", 2, "replacement"], ""),
        "sequence-in-sequence": (["pre_tokenizer"], sequence), "steps": (["normalizer", "normalizers"], [{"type": "NFC"}] * 100),
        "growth": (["normalizer", "normalizers"], [replace] * 3), "prepend-long": (["normalizer", "normalizers", 2, "prepend"], "x" * 999),
        "replace-empty": (["normalizer", "normalizers", 1, "pattern", "String"], ""),
        "decoder-late-replace": (["decoder", "decoders"], [small["decoder"]["decoders"][i] for i in (1, 0, 2)]),
        "decoder-order": (["decoder", "decoders"], small["decoder"]["decoders"][::-1]),
        "decoder-growth": (["decoder", "decoders"], [replace] * 3), "decoder-stop": (["decoder", "decoders", 3, "stop"], 1),
        "decoder-empty": (["decoder", "decoders", 0, "pattern", "String"], ""),
        "byte-level-twice": (["pre_tokenizer", "pretokenizers"], [level, level]), "truncation": (["truncation"], {}),
        "dropout": (["model", "dropout"], 0.5), "unheard-key": (["model", "novelty"], 1),
        # Found by the fuzzer: what is said of a key was as long as the key.
        "long-key": (["model", "n" * 3000], 1), "key-of-two-lines": (["model", "a\nb"], 1)}
    for name, (path, value) in wrong.items():
        seeds["bad-" + name] = compact(changed(small, path, value))
    text = compact(small)
    seeds["bad-deep"] = text.replace('"truncation":null', '"truncation":' + deep, 1)
    seeds["bad-section-twice"] = text[:-1] + ',"model":' + compact(small["model"]) + "}"
    seeds["bad-token-twice"] = text.replace('"b":1', '"b":1,"b":1', 1)
    seeds["bad-lone-surrogate"] = text.replace('"b":1', '"\\ud800":1', 1)
    for part in [1, 2, 3]:
        seeds[f"bad-cut-{part}"] = text[:len(text) * part // 4]
    return seeds


def text_seeds():
    texts = {"ascii": "The magic 123 I'll we'VE don't  x\n\n\ty ", "words": "word words sword word <mask> x <half>> half",
             "specials": "<s>a</s> <|endoftext|><|im_end|> <|tool|>", "unicode": "e\u0301\u0323 \ufb01\u00bd\u212b \uac00\u1100\u1161\u11a8",
             "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea\u2708\ufe0f", "cjk": "\u4e2d\u6587\u65e5\u672c\u8a9e \u30ab\u30bf",
             "metaspace": "\u2581\u2581 \u2581a  b", "digits": "12345678901234567890", "controls": "\x00\x01\x7f\u0085\u200b\ufeff"}
    seeds = {}
    for i, (name, text) in enumerate(sorted(texts.items())):
        for tokenizer in [i % 21, (7 * i + 3) % 21, (5 * i + 9) % 21]:
            seeds[f"text-{name}-{tokenizer}"] = bytes([tokenizer]) + text.encode()
    broken = [b"\xff\xfe", b"\xe4\xb8", b"a\xf0\x9f\x98", b"\xed\xa0\x80", b"\xf4\x90\x80\x80x", b"\xc0\xaf\xe4\xb8\xe4\xb8\xad"]
    for i, data in enumerate(broken):
        for tokenizer in [i, i + 6, i + 12]:
            seeds[f"bad-utf8-{i}-{tokenizer}"] = bytes([tokenizer]) + data
    for tokenizer in range(21):
        seeds[f"bytes-{tokenizer}"] = bytes([tokenizer]) + bytes((37 * k * k + 11 * k + tokenizer) % 256 for k in range(120))
    for tokenizer in [1, 12, 13, 14, 15]:  # ids of byte tokens: 3 to 258
        ids = [0, 3 + 0xe4, 3 + 0xb8, 3 + 0xad, 300, 3 + 0xf0, 3 + 0x9f, 1, 3 + 0x98, 3 + 0x80, 3 + 0xff, 3 + 0x20, 3 + 0xe4]
        seeds[f"ids-{tokenizer}"] = bytes([tokenizer]) + b"".join(struct.pack("<H", i) for i in ids)
    return seeds


def main():
    write("checkpoint", checkpoint_seeds())
    write("config", config_seeds())
    write("tokenizer", tokenizer_seeds())
    write("text", text_seeds())


if __name__ == "__main__":
    main()
