// What a model's tokens choose, token by token: re-use, stack distances, what spare slots would
// have, and how much of its own choice the Forecast foretells. On text, read on as it stands, and
// in the answers to recall tasks (loadtest/recall_tasks.h) behind their documents.
//
// The law that `augur-bench tiers --reuse-law` draws choices by is a file that this bench writes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops/drive_choice.h"
#include "tests/bench/bench_record.h"

namespace augur::bench {

struct ReuseBenchOptions {
  std::string folder = "deploy/models/demo-9m";
  std::string forecast_heads;      // unset: the folder's forecast.safetensors
  std::vector<std::string> texts;  // files
  std::vector<std::string> policies = {"sparse", "forecast"};
  std::vector<std::string> tasks = {"needle", "many-keys", "cities", "pairs"};
  int length = 8000;     // tokens of a sequence, or of a document
  int steps = 512;       // of a sequence of text, the last ones, that are measured
  int history = 1024;    // tokens before, whose choices count as earlier ones
  int sequences = 4;     // of text, at most
  int documents = 2;     // of each task
  int questions = 10;    // of a document
  int top_k_blocks = 0;  // 0: the model's, or 25
  std::vector<int> spares = {0, 4, 8, 12, 16, 24, 32, 48};
  std::string out;  // the law, as JSON; empty: none
};

// False, with a line on stderr, when the model or a text cannot be read.
bool RunReuseBench(kernels::Backend* backend, const BenchContext& context,
                   const ReuseBenchOptions& options);

// What such a file says of a source, "text" or "tasks"; nothing, with a line on stderr, where it
// says nothing. reuse is the share that was measured.
std::optional<kernels::DrivenChoice> ReadReuseLaw(const std::string& path,
                                                  const std::string& source);

}  // namespace augur::bench
