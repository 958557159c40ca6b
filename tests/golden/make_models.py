#!/usr/bin/env python3
"""Makes the reference vectors that tests/golden/README.md lists as made here.

    python3 tests/golden/make_models.py tests/golden/models      # needs torch and transformers (5.24 was used)

Each folder is a tiny random checkpoint and golden.json as the others have it. Logits are transformers' in float32
on weights that were rounded to the checkpoint's dtype; MiniCPM, which transformers does not have, is the float64
forward below, which is compared with transformers on all the others. rope_vectors.json beside `models` holds the
inverse frequencies and attention factors that transformers makes of RoPE settings.
"""

import json
import math
import pathlib
import sys

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

PROMPTS = (40, 1, 7, 64, 130, 300)
GREEDY = 24
VOCAB = 160
SHAPE = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-05,
         "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
# Every eighth of the 128K factors that OpenBMB publishes for MiniCPM4.1 (one a pair of 16 dimensions).
MINICPM_LONG = [0.9982316082870437, 1.5807816745852985, 3.0880118452194134, 10.210822723989212, 34.23183327975347,
                74.86555458220285, 118.63764063163615, 124.54641761549492]
SHORT = [1.0, 1.02, 1.05, 1.1, 1.3, 1.7, 2.5, 4.0]
# Angles of a first factor of 1 are whole numbers, which float32 holds: transformers' are then near the exact ones.
PHI3_LONG = [1.0] + MINICPM_LONG[1:]
# Short up to 128 tokens of prompt and answer together: 18 tokens behind 110 are short, 19 are long.
ORIGINAL = 128
EDGE_PROMPT, EDGE_GREEDY = 110, (18, 19)

MODELS = {
    "mistral-bf16": {"dtype": torch.bfloat16, "seed": 1, "config": SHAPE | {
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "head_dim": 16, "sliding_window": None,
        "tie_word_embeddings": False, "rope_theta": 10000.0, "rope_scaling": None}},
    "llama-linear-f16": {"dtype": torch.float16, "seed": 2, "config": SHAPE | {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "head_dim": 16, "tie_word_embeddings": True,
        "rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.5}}},
    "qwen2-yarn-shards": {"dtype": torch.float32, "seed": 3, "shards": 3, "config": SHAPE | {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "tie_word_embeddings": False,
        "use_sliding_window": False, "sliding_window": 128, "max_window_layers": 2, "rope_theta": 1000000.0,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}},
    "phi3-longrope-edge": {"dtype": torch.float32, "seed": 4, "config": SHAPE | {
        "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "hidden_size": 64, "tie_word_embeddings": False,
        "original_max_position_embeddings": ORIGINAL, "sliding_window": None, "rope_theta": 10000.0,
        "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": PHI3_LONG}}},
    "minicpm41-longrope": {"dtype": torch.bfloat16, "seed": 5, "config": SHAPE | {
        "model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"], "hidden_size": 64,
        "tie_word_embeddings": False, "attention_bias": False, "scale_emb": 12, "scale_depth": 1.4,
        "dim_model_base": 16, "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": MINICPM_LONG,
                         "original_max_position_embeddings": ORIGINAL}}},
}

# model_type, the rest of a config with head_dim 64 and 1,024 positions; see rope_vectors.json.
ROPE_CASES = (
    ("llama", {"rope_theta": 500000.0}),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 3.0}}),
    ("llama", {"rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256}}),
    ("llama", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 32.0, "low_freq_factor": 2.0,
        "high_freq_factor": 3.0, "original_max_position_embeddings": 100}}),
    ("qwen2", {"rope_theta": 1000000.0, "rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}}),
    ("qwen3", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 40.0, "original_max_position_embeddings": 512,
        "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.7, "truncate": False}}),
    ("mistral", {"sliding_window": None, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 512,
        "attention_factor": 0.75, "beta_fast": 0}}),
    ("phi3", {"original_max_position_embeddings": 128, "rope_scaling": {
        "type": "longrope", "short_factor": [1.0 + i / 32 for i in range(32)],
        "long_factor": [1.0 + i * i / 8 for i in range(32)]}}),
    ("llama", {"rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 128, "factor": 4.0,
        "short_factor": [1.0] * 32, "long_factor": [2.0 + i for i in range(32)]}}),
)


