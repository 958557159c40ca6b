#include "tests/bench/training_bench.h"

#include <cstdio>
#include <memory>

#include "engine/model/observed_prompt.h"
#include "engine/training/adamw.h"
#include "engine/training/device_forecast_pass.h"
#include "memory/base/clock.h"
#include "memory/base/status_macros.h"

namespace augur::bench {
namespace {

using engine::DeviceForecastPass;
using engine::TrainingPart;

constexpr int kRecipeSteps = 2000;  // SparDA Table 5
constexpr int kRecipeBatch = 32;

// A model, heads, their optimizer and a pass for sequences of one length.
class TrainingCase {
 public:
  static absl::StatusOr<std::unique_ptr<TrainingCase>> Create(kernels::Backend* backend,
                                                              const TrainingBenchOptions& options,
                                                              int length, int threads) {
    auto one = std::make_unique<TrainingCase>();
    const int64_t free_before = backend->FreeBytes();
    AUGUR_ASSIGN_OR_RETURN(one->config, options.random_weights.empty()
                                            ? engine::LoadModelConfig(options.folder)
                                            : engine::LoadModelConfigFile(options.random_weights));
    engine::AttentionSettings attention;
    attention.top_k_blocks = options.top_k;
    attention.init_blocks = options.init;
    attention.local_blocks = options.local;
    AUGUR_ASSIGN_OR_RETURN(one->model,
                           engine::LoadObservedModel({.folder = options.folder,
                                                      .random_weights = options.random_weights,
                                                      .tokens = length,
                                                      .threads = threads,
                                                      .attention = attention},
                                                     backend, &one->clock));
    const engine::RopeAngles& rope = one->model->layers().rope();
    const int variant = engine::RopeVariantOf(one->model->info.short_rope_context, length);
    const size_t angle = size_t(rope.first[variant]) * (one->config.head_dim / 2);
    AUGUR_ASSIGN_OR_RETURN(
        one->pass,
        DeviceForecastPass::Create(
            backend, one->config,
            {.budget = {.top_k = options.top_k, .init = options.init, .local = options.local},
             .row_stride = options.row_stride,
             .max_tokens = length,
             .cos = rope.cos + angle,
             .sin = rope.sin + angle},
            one->model->chunk_tokens, /*timed=*/true));
    one->heads = engine::RandomMatrices(one->config, 1);
    one->gradients = engine::ZeroMatrices(one->config);
    one->state = {.first = one->gradients, .second = one->gradients};
    one->pass->SetHeads(one->heads);
    one->device_bytes = free_before - backend->FreeBytes();
    for (int t = 0; t < length; ++t) {
      one->tokens.push_back(3 + (t * 7 + t / 64 * 11) % (one->config.vocab_size - 3));
    }
    return one;
  }

  // Mean loss over layers.
  double RunSequence(uint64_t seed) {
    pass->BeginSequence(static_cast<int>(tokens.size()), seed, /*with_gradients=*/true);
    const auto begin = [&](int first, int rows) { pass->BeginChunk(first, rows); };
    if (model->on_device) {
      ObservePromptOnDevice(tokens, {}, &*model, pass.get(), begin);
    } else {
      ObservePrompt(tokens, {}, &*model, pass.get(), begin);
    }
    double loss = 0;
    for (const engine::LayerTally& layer : pass->EndSequence()) loss += layer.mean_loss();
    return loss / config.num_layers;
  }

  void StepOptimizer() {
    pass->TakeGradients(&gradients);
    StepAdamW({}, gradients, &state, &heads);
    pass->SetHeads(heads);
  }

  double Seconds(TrainingPart part) const { return pass->seconds(part); }

  memory::SteadyClock clock;
  engine::ModelConfig config;
  std::optional<engine::ObservedModel> model;
  std::unique_ptr<DeviceForecastPass> pass;
  engine::ForecastMatrices heads, gradients;
  engine::AdamWState state;
  int64_t device_bytes = 0;
  std::vector<int32_t> tokens;
};

void MeasureCase(const BenchContext& context, const TrainingBenchOptions& options, int length,
                 TrainingCase* one) {
  one->RunSequence(0);
  const double optimizer = BestSeconds(1, [&] { one->StepOptimizer(); });
  double before[engine::kTrainingParts], parts[engine::kTrainingParts];
  constexpr TrainingPart kParts[] = {TrainingPart::kBackbone, TrainingPart::kTeacher,
                                     TrainingPart::kStudent};
  for (int i = 0; i < engine::kTrainingParts; ++i) before[i] = one->Seconds(kParts[i]);
  double loss = 0;
  const double seconds = BestSeconds(1,
                                     [&] {
                                       for (int i = 0; i < options.sequences; ++i)
                                         loss = one->RunSequence(i + 1);
                                     }) /
                         options.sequences;
  for (int i = 0; i < engine::kTrainingParts; ++i) {
    parts[i] = (one->Seconds(kParts[i]) - before[i]) / options.sequences;
  }
  const double with_optimizer = seconds + optimizer / kRecipeBatch;
  BenchRecord(context, "training")
      .Add("model", options.random_weights.empty() ? options.folder : options.random_weights)
      .Add("tokens", int64_t{length})
      .Add("row_stride", int64_t{options.row_stride})
      .Add("tokens_per_s", length / with_optimizer)
      .Add("sequence_ms", seconds * 1e3)
      .Add("backbone_ms", parts[0] * 1e3)
      .Add("teacher_ms", parts[1] * 1e3)
      .Add("student_ms", parts[2] * 1e3)
      .Add("optimizer_ms_a_step", optimizer * 1e3)
      .Add("device_bytes", one->device_bytes)
      .Add("pass_bytes", one->pass->bytes())
      .Add("loss", loss)
      .Add("recipe_gpu_hours", kRecipeSteps * kRecipeBatch * with_optimizer / 3600)
      .Print();
}

}  // namespace

bool RunTrainingBench(kernels::Backend* backend, const BenchContext& context,
                      const TrainingBenchOptions& options) {
  for (const int length : options.lengths) {
    auto one = TrainingCase::Create(backend, options, length, context.threads);
    if (!one.ok()) {
      const std::string message(one.status().message());
      std::fprintf(stderr, "augur-bench: %s\n", message.c_str());
      return false;
    }
    MeasureCase(context, options, length, one->get());
  }
  return true;
}

}  // namespace augur::bench
