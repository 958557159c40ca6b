// augur-bench: what the kernels and whole steps do on this machine, beside what the machine can do.
// One JSON line a case on stdout.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/bench_backend.h"
#include "tests/bench/bench_record.h"
#include "tests/bench/linear_bench.h"
#include "tests/bench/matmul_bench.h"
#include "tests/bench/model_bench.h"
#include "tests/bench/transfer_bench.h"

int main(int argc, char** argv) {
  CLI::App app("Measures Augur's kernels and steps; prints JSON lines.");
  app.require_subcommand(1);
  augur::bench::BenchContext context;
  context.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  app.add_option("--threads", context.threads, "compute threads")->check(CLI::Range(1, 256));
  std::string device = "cpu";
  app.add_option("--device", device, "cpu or cuda");
  app.add_option("--repeats", context.repeats, "runs of each case, the best one counts")
      ->check(CLI::Range(1, 1000));

  std::vector<int> rows = {1, 4, 16, 64, 512, 2048};
  augur::bench::ModelBenchOptions options;
  options.folder = "deploy/models/demo-9m";
  options.prompts = {1024, 4096, 8192};
  options.batches = {1, 4, 16, 32};
  options.contexts = {256, 1024, 4096};

  CLI::App* matmul = app.add_subcommand("matmul", "matrix products by shape");
  CLI::App* prefill = app.add_subcommand("prefill", "prompts in chunks");
  CLI::App* decode = app.add_subcommand("decode", "batches of decoding sequences");
  CLI::App* linear = app.add_subcommand("linear", "matrix products of 8B models on the device");
  CLI::App* ceilings = app.add_subcommand("ceilings", "what the device can do at best");
  augur::bench::TransferBenchOptions transfer_options;
  CLI::App* transfers = augur::bench::AddTransferCommand(&app, &transfer_options);
  CLI::App* all = app.add_subcommand("all", "everything");
  for (CLI::App* command : {matmul, all})
    command->add_option("--rows", rows, "rows of x")->delimiter(',');
  for (CLI::App* command : {prefill, decode, all}) {
    command->add_option("--model", options.folder, "model folder");
    command->add_option("--random-weights", options.random_weights,
                        "instead: a config.json, filled with random weights");
    command->add_option("--chunk", options.chunk, "rows of a prefill step");
  }
  for (CLI::App* command : {prefill, all}) {
    command->add_option("--prompts", options.prompts, "prompt lengths")->delimiter(',');
  }
  for (CLI::App* command : {decode, all}) {
    command->add_option("--batches", options.batches, "batch sizes, 1 first")->delimiter(',');
    command->add_option("--contexts", options.contexts, "tokens behind each sequence")
        ->delimiter(',');
    command->add_flag("--synthetic-kv", options.synthetic_kv, "random KV instead of a prefill");
  }
  CLI11_PARSE(app, argc, argv);

  // These are about a device alone, whatever --device says.
  if (*linear) return augur::bench::RunLinearBench(context) ? 0 : 2;
  if (*ceilings) return augur::bench::RunCeilingsBench(context) ? 0 : 2;
  if (*transfers) return augur::bench::RunTransferBench(context, transfer_options) ? 0 : 2;
  const std::unique_ptr<augur::kernels::Backend> backend =
      augur::bench::MakeBenchBackend(device, context.threads);
  if (backend == nullptr) return 3;
  context.backend = backend->Describe();
  if (*matmul || *all) augur::bench::RunMatmulBench(backend.get(), context, rows);
  const augur::bench::Ceilings limits = augur::bench::CeilingsOf(backend.get(), context);
  if ((*prefill || *all) &&
      !augur::bench::RunPrefillBench(backend.get(), context, options, limits)) {
    return 2;
  }
  if ((*decode || *all) &&
      !augur::bench::RunDecodeBench(backend.get(), context, options, limits)) {
    return 2;
  }
  return 0;
}