def random_weights(config, seed):
    """Tensors by name, in float32: matrices near 1/sqrt(inputs), norms near 1."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    tensors = {}

    def matrix(name, rows, columns, spread=1.0):
        tensors[name + ".weight"] = torch.randn(rows, columns, generator=generator) * spread / math.sqrt(columns)

    def vector(name, size, mean):
        tensors[name] = mean + 0.2 * torch.randn(size, generator=generator)

    matrix("model.embed_tokens", VOCAB, hidden, math.sqrt(hidden) / 4)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        vector(at + "input_layernorm.weight", hidden, 1.0)
        vector(at + "post_attention_layernorm.weight", hidden, 1.0)
        if config["model_type"] == "phi3":
            matrix(at + "self_attn.qkv_proj", q + 2 * kv, hidden)
            matrix(at + "mlp.gate_up_proj", 2 * inner, hidden)
        else:
            for part, rows in (("q", q), ("k", kv), ("v", kv)):
                matrix(at + f"self_attn.{part}_proj", rows, hidden)
                if config["model_type"] == "qwen2":
                    vector(at + f"self_attn.{part}_proj.bias", rows, 0.0)
            matrix(at + "mlp.gate_proj", inner, hidden)
            matrix(at + "mlp.up_proj", inner, hidden)
        matrix(at + "self_attn.o_proj", hidden, q)
        matrix(at + "mlp.down_proj", hidden, inner)
    vector("model.norm.weight", hidden, 1.0)
    if not config["tie_word_embeddings"]:
        matrix("lm_head", VOCAB, hidden, 4.0)
    return tensors


def angles_of(config, long):
    """Inverse frequencies and attention factor in double; the formulae of InverseFrequencies' two simplest."""
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    frequencies = config["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
    scaling = config["rope_scaling"] or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        return frequencies / scaling["factor"], 1.0
    if kind == "longrope":
        growth = config["max_position_embeddings"] / ORIGINAL
        factor = math.sqrt(1 + math.log(growth) / math.log(ORIGINAL))
        return frequencies / np.array(scaling["long_factor" if long else "short_factor"]), factor
    if kind == "yarn":
        made, factor = ROPE_INIT_FUNCTIONS["yarn"](transformers.AutoConfig.for_model(**config))
        return made.double().numpy(), factor
    return frequencies, 1.0


class Forward64:
    """The decoder in float64: embedding, layers, logits of every position."""

    def __init__(self, config, tensors):
        self.config = config
        self.weights = {name: tensor.double().numpy() for name, tensor in tensors.items()}
        self.head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        mup = config["model_type"] == "minicpm"
        self.scale_emb = config["scale_emb"] if mup else 1.0
        self.residual = config["scale_depth"] / math.sqrt(config["num_hidden_layers"]) if mup else 1.0
        self.head_divisor = config["hidden_size"] / config["dim_model_base"] if mup else 1.0

    def linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        return y + self.weights[name + ".bias"] if name + ".bias" in self.weights else y

    def norm(self, x, name):
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.config["rms_norm_eps"]) * self.weights[name]

    def attention(self, x, at, long):
        config, d = self.config, self.head_dim
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        if config["model_type"] == "phi3":
            q, k, v = np.split(self.linear(x, at + "qkv_proj"), [heads * d, (heads + kv_heads) * d], axis=-1)
        else:
            q, k, v = (self.linear(x, at + part + "_proj") for part in "qkv")
        frequencies, factor = angles_of(config, long)
        angles = np.arange(len(x))[:, None] * frequencies
        cos, sin = factor * np.cos(angles)[:, None], factor * np.sin(angles)[:, None]

        def turn(part, count):
            a, b = np.split(part.reshape(len(x), count, d), 2, axis=-1)
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

        q, k, v = turn(q, heads), turn(k, kv_heads), v.reshape(len(x), kv_heads, d)
        k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(d)
        scores[:, np.triu(np.ones((len(x), len(x)), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
        return self.linear(out.reshape(len(x), heads * d), at + "o_proj")

    def mlp(self, x, at):
        if self.config["model_type"] == "phi3":
            gate, up = np.split(self.linear(x, at + "gate_up_proj"), 2, axis=-1)
        else:
            gate, up = self.linear(x, at + "gate_proj"), self.linear(x, at + "up_proj")
        return self.linear(gate / (1 + np.exp(-gate)) * up, at + "down_proj")

    def logits(self, tokens, long):
        x = self.scale_emb * self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            x = x + self.residual * self.attention(self.norm(x, at + "input_layernorm.weight"), at + "self_attn.", long)
            x = x + self.residual * self.mlp(self.norm(x, at + "post_attention_layernorm.weight"), at + "mlp.")
        x = self.norm(x, "model.norm.weight") / self.head_divisor
        head = "model.embed_tokens.weight" if self.config["tie_word_embeddings"] else "lm_head.weight"
        return x @ self.weights[head].T


class Transformers:
    """transformers' model in float32 on the same tensors; `long` forces the long factors, whatever the length."""

    def __init__(self, folder, config, tensors):
        self.models = {}
        for long in (False, True):
            loaded = transformers.AutoConfig.from_pretrained(folder)
            if long and "long_factor" in (config["rope_scaling"] or {}):
                loaded.rope_parameters["short_factor"] = loaded.rope_parameters["long_factor"]
            model = transformers.AutoModelForCausalLM.from_config(loaded, dtype=torch.float32).eval()
            state = {name: tensor.float() for name, tensor in tensors.items()}
            if config["tie_word_embeddings"]:
                state["lm_head.weight"] = state["model.embed_tokens.weight"]
            model.load_state_dict(state)
            self.models[long] = model

    def logits(self, tokens, long):
        with torch.no_grad():
            return self.models[long](torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def make_case(reference, check, prompt, count, is_first, config):
    """One case; None where two tokens are nearly as good, or where the two forwards differ."""
    scaling = config["rope_scaling"] or {}
    long = "long_factor" in scaling and len(prompt) + count > ORIGINAL
    tokens, case, worst, margin = list(prompt), {"prompt": prompt}, 0.0, 1.0
    for step in range(count + 1):
        logits = reference.logits(tokens, long)
        largest = np.abs(logits[-1]).max()
        if step == 0:
            case["last_logits"] = shorten(logits[-1])
            if is_first:
                all_logits = [shorten(row) for row in logits]
        if check is not None:
            worst = max(worst, np.abs(check.logits(tokens, long)[-1] - logits[-1]).max() / largest)
        if step == count:
            break
        second, best = np.sort(logits[-1])[-2:]
        margin = min(margin, (best - second) / largest)
        if margin < 1e-4 or worst > 3e-6:
            print(f"  another prompt of {len(prompt)}: margin {margin:.2g}, difference {worst:.2g}", flush=True)
            return None
        tokens.append(int(np.argmax(logits[-1])))
    case["greedy"] = tokens[len(prompt):]
    if is_first:
        case["all_logits"] = all_logits
    return case, margin, worst


def shorten(row):
    return [float(f"{value:.9g}") for value in row]


def write_weights(folder, tensors, shards):
    if shards == 1:
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        safetensors.torch.save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def make_model(folder, recipe):
    folder.mkdir(parents=True, exist_ok=True)
    config = recipe["config"]
    dtype = str(recipe["dtype"]).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": dtype}, indent=1) + "\n")
    tensors = {name: tensor.to(recipe["dtype"]) for name, tensor in random_weights(config, recipe["seed"]).items()}
    write_weights(folder, tensors, recipe.get("shards", 1))
    reference = own = Forward64(config, tensors)
    made_by = "float64 numpy"
    if config["model_type"] != "minicpm":
        reference, made_by = Transformers(folder, config, tensors), f"transformers {transformers.__version__}"
        saved = transformers.AutoConfig.from_pretrained(folder).to_json_string(use_diff=False)
        (folder / "config.v5.json").write_text(json.dumps(json.loads(saved)) + "\n")
    lengths = [(length, [GREEDY]) for length in PROMPTS]
    if "long_factor" in (config["rope_scaling"] or {}):
        lengths.append((EDGE_PROMPT, EDGE_GREEDY))
    generator = np.random.default_rng(recipe["seed"])
    check = own if reference is not own else None
    made = []
    for i, (length, counts) in enumerate(lengths):
        cases = [None]
        while None in cases:
            prompt = [int(token) for token in generator.integers(3, VOCAB, length)]
            cases = [make_case(reference, check, prompt, count, i == 0, config) for count in counts]
        made += cases
    cases, margins, differences = zip(*made)
    golden = {"made_by": made_by, "dtype": dtype, "cases": cases}
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{folder.name}: least greedy margin {min(margins):.2g}, numpy off by {max(differences):.2g}")


def make_rope_vectors(path):
    vectors = []
    for model_type, keys in ROPE_CASES:
        config = {"model_type": model_type, "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2,
                  "head_dim": 64, "max_position_embeddings": 1024} | keys
        loaded = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
        kind = loaded.rope_parameters["rope_type"]
        variants = []
        for length in (None, 1024) if kind == "longrope" else (None,):
            if kind == "default":
                frequencies, factor = loaded.rope_parameters["rope_theta"] ** (-torch.arange(0, 64, 2).double() / 64), 1.0
            else:
                frequencies, factor = ROPE_INIT_FUNCTIONS[kind](loaded, seq_len=length)
            variants.append([float(f"{value:.9g}") for value in frequencies.tolist()])
        vectors.append({"config": config, "attention_factor": factor, "inverse_frequencies": variants})
    path.write_text("[\n" + ",\n".join(json.dumps(vector) for vector in vectors) + "\n]\n")


def main():
    models = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    make_rope_vectors(models.parent / "rope_vectors.json")
    wanted = sys.argv[2:] or list(MODELS)
    for name in wanted:
        make_model(models / name, MODELS[name])


if __name__ == "__main__":
    main()
