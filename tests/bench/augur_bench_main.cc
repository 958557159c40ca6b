// augur-bench: what the kernels and whole steps do on this machine, beside what the machine can do.
// One JSON line a case on stdout.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/attention_bench.h"
#include "tests/bench/bench_record.h"
#include "tests/bench/matmul_bench.h"
#include "tests/bench/model_bench.h"
#ifdef AUGUR_HAS_CUDA
#include "kernels/cuda/bandwidth_probe.h"
#include "kernels/cuda/make_cuda_backend.h"
#endif

namespace {

#ifdef AUGUR_HAS_CUDA
constexpr const char* kAttentionBackend = "cuda";
#else
constexpr const char* kAttentionBackend = "cpu";
#endif

// On the backend of this name; false, with a line on stderr, where it cannot be had.
bool RunAttention(const std::string& name, augur::bench::BenchContext context,
                  const augur::bench::AttentionBenchOptions& options) {
  std::unique_ptr<augur::kernels::Backend> backend;
  std::string error = name + ": not in this build";
  double read_bytes_per_second = 0;
  if (name == "cpu") backend = augur::kernels::MakeCpuBackend({.num_threads = context.threads});
#ifdef AUGUR_HAS_CUDA
  if (name == "cuda") backend = augur::kernels::MakeCudaBackend({}, &error);
  if (name == "cuda" && backend != nullptr) {
    read_bytes_per_second = augur::kernels::MeasureReadBytesPerSecond();
  }
#endif
  if (backend == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return false;
  }
  context.backend = backend->Describe();
  augur::bench::RunAttentionBench(backend.get(), context, options, read_bytes_per_second);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures Augur's kernels and steps; prints JSON lines.");
  app.require_subcommand(1);
  augur::bench::BenchContext context;
  context.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  app.add_option("--threads", context.threads, "compute threads")->check(CLI::Range(1, 256));
  app.add_option("--repeats", context.repeats, "runs of each case, the best one counts")
      ->check(CLI::Range(1, 1000));

  std::vector<int> rows = {1, 4, 16, 64, 512, 2048};
  augur::bench::ModelBenchOptions options;
  options.folder = "deploy/models/demo-9m";
  options.prompts = {1024, 4096, 8192};
  options.batches = {1, 4, 16, 32};
  options.contexts = {256, 1024, 4096};

  augur::bench::AttentionBenchOptions attention_options;
  std::string attention_backend = kAttentionBackend;

  CLI::App* matmul = app.add_subcommand("matmul", "matrix products by shape");
  CLI::App* prefill = app.add_subcommand("prefill", "prompts in chunks");
  CLI::App* decode = app.add_subcommand("decode", "batches of decoding sequences");
  CLI::App* attention =
      app.add_subcommand("attention", "decode and prefill attention over paged KV, a GPU's sizes");
  CLI::App* all = app.add_subcommand("all", "everything");
  for (CLI::App* command : {matmul, all})
    command->add_option("--rows", rows, "rows of x")->delimiter(',');
  for (CLI::App* command : {prefill, decode, all}) {
    command->add_option("--model", options.folder, "model folder");
    command->add_option("--chunk", options.chunk, "rows of a prefill step");
  }
  for (CLI::App* command : {prefill, all}) {
    command->add_option("--prompts", options.prompts, "prompt lengths")->delimiter(',');
  }
  for (CLI::App* command : {decode, all}) {
    command->add_option("--batches", options.batches, "batch sizes, 1 first")->delimiter(',');
    command->add_option("--contexts", options.contexts, "tokens behind each sequence")
        ->delimiter(',');
  }
  attention->add_option("--on", attention_backend, "backend")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  attention->add_option("--batches", attention_options.batches, "decoding rows")->delimiter(',');
  attention->add_option("--contexts", attention_options.contexts, "tokens behind each row")
      ->delimiter(',');
  attention->add_option("--prompts", attention_options.prompts, "prompt lengths")->delimiter(',');
  attention->add_option("--chunk", attention_options.chunk, "rows of a prefill call");
  CLI11_PARSE(app, argc, argv);

  if (*attention) return RunAttention(attention_backend, context, attention_options) ? 0 : 2;
  const std::unique_ptr<augur::kernels::Backend> backend =
      augur::kernels::MakeCpuBackend({.num_threads = context.threads});
  context.backend = backend->Describe();
  if (*matmul || *all) augur::bench::RunMatmulBench(backend.get(), context, rows);
  if ((*prefill || *all) && !augur::bench::RunPrefillBench(backend.get(), context, options))
    return 2;
  if ((*decode || *all) && !augur::bench::RunDecodeBench(backend.get(), context, options)) return 2;
  return 0;
}
