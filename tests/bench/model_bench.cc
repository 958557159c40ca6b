#include "tests/bench/model_bench.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "engine/batcher.h"
#include "engine/model/checkpoint.h"
#include "engine/model/model_config.h"
#include "engine/model/transformer_runner.h"
#include "kernels/cpu/fma_peak.h"

#include "kernels/check.h"

namespace augur::bench {
namespace {

using engine::StepSegment;

constexpr int kDecodeSteps = 8;

// Weights that every row of a step is multiplied with, the head apart.
int64_t LayerWeightsOf(const engine::ModelConfig& config) {
  const int64_t attention =
      int64_t{config.hidden_size} * (2 * config.q_width() + 2 * config.kv_width());
  return config.num_layers *
         (attention + int64_t{3} * config.hidden_size * config.intermediate_size);
}

// A model with a pool for `sequences` of `tokens` each, all on the device and dense.
class BenchModel {
 public:
  static std::unique_ptr<BenchModel> Load(kernels::Backend* backend, const std::string& folder,
                                          int max_rows, int sequences, int tokens) {
    auto model = std::make_unique<BenchModel>();
    const auto config = engine::LoadModelConfig(folder);
    if (!config.ok()) return Refuse(config.status());
    model->config = *config;
    const auto checkpoint = engine::Checkpoint::Open(folder);
    if (!checkpoint.ok()) return Refuse(checkpoint.status());
    auto weights = engine::LoadTransformerWeights(**checkpoint, model->config, backend);
    if (!weights.ok()) return Refuse(weights.status());
    model->dtype = weights->dtype;
    const int blocks_each = engine::BlocksFor(tokens);
    auto kv = memory::KvMemory::Create(
        backend, {.layout = memory::MakeKvLayout(
                      model->config.num_layers, model->config.num_kv_heads, model->config.head_dim,
                      kernels::BytesOf(model->dtype), model->config.has_eviction_heads),
                  .num_frames = blocks_each * sequences,
                  .num_host_blocks = 0,
                  .num_staging_pages = 0,
                  .copies = {},
                  .page_check = 0});
    if (!kv.ok()) return Refuse(kv.status());
    model->kv = *std::move(kv);
    auto runner = engine::TransformerRunner::Create(backend, model->config, *std::move(weights),
                                                    {.max_rows = max_rows,
                                                     .max_segments = sequences,
                                                     .max_context = tokens,
                                                     .kv_dtype = model->dtype},
                                                    model->kv.get(), &model->clock);
    if (!runner.ok()) return Refuse(runner.status());
    model->runner = *std::move(runner);
    for (int i = 0; i < sequences; ++i) {
      AUGUR_CHECK(model->kv->store()->Open({.id = static_cast<memory::SequenceId>(i),
                                            .demand = {},
                                            .keys = {},
                                            .hits = 0,
                                            .blocks = blocks_each,
                                            .most_blocks = blocks_each}));
    }
    return model;
  }

  // Rows [first, first + count) of a sequence whose tokens repeat a pattern.
  void AddRows(int sequence, int first, int count, bool wants_token) {
    StepSegment segment;
    segment.rows = {.first_row = static_cast<int>(ids_.size()),
                    .num_rows = count,
                    .first_position = first};
    segment.kv = &kv->store()->sequence(sequence);
    segment.attention = &dense;
    segment.prompt_tokens = first + count;
    segment.wants_token = wants_token;
    segment.sampling.temperature = 0;
    segments_.push_back(segment);
    for (int i = 0; i < count; ++i) ids_.push_back(3 + (first + i) * 7 % (config.vocab_size - 3));
  }

  void Run() {
    runner->Run({.token_ids = ids_, .segments = segments_}, &outputs_);
    ids_.clear();
    segments_.clear();
  }

  void Prefill(int sequence, int tokens, int chunk) {
    for (int first = 0; first < tokens; first += chunk) {
      const int count = std::min(chunk, tokens - first);
      AddRows(sequence, first, count, first + count == tokens);
      Run();
    }
  }

  engine::ModelConfig config;
  kernels::DType dtype = kernels::DType::kF32;
  const engine::AttentionChoice dense;
  const memory::SteadyClock clock;
  std::unique_ptr<memory::KvMemory> kv;
  std::unique_ptr<engine::TransformerRunner> runner;

