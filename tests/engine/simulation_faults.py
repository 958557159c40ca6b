#!/usr/bin/env python3
"""Plants one fault at a time in a copy of the engine and demands that the simulation finds it.

A simulation that cannot fail proves nothing. Each fault is an exact replacement in one source file; a text that
is no longer there fails the test, so that the list keeps up with the code.

usage: simulation_faults.py SOURCE_DIR COMPILER LINK_ARGUMENTS...
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

OPERATIONS = "48000000"
TIMEOUT_S = 200

# name, file to change, text, replacement, and sources to compile anew where that is not the file itself
FAULTS = [
    ("a shared block is not counted", "memory/kv_manager.cc",
     "if (block.references++ == 0) {",
     "if (block.references == 0) {\n    block.references = 1;"),
    ("release keeps the first block", "memory/kv_manager.cc",
     "block != found->second.rend(); ++block",
     "block + 1 != found->second.rend(); ++block"),
    ("an evicted block stays in the index", "memory/kv_manager.cc",
     "AUGUR_CHECK(index_.erase(blocks_[id].key) == 1);",
     ""),
    ("a hit on a cached block costs nothing", "memory/kv_manager.cc",
     "if (blocks_[found->second].references == 0) ++cost;",
     ""),
    ("keys without the tenant's salt", "memory/block_key.cc",
     "hasher.Add(salt.data(), salt.size());",
     ""),
    ("keys without the policy", "memory/block_key.cc",
     "hasher.Add(variant.data(), variant.size());",
     ""),
    ("keys without the blocks before", "memory/block_key.cc",
     "hasher.Add(parent.data(), parent.size());",
     ""),
    ("the block at the edge comes one token late", "engine/batcher.h",
     "(tokens + 63) / 64",
     "(tokens + 62) / 64",
     ["engine/batcher.cc", "engine/engine_core.cc"]),
    ("what is restored runs in the step that admits it", "engine/batcher.cc",
     "    if (restores) return;\n",
     ""),
    ("a hit may cover the whole prompt", "engine/engine_core.cc",
     "                  (tokens - 1) / kernels::kBlockTokens);",
     "                  tokens / kernels::kBlockTokens);"),
    ("a block is published before its last token", "engine/engine_core.cc",
     "const size_t full = std::min<size_t>(keys.size(), sequence->num_computed / kernels::kBlockTokens);",
     "const size_t full = std::min<size_t>(keys.size(), (sequence->num_computed + 64) / kernels::kBlockTokens);"),
    ("blocks are published before they are written", "engine/engine_core.cc",
     "  running_.insert(waiting_.extract(admission.sequence));\n  return true;\n}\n\nvoid EngineCore::ApplyWarmUps",
     "  running_.insert(waiting_.extract(admission.sequence));\n  for (size_t i = 0; i < keys.size(); ++i) kv_->Publish(sequence.id, static_cast<int>(i), keys[i]);\n  return true;\n}\n\nvoid EngineCore::ApplyWarmUps"),
    ("the end of a sequence leaks its blocks", "engine/engine_core.cc",
     "if (&map == &running_ || kv_->is_saved(id)) ReleaseKv",
     "if (&map == &running_) ReleaseKv"),
    ("a preempted sequence believes its KV is still there", "engine/engine_core.cc",
     "    sequence.num_computed = 0;\n",
     ""),
    ("a request that can never fit is admitted", "engine/pool_fit.cc",
     "  if (tiered && fits(memory::Residency::kTiered)) return absl::OkStatus();",
     "  return absl::OkStatus();"),
    ("a finished sequence speaks once more", "engine/engine_core.cc",
     "if (is_stop) {",
     "if (generated >= stopping.max_tokens) events_.push_back(events_.back());\n  if (is_stop) {"),
    ("a slow reader is cut off although it caught up", "engine/engine_core.cc",
     "    sequence->paused_since_ns = RequestTimes::kUnset;\n    return absl::OkStatus();",
     "    if (sequence->paused_since_ns == RequestTimes::kUnset) return absl::OkStatus();"),
    ("what cannot end on the device begins there", "engine/engine_core.cc",
     "      FitsPools(request, options_, kv_->pools(), memory::Residency::kDevice)) {",
     "      true) {"),
    ("every choice draws as the first", "engine/engine_core.cc",
     ".choice_index = sequence.choice,",
     ".choice_index = 0,"),
    ("a choice outlives the failure of its request", "engine/engine_core.cc",
     "  for (SequenceId choice = first; choice < end; ++choice) {\n    if (Find(choice) == nullptr) continue;",
     "  for (SequenceId choice = first; choice < end; ++choice) {\n    if (choice != id) continue;"),
    ("a stop match retires the request's first choice", "engine/sequence.h",
     ">> choice) & 1",
     ">> 0) & 1",
     ["engine/engine_core.cc"]),
    ("a saved sequence waits for a higher rank that lacks its blocks", "engine/batcher.cc",
     "        blocked = true;\n        continue;",
     "        return;"),
    ("the highest priority is preempted first", "engine/engine_core.cc",
     "return a->request->priority > b->request->priority;",
     "return a->request->priority < b->request->priority;"),
    ("a sequence is saved before its first token", "engine/engine_core.cc",
     " && sequence.num_computed > 0;",
     ";"),
    ("a running sequence goes before the frames of an ended one come back", "engine/engine_core.cc",
     "if (!plan_.preemptions.empty() && kv_->num_closing() > 0) {",
     "if (false) {"),
    ("two slots for whoever decodes densely", "engine/pool_fit.cc",
     "  const bool selects = request.attention.selects();\n  return {.residency = residency,\n          .selects = selects,\n          .num_slots = selects ?",
     "  const bool selects = request.attention.selects();\n  return {.residency = residency,\n          .selects = selects,\n          .num_slots = request.attention.decode != AttentionPolicy::kDense ?"),
    ("the slot of a wanted block is taken for another", "memory/slot_group.cc",
     "    taken[slot] = true;\n    ++plan->hits;",
     "    ++plan->hits;"),
    ("one slot for two fetched blocks", "memory/slot_group.cc",
     "    taken[victim] = true;\n",
     ""),
    ("a slot is taken before its block's write has landed", "memory/slot_group.cc",
     "return !taken[slot] && group.blocks[slot] < landed_blocks;",
     "return !taken[slot];"),
    ("a tail takes a slot before its block's write has landed", "memory/slot_group.cc",
     "(block < landed_blocks && block >= init",
     "(block >= init"),
    ("the first block is evicted for a tail", "memory/slot_group.cc",
     "block >= init && block < local_begin",
     "block < local_begin"),
    ("the forced window is one block short", "memory/layer_residency.cc",
     "const int local_begin = block - std::max(forced.local, 1) + 1;",
     "const int local_begin = block - std::max(forced.local, 1) + 2;"),
    ("fetched blocks are not waited for", "memory/layer_residency.cc",
     "  WaitTimed(request.tickets, layer, cause);\n",
     ""),
    ("a tile is not waited for", "memory/layer_residency.cc",
     "  WaitTimed(tickets, chunk_layer_, WaitCause::kFetch);\n",
     ""),
    ("a block is fetched before its write has landed", "memory/layer_residency.cc",
     "  while (fetch.block >= kv->landed_blocks[layer]) WaitForWrite(kv, layer);\n",
     ""),
    ("a slot of keys passes for a whole one", "memory/layer_residency.cc",
     "  kv->slot_has_values[index] = whole ? 1 : 0;",
     "  kv->slot_has_values[index] = 1;"),
    ("a slot that a new block takes keeps its values' state", "memory/layer_residency.cc",
     "      kv->slot_has_values[kv->slot_index(pools_.layout, layer, head, slot)] = 1;\n",
     ""),
    ("values on their way are not waited for", "memory/layer_residency.cc",
     "    WaitTimed(kv->value_moves, 1, WaitCause::kPrefetchLate);\n",
     ""),
    ("a sequence is freed under its values' move", "memory/kv_store.cc",
     " && kv->value_moves.empty();\n}",
     ";\n}"),
    ("a tile's block is fetched before its write has landed", "memory/layer_residency.cc",
     "      ReadablePage(chunk_, chunk_layer_, head, fetch.block);  // its write has landed\n",
     ""),
    ("a staged page is used again before its write has landed", "memory/layer_residency.cc",
     "  WaitTimed(writes, layer, WaitCause::kFetch);\n  writes.clear();",
     "  writes.clear();"),
    ("both layers' staged pages are the same", "memory/layer_residency.cc",
     "(layer % 2 * staged_places_ + place)",
     "(place)"),
    ("a chunk's blocks do not reach the slots", "memory/layer_residency.cc",
     "      std::memcpy(chunk_->slot_page(pools_, chunk_layer_, head, fetch.slot),\n                  TilePage(head, fetch.block), pools_.layout.page_bytes);\n",
     ""),
    ("one sequence's cancel drops another's writes", "memory/layer_residency.cc",
     "    tickets.clear();\n    store_->Submit(TransferKind::kSpill,",
     "    store_->Submit(TransferKind::kSpill,"),
    ("a block is written behind one block late", "memory/layer_residency.cc",
     "  if (!kv->writes_behind() || end_block <= kv->submitted_blocks[layer]) return;",
     "  if (!kv->writes_behind() || --end_block <= kv->submitted_blocks[layer]) return;"),
    ("a ticket is done too early", "memory/kv_store.cc",
     "while (done < kv->writes.size() && transfers_->Done(kv->writes[done].ticket)) {",
     "while (done < kv->writes.size()) {"),
    ("a restore is not awaited", "memory/kv_store.cc",
     "return kv.restores.empty() && !kv.warm_up.lacks();",
     "return !kv.warm_up.lacks();"),
    ("compressed keys stay away on a prefix hit", "memory/kv_store.cc",
     "    if (!kv.demand.selects) continue;\n    for (int layer",
     "    continue;\n    for (int layer"),
    ("the last block of a hit is not restored", "memory/kv_store.cc",
     "kv->warm_up = {.blocks = admission.hits, .end = admission.hits};",
     "kv->warm_up = {.blocks = admission.hits - 1, .end = admission.hits - 1};"),
    ("compressed keys do not reach the host", "memory/kv_store.h",
     "      if (!kv.demand.selects) continue;\n      copies->push_back({kv.block_keys",
     "      continue;\n      copies->push_back({kv.block_keys",
     ["memory/kv_store.cc", "memory/layer_residency.cc"]),
    ("published before it has landed", "memory/kv_store.cc",
     "  if (block >= kv.landed_everywhere()) return false;\n",
     ""),
    ("frames and host blocks are freed under a copy", "memory/kv_store.cc",
     "  return kv->writes.empty() && kv->restores.empty() && kv->value_moves.empty();",
     "  return true;"),
    ("host blocks are freed while a restore reads them", "memory/kv_store.cc",
     "  return kv->writes.empty() && kv->restores.empty() && kv->value_moves.empty();",
     "  return kv->writes.empty() && kv->value_moves.empty();"),
    ("the tail is lost at a preemption", "memory/kv_store.cc",
     "  const int blocks = BlocksOf(num_tokens);\n  // One that has not",
     "  const int blocks = num_tokens / kBlockTokens;\n  // One that has not"),
    ("a sequence is saved without waiting for its writes", "memory/kv_store.cc",
     "    transfers_->Wait(kv.writes.front().ticket);\n    PollWrites(&kv);",
     "    kv.writes.erase(kv.writes.begin());"),
    ("a tail is saved while it is restored", "memory/kv_store.cc",
     "  for (const Ticket ticket : kv.restores) transfers_->Wait(ticket);\n  kv.restores.clear();\n",
     "  kv.restores.clear();\n"),
    ("a saved tail counts as landed", "memory/kv_store.cc",
     "  for (int& landed : kv.landed_blocks) landed = std::min(landed, full);\n",
     ""),
    ("a saved tail is not written again", "memory/kv_store.cc",
     "  for (int& submitted : kv.submitted_blocks) submitted = std::min(submitted, full);\n",
     ""),
    ("a mirror misses a block", "memory/kv_store.cc",
     "    const int first = kv.submitted_blocks[layer];\n    if (first >= blocks) continue;",
     "    const int first = kv.submitted_blocks[layer] + 1;\n    if (first >= blocks) continue;"),
    ("a resumed sequence's slots stay empty", "memory/kv_store.cc",
     "  FillSlots(&kv, blocks);\n",
     ""),
    ("a cold sequence is ready before all of it is on its way", "memory/kv_store.cc",
     "return kv.restores.empty() && !kv.warm_up.lacks();",
     "return kv.restores.empty();"),
    ("a sequence that is saved while cold writes its tail from its slot", "memory/kv_store.cc",
     "const bool untouched = kv.warm_up.lacks() || !kv.restores.empty();",
     "const bool untouched = false;"),
    ("a resumed sequence's slots are not warmed", "memory/kv_store.cc",
     ".end = blocks + groups}",
     ".end = blocks}"),
    ("a warm-up goes on a piece too far", "memory/kv_store.cc",
     "if ((!first && copies > kTicketCopies) || !HasRoomFor(copies)) break;",
     "if ((!first && copies > kTicketCopies) || !HasRoomFor(copies)) {\n      ++warm_up.next;\n      break;\n    }"),
    ("a sequence that takes the last frames counts its own as missing", "memory/kv_store.cc",
     "    kv->frames.assign(table.begin(), table.end());\n    open_.emplace",
     "    open_.emplace"),
]


def run_fault(source_dir, compiler, link_arguments, fault):
    name, path, text, replacement = fault[:4]
    sources = fault[4] if len(fault) > 4 else [path]
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
                                    errors="replace", timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            print(f"found (no progress): {name}", flush=True)
            return None
        if result.returncode == 0:
            return f"{name}: {OPERATIONS} operations did not find it"
        lines = (result.stdout + result.stderr).strip().splitlines()
        print(f"found: {name}: {' | '.join(line.split('/')[-1] for line in lines[-2:])}", flush=True)
        return None


def main():
    only = os.environ.get("AUGUR_FAULTS", "")  # a part of the names
    source_dir = pathlib.Path(sys.argv[1])
    compiler, link_arguments = sys.argv[2], sys.argv[3:]
    faults = [fault for fault in FAULTS if only in fault[0]]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        misses = [miss for miss in pool.map(
            lambda fault: run_fault(source_dir, compiler, link_arguments, fault), faults) if miss]
    for miss in misses:
        print(f"NOT FOUND: {miss}")
    print(f"{len(faults) - len(misses)} of {len(faults)} planted faults found")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
