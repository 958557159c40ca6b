#include "engine/training/forecast_training.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/observed_prompt.h"
#include "engine/model/transformer_runner.h"
#include "engine/training/forecast_loss.h"
#include "kernels/kv_page.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

// Which rows of a held-out sequence are compared is the same in every run of a seed.
constexpr uint64_t kHeldOut = uint64_t{1} << 63;

double MeanOver(const std::vector<LayerTally>& layers, double (LayerTally::*of)() const) {
  double sum = 0;
  for (const LayerTally& layer : layers) sum += (layer.*of)();
  return layers.empty() ? 0 : sum / static_cast<double>(layers.size());
}

absl::Status CheckLength(int length, const kernels::SelectionBudget& budget) {
  if (FreeBlocksAt(length - 1, budget).is_choice()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--length: expected more than ", budget.top_k * kernels::kBlockTokens,
                   " tokens (top_k_blocks ", budget.top_k, " of ", kernels::kBlockTokens,
                   "), or there is nothing to choose, found ", length));
}

}  // namespace

double TrainingReport::mean_loss() const { return MeanOver(layers, &LayerTally::mean_loss); }
double TrainingReport::mean_recall() const { return MeanOver(layers, &LayerTally::mean_recall); }

ForecastTraining::ForecastTraining(const ForecastTrainingOptions& options)
    : options_(options), pool_(options.threads) {}

absl::StatusOr<std::unique_ptr<ForecastTraining>> ForecastTraining::Create(
    const ForecastTrainingOptions& options) {
  std::unique_ptr<ForecastTraining> training(new ForecastTraining(options));
  AUGUR_RETURN_IF_ERROR(training->Load());
  AUGUR_RETURN_IF_ERROR(training->ReadData());
  AUGUR_RETURN_IF_ERROR(training->BeginState());
  return training;
}

absl::Status ForecastTraining::Load() {
  AUGUR_ASSIGN_OR_RETURN(config_, LoadModelConfig(options_.model));
  if (config_.num_layers < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.model,
                     "/config.json: Forecast heads need a model of at least 2 "
                     "layers (num_hidden_layers), found ",
                     config_.num_layers));
  }
  AUGUR_ASSIGN_OR_RETURN(const ResolvedAttention attention,
                         ResolveAttention(options_.budget, config_.sparse));
  budget_ = attention.choice.budget;
  AUGUR_RETURN_IF_ERROR(CheckLength(options_.length, budget_));
  backend_ = kernels::MakeCpuBackend({.num_threads = options_.threads});
  AUGUR_ASSIGN_OR_RETURN(model_,
                         LoadObservedModel(options_.model, options_.length, options_.threads,
                                           options_.kv_dtype, backend_.get(), &clock_));
  const TransformerLayers& layers =
      static_cast<const TransformerRunner*>(model_->runner.get())->layers();
  const RopeAngles& rope = layers.rope();
  const int variant = RopeVariantOf(model_->info.short_rope_context, options_.length);
  const size_t first_angle = size_t(rope.first[variant]) * (config_.head_dim / 2);
  ForecastPassOptions pass{.budget = budget_,
                           .has_fine_teacher = options_.has_fine_teacher,
                           .row_stride = options_.row_stride,
                           .max_tokens = options_.length,
                           .cos = rope.cos + first_angle,
                           .sin = rope.sin + first_angle};
  if (options_.has_exact_alignment) pass.alignment = {.before = 0, .tokens = 31};
  pass_ = std::make_unique<ForecastPass>(config_, pass, &pool_);
  gradients_ = ZeroMatrices(config_);
  return absl::OkStatus();
}

absl::Status ForecastTraining::ReadData() {
  const TokenId separator = config_.eos_token_ids.empty() ? -1 : config_.eos_token_ids.front();
  AUGUR_ASSIGN_OR_RETURN(
      text_, TrainingText::Read(options_.data, *model_->tokenizer, separator, options_.length,
                                options_.documents));
  const int count = text_->num_sequences() - options_.held_out;
  if (count < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is too short: expected at least ", options_.held_out + 1,
                     " sequences of ", options_.length, " tokens (--held-out ", options_.held_out,
                     " and one to train on), found ", text_->num_sequences()));
  }
  order_.emplace(count, options_.seed);
  return absl::OkStatus();
}

