// augur-bench: what the kernels and whole steps do on this machine, beside what the machine can do.
// One JSON line a case on stdout.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/attention_bench.h"
#include "tests/bench/bench_backend.h"
#include "tests/bench/bench_record.h"
#include "tests/bench/linear_bench.h"
#include "tests/bench/matmul_bench.h"
#include "tests/bench/model_bench.h"
#include "tests/bench/reuse_bench.h"
#include "tests/bench/tiers_bench.h"
#include "tests/bench/training_bench.h"
#include "tests/bench/transfer_bench.h"
#include "tests/bench/value_bench.h"

namespace augur::bench {
namespace {

constexpr int kExitBadCase = 2;
constexpr int kExitNoDevice = 3;

struct Options {
  BenchContext context;
  BenchBackendOptions backend;
  std::vector<int> rows = {1, 4, 16, 64, 512, 2048};
  ModelBenchOptions model{.folder = "deploy/models/demo-9m",
                          .random_weights = {},
                          .prompts = {1024, 4096, 8192},
                          .batches = {1, 4, 16, 32},
                          .contexts = {256, 1024, 4096}};
  AttentionBenchOptions attention;
  LinearBenchOptions linear;
  ReuseBenchOptions reuse;
  TiersBenchOptions tiers;
  TrainingBenchOptions training;
  TransferBenchOptions transfers;
  ValueBenchOptions values;
};

void AddValueOptions(CLI::App* command, ValueBenchOptions* options) {
  command->add_option("--model", options->folder, "model folder");
  command->add_option("--text", options->texts, "files that the prompt is made of")->required();
  command->add_option("--tokens", options->tokens, "of the prompt, at most");
  command->add_option("--steps", options->steps, "generated tokens");
  command->add_option("--rows", options->rows, "budgets of distinct rows")->delimiter(',');
}

void AddRowsOption(CLI::App* command, Options* options) {
  command->add_option("--rows", options->rows, "rows of x")->delimiter(',');
}

void AddLinearOptions(CLI::App* command, LinearBenchOptions* options) {
  command->add_option("--decode-rows", options->decode_rows, "rows of a decode step")
      ->delimiter(',');
  command->add_option("--prefill-rows", options->prefill_rows, "rows of a prompt's chunk")
      ->delimiter(',');
}

CLI::App* AddTrainingCommand(CLI::App* app, TrainingBenchOptions* options) {
  CLI::App* command = app->add_subcommand("training", "Forecast heads over a frozen model");
  command->add_option("--model", options->folder, "model folder");
  command->add_option("--random-weights", options->random_weights,
                      "instead: a config.json, filled with random weights");
  command->add_option("--lengths", options->lengths, "tokens of a sequence")->delimiter(',');
  command->add_option("--row-stride", options->row_stride, "compare one row of so many")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--top-k-blocks", options->top_k, "blocks of a choice");
  command->add_option("--init-blocks", options->init, "first blocks, always chosen");
  command->add_option("--local-blocks", options->local, "last blocks, always chosen");
  command->add_option("--sequences", options->sequences, "timed")->check(CLI::Range(1, 1000));
  return command;
}

void AddModelOptions(CLI::App* command, ModelBenchOptions* options, bool prefills, bool decodes) {
  command->add_option("--model", options->folder, "model folder");
  command->add_option("--random-weights", options->random_weights,
                      "instead: a config.json, filled with random weights");
  command->add_option("--chunk", options->chunk, "rows of a prefill step");
  if (prefills) {
    command->add_option("--prompts", options->prompts, "prompt lengths")->delimiter(',');
    command->add_option("--at-once", options->at_once, "prompts that share a step's rows")
        ->check(CLI::Range(1, 64));
    command->add_option("--policy", options->policy, "dense, sparse or forecast");
    command->add_option("--residency", options->residency, "device or tiered");
    command->add_option("--reuse", options->reuse,
                        "share of chosen blocks that stay; -1: by scores");
  }
  if (!decodes) return;
  command->add_option("--batches", options->batches, "batch sizes, 1 first")->delimiter(',');
  command->add_option("--contexts", options->contexts, "tokens behind each sequence")
      ->delimiter(',');
  command->add_flag("--synthetic-kv", options->synthetic_kv, "random KV instead of a prefill");
}

void AddAttentionOptions(CLI::App* command, AttentionBenchOptions* options) {
  command->add_option("--batches", options->batches, "decoding rows")->delimiter(',');
  command->add_option("--contexts", options->contexts, "tokens behind each row")->delimiter(',');
  command->add_option("--samples", options->samples, "draws of rows that sample their values")
      ->delimiter(',');
  command->add_option("--spreads", options->spreads, "factors of their scores")->delimiter(',');
  command->add_option("--estimators", options->estimators, "that draw them")
      ->delimiter(',')
      ->check(CLI::IsMember({"proportional", "flash", "shared"}));
  command->add_option("--prompts", options->prompts, "prompt lengths")->delimiter(',');
  command->add_option("--chunk", options->chunk, "rows of a prefill call");
  command->add_option("--sparse-contexts", options->sparse_contexts, "tokens before a sparse chunk")
      ->delimiter(',');
  command->add_option("--sparse-changes", options->sparse_changes, "blocks new to the next row")
      ->delimiter(',');
}

void AddSampledOptions(CLI::App* command, TiersBenchOptions* options) {
  command
      ->add_option("--values", options->values,
                   "exact, sampled or both: a run of all batches each, sampled ones from keys "
                   "whose scores are near normal (tests/bench/synthetic_keys.h)")
      ->delimiter(',');
  command->add_option("--samples", options->samples, "draws of a query head");
  command->add_option("--estimator", options->estimator, "that draws");
  command->add_option("--value-fetch", options->value_fetch, "auto, rows or whole");
  command->add_option("--near-spread", options->keys.near_spread,
                      "of scores in forced blocks, in nats: less draws more distinct rows");
  command->add_option(
      "--far-spread", options->keys.far_spread,
      "in blocks that scores choose: less than in forced ones leaves them less mass");
}

CLI::App* AddReuseCommand(CLI::App* app, ReuseBenchOptions* options) {
  CLI::App* command =
      app->add_subcommand("reuse", "which blocks successive tokens choose, on a CPU");
  command->add_option("--model", options->folder, "model folder");
  command->add_option("--forecast-heads", options->forecast_heads,
                      "file; unset: the folder's forecast.safetensors");
  command->add_option("--text", options->texts, "files: read as they stand, and around facts")
      ->required();
  command->add_option("--policies", options->policies, "sparse, forecast")->delimiter(',');
  command->add_option("--tasks", options->tasks, "of augur-eval")->delimiter(',');
  command->add_option("--length", options->length, "tokens of a sequence")
      ->check(CLI::Range(1024, 1 << 20));
  command->add_option("--steps", options->steps, "tokens of a sequence of text that count");
  command->add_option("--history", options->history, "tokens before the first that counts");
  command->add_option("--sequences", options->sequences, "of text, at most");
  command->add_option("--documents", options->documents, "of each task");
  command->add_option("--questions", options->questions, "of a document");
  command->add_option("--top-k-blocks", options->top_k_blocks, "0: the model's");
  command->add_option("--spare-slots", options->spares, "of a group, counted beside each other")
      ->delimiter(',');
  command->add_option("--out", options->out, "the law, for tiers --reuse-law");
  return command;
}

CLI::App* AddTiersCommand(CLI::App* app, TiersBenchOptions* options) {
  CLI::App* command = app->add_subcommand("tiers", "decode over a host pool");
  command->add_option("--random-weights", options->random_weights, "a config.json")->required();
  command->add_option("--batches", options->batches, "batch sizes")->delimiter(',');
  command->add_option("--context", options->context, "tokens behind each sequence");
  command->add_option("--steps", options->steps, "timed steps")->check(CLI::Range(1, 1500));
  command
      ->add_option("--reuse", options->reuse,
                   "shares of chosen blocks that stay; -1: by scores; natural: as measured")
      ->delimiter(',');
  command->add_option("--others", options->others, "new blocks: alike, or law, as measured");
  command->add_option("--reuse-law", options->reuse_law, "file of `augur-bench reuse --out`");
  command->add_option("--reuse-source", options->reuse_source, "of the law: text or tasks");
  command->add_option("--spare-slots", options->spare_slots, "of each group");
  command->add_option("--host-dtype", options->host_dtype, "of host pages: same or fp8");
  command->add_option("--copy-ctas", options->copy_ctas, "that fetch: numbers, or auto")
      ->delimiter(',');
  command->add_option("--copy-ctas-min", options->copy_ctas_min, "of auto")
      ->check(CLI::Range(1, 64));
  command->add_option("--copy-ctas-max", options->copy_ctas_max, "of auto")
      ->check(CLI::Range(1, 64));
  command->add_option("--window", options->window, "a record for so many steps, from the first");
  command
      ->add_option("--warm-ups", options->warm_ups,
                   "times that the last sequence is saved and comes back beside the others")
      ->check(CLI::Range(0, 8));
  command->add_option("--prefetch", options->prefetch, "0: fetch on need");
  command->add_option("--policy", options->policy, "dense, sparse, forecast or infinigen");
  command->add_option("--residency", options->residency, "tiered, device or auto");
  command->add_option("--device-gb", options->device_gb,
                      "as on a device of so much memory; 0: the whole device");
  AddSampledOptions(command, options);
  return command;
}

void AddBackendOptions(CLI::App* app, BenchBackendOptions* options) {
  app->add_option("--device", options->device, "cpu or cuda");
  app->add_option("--usual-decode-rows", options->decode_rows,
                  "that decode's products are chosen for: up to 16 a weight may be streamed");
  app->add_option("--product-sms", options->product_sms,
                  "that decode's products are planned for, beside copies on the others; 0: all");
  app->add_option("--attention-sms", options->attention_sms, "decode attention's CTAs; 0: all SMs");
  app->add_option("--graph-priorities", options->graph_priorities,
                  "in recorded steps: none, copies (above all else) or lanes (each its own)");
}

int Main(int argc, char** argv) {
  CLI::App app("Measures Augur's kernels and steps; prints JSON lines.");
  app.require_subcommand(1);
  Options options;
  BenchContext& context = options.context;
  context.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  app.add_option("--threads", context.threads, "compute threads")->check(CLI::Range(1, 256));
  AddBackendOptions(&app, &options.backend);
  app.add_option("--repeats", context.repeats, "runs of each case, the best one counts")
      ->check(CLI::Range(1, 1000));
  CLI::App* matmul = app.add_subcommand("matmul", "matrix products by shape, on the CPU");
  CLI::App* prefill = app.add_subcommand("prefill", "prompts in chunks");
  CLI::App* decode = app.add_subcommand("decode", "batches of decoding sequences");
  CLI::App* attention = app.add_subcommand("attention", "attention alone, at a GPU's sizes");
  CLI::App* linear = app.add_subcommand("linear", "matrix products of 8B models, on CUDA");
  CLI::App* ceilings = app.add_subcommand("ceilings", "what a CUDA device can do at best");
  CLI::App* transfers = AddTransferCommand(&app, &options.transfers);
  CLI::App* reuse = AddReuseCommand(&app, &options.reuse);
  CLI::App* tiers = AddTiersCommand(&app, &options.tiers);
  CLI::App* training = AddTrainingCommand(&app, &options.training);
  CLI::App* values = app.add_subcommand("values", "error of sampled attention on a model's values");
  CLI::App* all = app.add_subcommand("all", "matmul, prefill and decode");
  for (CLI::App* command : {matmul, all}) AddRowsOption(command, &options);
  AddModelOptions(prefill, &options.model, /*prefills=*/true, /*decodes=*/false);
  AddModelOptions(decode, &options.model, /*prefills=*/false, /*decodes=*/true);
  AddModelOptions(all, &options.model, /*prefills=*/true, /*decodes=*/true);
  AddAttentionOptions(attention, &options.attention);
  AddLinearOptions(linear, &options.linear);
  AddValueOptions(values, &options.values);
  CLI11_PARSE(app, argc, argv);

  if (*transfers) return RunTransferBench(context, options.transfers) ? 0 : kExitBadCase;
  options.backend.threads = context.threads;
  if (*linear || *ceilings) options.backend.device = "cuda";
  const std::unique_ptr<kernels::Backend> backend = MakeBenchBackend(options.backend);
  if (backend == nullptr) return kExitNoDevice;
  context.backend = backend->Describe();
  if (*reuse) return RunReuseBench(backend.get(), context, options.reuse) ? 0 : kExitBadCase;
  const Ceilings limits = CeilingsOf(backend.get(), context);
  if (*linear) {
    RunLinearBench(backend.get(), context, options.linear);
    return 0;
  }
  if (*ceilings) {
    RunCeilingsBench(backend.get(), context, limits);
    return 0;
  }
  if (*attention) {
    RunAttentionBench(backend.get(), context, options.attention,
                      limits.read_bytes_per_second(1 << 30));
    return 0;
  }
  if (*training) {
    return RunTrainingBench(backend.get(), context, options.training) ? 0 : kExitBadCase;
  }
  if (*values) return RunValueBench(backend.get(), context, options.values) ? 0 : kExitBadCase;
  if ((*matmul || *all) && !backend->IsDevice()) {
    RunMatmulBench(backend.get(), context, options.rows);
  }
  if (*tiers) {
    return RunTiersBench(backend.get(), context, options.tiers, limits) ? 0 : kExitBadCase;
  }
  bool good = true;
  if (*prefill || *all) good = RunPrefillBench(backend.get(), context, options.model, limits);
  if (good && (*decode || *all)) {
    good = RunDecodeBench(backend.get(), context, options.model, limits);
  }
  return good ? 0 : kExitBadCase;
}

}  // namespace
}  // namespace augur::bench

int main(int argc, char** argv) { return augur::bench::Main(argc, argv); }
