#!/usr/bin/env python3
"""Plants one fault at a time in a copy of the engine and demands that the simulation finds it.

A simulation that cannot fail proves nothing. Each fault is an exact replacement in one source file; a text that
is no longer there fails the test, so that the list keeps up with the code.

usage: simulation_faults.py SOURCE_DIR COMPILER LINK_ARGUMENTS...
"""

import concurrent.futures
import pathlib
import subprocess
import sys
import tempfile

OPERATIONS = "400000"

# name, file to change, text, replacement, sources to compile anew
FAULTS = [
    ("a shared block is not counted", "memory/kv_manager.cc",
     "if (block.references++ == 0) {",
     "if (block.references == 0) {\n    block.references = 1;", ["memory/kv_manager.cc"]),
    ("release keeps the first block", "memory/kv_manager.cc",
     "block != found->second.rend(); ++block",
     "block + 1 != found->second.rend(); ++block", ["memory/kv_manager.cc"]),
    ("an evicted block stays in the index", "memory/kv_manager.cc",
     "AUGUR_CHECK(index_.erase(blocks_[id].key) == 1);",
     "", ["memory/kv_manager.cc"]),
    ("a hit on a cached block costs nothing", "memory/kv_manager.cc",
     "if (blocks_[found->second].references == 0) ++cost;",
     "", ["memory/kv_manager.cc"]),
    ("keys without the tenant's salt", "memory/block_key.cc",
     "hasher.Add(salt.data(), salt.size());",
     "", ["memory/block_key.cc"]),
    ("keys without the blocks before", "memory/block_key.cc",
     "hasher.Add(parent.data(), parent.size());",
     "", ["memory/block_key.cc"]),
    ("the block at the edge comes one token late", "engine/batcher.h",
     "(tokens + 63) / 64", "(tokens + 62) / 64", ["engine/batcher.cc", "engine/engine_core.cc"]),
    ("a hit may cover the whole prompt", "engine/engine_core.cc",
     "const int most = (sequence->num_tokens() - 1) / kernels::kBlockTokens;",
     "const int most = sequence->num_tokens() / kernels::kBlockTokens;", ["engine/engine_core.cc"]),
    ("a block is published before its last token", "engine/engine_core.cc",
     "sequence->num_computed / kernels::kBlockTokens);",
     "(sequence->num_computed + 64) / kernels::kBlockTokens);", ["engine/engine_core.cc"]),
    ("blocks are published before they are written", "engine/engine_core.cc",
     "running_.insert(waiting_.extract(admission.sequence));\n",
     "running_.insert(waiting_.extract(admission.sequence));\n"
     "  for (size_t i = 0; i < keys.size(); ++i) kv_.Publish(sequence.id, static_cast<int>(i), keys[i]);\n",
     ["engine/engine_core.cc"]),
    ("the end of a sequence leaks its blocks", "engine/engine_core.cc",
     "if (&map == &running_) kv_.Release(id);",
     "if (&map == &running_ && event.kind != TokenEvent::Kind::kFailed) kv_.Release(id);",
     ["engine/engine_core.cc"]),
    ("a preempted sequence believes its KV is still there", "engine/engine_core.cc",
     "sequence.num_computed = 0;",
     "", ["engine/engine_core.cc"]),
    ("a request that can never fit is admitted", "engine/engine_core.cc",
     "if (BlocksFor(total) > options.num_blocks) {",
     "if (false) {", ["engine/engine_core.cc"]),
    ("a finished sequence speaks once more", "engine/engine_core.cc",
     "if (is_stop) {",
     "if (generated >= stopping.max_tokens) events_.push_back(events_.back());\n  if (is_stop) {",
     ["engine/engine_core.cc"]),
    ("a slow reader is cut off although it caught up", "engine/engine_core.cc",
     "    sequence->paused_since_ns = RequestTimes::kUnset;\n    return absl::OkStatus();",
     "    if (sequence->paused_since_ns == RequestTimes::kUnset) return absl::OkStatus();",
     ["engine/engine_core.cc"]),
]


def run_fault(source_dir, compiler, link_arguments, fault):
    name, path, text, replacement, sources = fault
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        original = (source_dir / path).read_text()
        if original.count(text) != 1:
            return f"{name}: the text to replace is in {path} {original.count(text)} times, not once"
        changed = scratch / path
        changed.parent.mkdir(parents=True)
        changed.write_text(original.replace(text, replacement))
        objects = []
        for source in sources:
            place = scratch / source if (scratch / source).exists() else source_dir / source
            target = scratch / (source.replace("/", "_") + ".o")
            build = subprocess.run(
                [compiler, "-std=c++20", "-O1", "-w", f"-I{scratch}", f"-I{source_dir}", "-c", place, "-o", target],
                capture_output=True, text=True, check=False)
            if build.returncode != 0:
                return f"{name}: does not compile\n{build.stderr[:2000]}"
            objects.append(target)
        program = scratch / "simulation"
        link = subprocess.run([compiler, *objects, *link_arguments, "-o", program],
                              capture_output=True, text=True, check=False)
        if link.returncode != 0:
            return f"{name}: does not link\n{link.stderr[:2000]}"
        try:
            result = subprocess.run([program, "--operations", OPERATIONS], capture_output=True, text=True,
                                    errors="replace", timeout=120, check=False)
        except subprocess.TimeoutExpired:
            print(f"found (no progress): {name}")
            return None
        if result.returncode == 0:
            return f"{name}: {OPERATIONS} operations did not find it"
        last = (result.stdout + result.stderr).replace("\r", "\n").strip().splitlines()[-1]
        print(f"found: {name}: {last.split('/')[-1]}", flush=True)
        return None


def main():
    source_dir = pathlib.Path(sys.argv[1])
    compiler, link_arguments = sys.argv[2], sys.argv[3:]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        misses = [miss for miss in pool.map(
            lambda fault: run_fault(source_dir, compiler, link_arguments, fault), FAULTS) if miss]
    for miss in misses:
        print(f"NOT FOUND: {miss}")
    print(f"{len(FAULTS) - len(misses)} of {len(FAULTS)} planted faults found")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
