#!/usr/bin/env python3
"""Plants one fault at a time in a copy of the readers and demands that the fuzz corpus finds it.

A corpus that cannot fail proves nothing. Each fault is an exact replacement in one source file; a text that is no
longer there fails, so that the list keeps up with the code. Not part of CI (a minute of two cores):
    cmake --build --preset release --target parser_faults

usage: parser_faults.py SOURCE_DIR COMPILER TARGET=OBJECT,OBJECT... [TARGET=...] LINK_ARGUMENTS...
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

TIMEOUT_S = 60

# name, file to change, text, replacement, targets whose corpus is run
FAULTS = [
    ("ranges of tensors may overlap", "engine/model/checkpoint.cc",
     "if (begin != expected) {", "if (begin > expected) {", ["checkpoint"]),
    ("a hole between tensors passes", "engine/model/checkpoint.cc",
     "if (begin != expected) {", "if (begin < expected) {", ["checkpoint"]),
    ("bytes behind the last tensor pass", "engine/model/checkpoint.cc",
     "if (data_start + expected != file->bytes) {", "if (data_start + expected > file->bytes) {", ["checkpoint"]),
    ("the product of a shape wraps", "engine/model/checkpoint.cc",
     "if (__builtin_mul_overflow(bytes, extent, &bytes)) {",
     "bytes = static_cast<int64_t>(static_cast<uint64_t>(bytes) * static_cast<uint64_t>(extent));\n    if (bytes < 0) {",
     ["checkpoint"]),
    ("a range longer than its shape", "engine/model/checkpoint.cc",
     "if (offsets[1] - offsets[0] != *bytes) {", "if (offsets[1] - offsets[0] < *bytes) {", ["checkpoint"]),
    ("negative extents", "engine/model/checkpoint.cc",
     'fields.IntOrList("shape", 0, INT64_MAX)', 'fields.IntOrList("shape", -10, INT64_MAX)', ["checkpoint"]),
    ("half-precision data of four bytes", "engine/model/checkpoint.cc",
     'if (name == "F16") return kernels::DType::kF16;', 'if (name == "F16") return kernels::DType::kF32;', ["checkpoint"]),
    ("the index names another shard", "engine/model/checkpoint.cc",
     "found->second.file->path == path) continue;", "!path.empty()) continue;", ["checkpoint"]),
    ("a key twice", "engine/json/json_document.cc",
     "if (twice == names.end()) return true;", "return true;", ["checkpoint", "config", "tokenizer"]),
    ("no bound on nesting", "engine/json/json_document.cc",
     "if (open_.size() == kMaxDepth) {", "if (open_.size() > 1000000) {", ["config", "tokenizer"]),
    ("the values behind a list are taken for its own", "engine/json/json_document.cc",
     "return container ? static_cast<uint32_t>(node.payload) : index + 1;", "return container ? index + 1 : index + 1;",
     ["checkpoint", "config", "tokenizer"]),
    ("integers without an upper limit", "engine/json/json_fields.cc",
     "value->integer() < least || value->integer() > most) {", "value->integer() < least) {", ["config"]),
    ("two tokens with one id", "engine/tokenizer/tokenizer_json.cc",
     "if (table.Has(id)) {", "if (false) {", ["tokenizer"]),
    ("a vocabulary of holes", "engine/tokenizer/tokenizer_json.cc",
     "std::min(kMaxTokenId, 2 * (object.size() + added_tokens) + kFreeHoles);", "kMaxTokenId;", ["tokenizer"]),
    ("steps that blow up text", "engine/tokenizer/tokenizer_json.cc",
     "if (*growth > kMaxGrowth) {", "if (*growth > 1000000000) {", ["tokenizer"]),
    ("a template's ids are not checked", "engine/tokenizer/tokenizer_json.cc",
     "Int(0, highest_id_)", "Int(INT32_MIN, INT32_MAX)", ["tokenizer"]),
    ("a decoder in any order", "engine/tokenizer/tokenizer_json.cc",
     "known->second < *stage ||", "", ["tokenizer"]),
    ("an added token without characters", "engine/tokenizer/added_tokens.cc",
     "if (token.content.empty() || ", "if (", ["tokenizer"]),
    ("a merge of what is no longer there", "engine/tokenizer/bpe_model.cc",
     "if (merges_.Find(left.id, right.id).result != result) continue;", "", ["text", "tokenizer"]),
    ("the end of a piece is lost", "engine/tokenizer/pre_tokenizer.cc",
     "if (done < piece.size()) stretches.push_back({{done, piece.size()}, false});", "", ["text"]),
    ("what is held back at the end is lost", "engine/tokenizer/incremental_decoder.cc",
     "  AppendRepairedUtf8(held_, false, &text);\n  held_.clear();", "  held_.clear();", ["text"]),
    ("every leading space is dropped", "engine/tokenizer/incremental_decoder.cc",
     "    --strip_.most;\n", "", ["text"]),
    ("an incomplete character shows too early", "engine/tokenizer/incremental_decoder.cc",
     "AppendRepairedUtf8(held_, true, &text)", "AppendRepairedUtf8(held_, false, &text)", ["text"]),
]


def run_fault(source_dir, compiler, objects_of, link_arguments, fault):
    name, path, text, replacement, targets = fault
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        original = (source_dir / path).read_text()
        if original.count(text) != 1:
            return f"{name}: the text to replace is in {path} {original.count(text)} times, not once"
        changed = scratch / path.replace("/", "_")
        changed.write_text(original.replace(text, replacement))
        build = subprocess.run(
            [compiler, "-std=c++20", "-O1", "-w", "-DPCRE2_CODE_UNIT_WIDTH=8", f"-I{source_dir}", "-c", changed, "-o",
             scratch / "changed.o"], capture_output=True, text=True, check=False)
        if build.returncode != 0:
            return f"{name}: does not compile\n{build.stderr[:2000]}"
        for target in targets:
            program = scratch / target
            link = subprocess.run([compiler, scratch / "changed.o", *objects_of[target], *link_arguments, "-o", program],
                                  capture_output=True, text=True, check=False)
            if link.returncode != 0:
                return f"{name}: does not link\n{link.stderr[:2000]}"
            try:
                result = subprocess.run([program, source_dir / "tests/fuzz/corpus" / target], capture_output=True,
                                        text=True, errors="replace", timeout=TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired:
                print(f"found by {target} (no progress): {name}", flush=True)
                return None
            if result.returncode != 0:
                said = [line for line in result.stderr.splitlines() if "was " in line or "broken" in line]
                last = result.stderr.splitlines()[-1:]
                print(f"found by {target}: {name}: {(said or last)[0].split('/')[-1]}", flush=True)
                return None
        return f"{name}: no input of {', '.join(targets)} finds it"


def main():
    only = os.environ.get("AUGUR_FAULTS", "")  # a part of the names
    source_dir, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
    objects_of, link_arguments = {}, []
    for argument in sys.argv[3:]:
        if "=" in argument and not argument.startswith("-"):
            target, objects = argument.split("=")
            objects_of[target] = objects.split(",")
        else:
            link_arguments.append(argument)
    faults = [fault for fault in FAULTS if only in fault[0]]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        misses = [miss for miss in pool.map(
            lambda fault: run_fault(source_dir, compiler, objects_of, link_arguments, fault), faults) if miss]
    for miss in misses:
        print(f"NOT FOUND: {miss}")
    print(f"{len(faults) - len(misses)} of {len(faults)} planted faults found")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