 private:
  static std::unique_ptr<BenchModel> Refuse(const absl::Status& status) {
    std::fprintf(stderr, "augur-bench: %s\n", std::string(status.message()).c_str());
    return nullptr;
  }

  std::vector<int32_t> ids_;
  std::vector<StepSegment> segments_;
  engine::StepOutputs outputs_;
};

// Multiply-adds counted as two: linears for every token, attention over what lies before it, one
// head row.
double PrefillFlops(const engine::ModelConfig& config, int tokens) {
  const double pairs = 0.5 * tokens * (tokens + 1.0);
  const double linear = 2.0 * static_cast<double>(LayerWeightsOf(config)) * tokens;
  const double attention = 4.0 * config.num_layers * config.q_width() * pairs;
  return linear + attention + 2.0 * config.hidden_size * config.vocab_size;
}

}  // namespace

bool RunPrefillBench(kernels::Backend* backend, const BenchContext& context,
                     const ModelBenchOptions& options) {
  const double peak = kernels::MeasureFmaPeakGflops(context.threads, kernels::CpuIsa::kAuto);
  const int longest = *std::max_element(options.prompts.begin(), options.prompts.end());
  const auto model = BenchModel::Load(backend, options.folder, options.chunk, 1, longest);
  if (model == nullptr) return false;
  for (const int tokens : options.prompts) {
    const double seconds =
        BestSeconds(context.repeats, [&] { model->Prefill(0, tokens, options.chunk); });
    const double gflops = PrefillFlops(model->config, tokens) / seconds / 1e9;
    BenchRecord(context, "prefill")
        .Add("tokens", int64_t{tokens})
        .Add("chunk", int64_t{options.chunk})
        .Add("ms", seconds * 1e3)
        .Add("tokens_per_s", tokens / seconds)
        .Add("gflops", gflops)
        .Add("of_peak", gflops / peak)
        .Print();
  }
  return true;
}

bool RunDecodeBench(kernels::Backend* backend, const BenchContext& context,
                    const ModelBenchOptions& options) {
  const int most = *std::max_element(options.batches.begin(), options.batches.end());
  const int longest = *std::max_element(options.contexts.begin(), options.contexts.end());
  const auto model = BenchModel::Load(backend, options.folder, std::max(options.chunk, most), most,
                                      longest + kDecodeSteps);
  if (model == nullptr) return false;
  const engine::ModelConfig& config = model->config;
  const double element = static_cast<double>(kernels::BytesOf(model->dtype));
  const double weight_bytes =
      element *
      static_cast<double>(LayerWeightsOf(config) + int64_t{config.hidden_size} * config.vocab_size);
  std::map<int, double> alone;  // tokens/s at batch 1, by context
  for (const int tokens : options.contexts) {
    for (int sequence = 0; sequence < most; ++sequence)
      model->Prefill(sequence, tokens, options.chunk);
    for (const int batch : options.batches) {
      const double seconds = BestSeconds(context.repeats,
                                         [&] {
                                           for (int step = 0; step < kDecodeSteps; ++step) {
                                             for (int s = 0; s < batch; ++s)
                                               model->AddRows(s, tokens + step, 1, true);
                                             model->Run();
                                           }
                                         }) /
                             kDecodeSteps;
      const double kv_bytes = element * 2.0 * config.num_layers * config.kv_width() *
                              (tokens + 0.5 * kDecodeSteps) * batch;
      const double bytes = weight_bytes + kv_bytes;
      const double bandwidth =
          kernels::MeasureReadBandwidthGBps(context.threads, static_cast<size_t>(bytes));
      const double bound_ms = bytes / bandwidth / 1e6;
      if (batch == 1) alone[tokens] = 1 / seconds;
      BenchRecord record(context, "decode");
      record.Add("context", int64_t{tokens})
          .Add("batch", int64_t{batch})
          .Add("ms_per_step", seconds * 1e3)
          .Add("tokens_per_s", batch / seconds)
          .Add("read_mb", bytes / 1e6)
          .Add("read_gb_per_s", bandwidth)
          .Add("bytes_bound_ms", bound_ms)
          .Add("times_bound", seconds * 1e3 / bound_ms);
      if (alone.contains(tokens)) record.Add("times_batch_1", batch / seconds / alone[tokens]);
      record.Print();
    }
  }
  return true;
}

}  // namespace augur::bench