std::map<std::string, std::string> ForecastTraining::Settings() const {
  const AdamWOptions& adamw = options_.optimizer;
  return {{"model", model_->info.fingerprint},
          {"text", absl::StrCat(absl::Hex(text_->Fingerprint()))},
          {"length", absl::StrCat(options_.length)},
          {"batch", absl::StrCat(options_.batch)},
          {"held_out", absl::StrCat(options_.held_out)},
          {"row_stride", absl::StrCat(options_.row_stride)},
          {"seed", absl::StrCat(options_.seed)},
          {"budget", absl::StrCat(budget_.top_k, "/", budget_.init, "/", budget_.local)},
          {"teacher", absl::StrCat(options_.has_fine_teacher ? "fine" : "coarse", "/",
                                   options_.has_exact_alignment ? "exact" : "released")},
          {"route", options_.is_routed_sparse ? "sparse" : "dense"},
          {"adamw", absl::StrCat(adamw.learning_rate, "/", adamw.warmup_steps, "/", adamw.beta1,
                                 "/", adamw.beta2, "/", adamw.epsilon, "/", adamw.weight_decay, "/",
                                 adamw.clip_norm)}};
}

absl::Status ForecastTraining::BeginState() {
  if (options_.resume) {
    AUGUR_ASSIGN_OR_RETURN(state_, ReadTrainingState(options_.out + ".state", config_, Settings()));
    return absl::OkStatus();
  }
  state_.heads = RandomMatrices(config_, options_.seed);
  state_.optimizer = {.steps = 0, .first = ZeroMatrices(config_), .second = ZeroMatrices(config_)};
  state_.settings = Settings();
  // A folder that is not there or a full disk is known before hours of work.
  return Save();
}

absl::Status ForecastTraining::Save() {
  AUGUR_RETURN_IF_ERROR(WriteTrainingState(options_.out + ".state", config_, state_));
  return WriteForecastHeads(options_.out, config_, state_.heads, model_->info.dtype);
}

void ForecastTraining::RunSequence(std::span<const TokenId> tokens, uint64_t seed,
                                   ForecastMatrices* gradients, std::vector<LayerTally>* tallies) {
  AttentionChoice choice{.budget = budget_};
  if (options_.is_routed_sparse) choice.prefill = AttentionPolicy::kSparse;
  pass_->BeginSequence(static_cast<int>(tokens.size()), seed, &state_.heads, gradients);
  ObservePrompt(tokens, choice, &*model_, pass_.get(),
                [&](int first, int rows) { pass_->BeginChunk(first, rows); });
  tallies->resize(config_.num_layers);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    (*tallies)[layer].Add(pass_->tallies()[layer]);
  }
}

void ForecastTraining::Step(const OnTrainingReport& report) {
  const int64_t began_ns = clock_.NowNs();
  for (std::vector<float>& layer : gradients_.layers) std::fill(layer.begin(), layer.end(), 0.0f);
  TrainingReport of_step{.steps = options_.steps};
  for (int i = 0; i < options_.batch; ++i) {
    const int64_t at = state_.optimizer.steps * options_.batch + i;
    RunSequence(text_->sequence(order_->At(at)), options_.seed + static_cast<uint64_t>(at),
                &gradients_, &of_step.layers);
  }
  // The loss of a layer is the mean over its rows.
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const auto rows = static_cast<float>(std::max<int64_t>(of_step.layers[layer].rows, 1));
    for (float& value : gradients_.layers[layer]) value /= rows;
  }
  of_step.gradient_norm =
      StepAdamW(options_.optimizer, gradients_, &state_.optimizer, &state_.heads);
  of_step.step = state_.optimizer.steps;
  const double seconds = static_cast<double>(clock_.NowNs() - began_ns) / memory::kNsPerSecond;
  of_step.tokens_per_second = double{1} * options_.batch * options_.length / seconds;
  report(of_step);
}

void ForecastTraining::Measure(const OnTrainingReport& report) {
  if (options_.held_out == 0) return;
  TrainingReport held_out{
      .step = state_.optimizer.steps, .steps = options_.steps, .is_held_out = true};
  const int first = text_->num_sequences() - options_.held_out;
  for (int i = first; i < text_->num_sequences(); ++i) {
    RunSequence(text_->sequence(i), kHeldOut + static_cast<uint64_t>(i), nullptr, &held_out.layers);
  }
  report(held_out);
}

absl::Status ForecastTraining::Run(const OnTrainingReport& report) {
  const auto is_stopped = [&] { return options_.stop != nullptr && options_.stop->load(); };
  if (state_.optimizer.steps == 0) Measure(report);
  while (state_.optimizer.steps < options_.steps && !is_stopped()) {
    Step(report);
    const int64_t steps = state_.optimizer.steps;
    if (steps == options_.steps || steps % options_.measure_every == 0) Measure(report);
    if (steps % options_.save_every == 0) AUGUR_RETURN_IF_ERROR(Save());
  }
  return Save();
}

}  // namespace augur::engine
