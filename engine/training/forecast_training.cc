#include "engine/training/forecast_training.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#ifdef AUGUR_HAS_CUDA
#include "kernels/cuda/make_cuda_backend.h"
#endif
#include "kernels/kv_page.h"
#include "kernels/ops/forecast_loss.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

// Which rows of a held-out sequence are compared is the same in every run of a seed.
constexpr uint64_t kHeldOut = uint64_t{1} << 63;

absl::Status CheckServedOnDevice(const ForecastTrainingOptions& options) {
  if (options.route == TrainingRoute::kTeacher) {
    return absl::InvalidArgumentError(
        "--route: expected dense or sparse on a device, found teacher; --device cpu serves it");
  }
  if (options.kv_dtype == kernels::DType::kF32) {
    return absl::InvalidArgumentError(
        "--compute: expected bf16 on a device (its sums are float32), found fp32; --device cpu "
        "serves it");
  }
  return absl::OkStatus();
}

const char* NameOf(TrainingRoute route) {
  if (route == TrainingRoute::kSparse) return "sparse";
  return route == TrainingRoute::kTeacher ? "teacher" : "dense";
}

// A backend for cpu or cuda:N.
absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeTrainingBackend(
    const ForecastTrainingOptions& options) {
  if (options.device == "cpu") return kernels::MakeCpuBackend({.num_threads = options.threads});
  [[maybe_unused]] int device = 0;
  absl::string_view name = options.device;
  const bool is_cuda = name == "cuda" || (absl::ConsumePrefix(&name, "cuda:") &&
                                          absl::SimpleAtoi(name, &device) && device >= 0);
  if (!is_cuda) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: expected cpu, cuda or cuda:N, found ", options.device));
  }
  AUGUR_RETURN_IF_ERROR(CheckServedOnDevice(options));
#ifdef AUGUR_HAS_CUDA
  std::string error;
  auto backend = kernels::MakeCudaBackend({.device = device}, &error);
  if (backend != nullptr) return backend;
  return absl::FailedPreconditionError(absl::StrCat("--device ", options.device, ": ", error));
#else
  return absl::InvalidArgumentError(
      absl::StrCat("--device: this build has cpu alone, found ", options.device));
#endif
}

// A run without cooldown may be resumed for more steps than it was begun with.
std::string CooldownOf(const AdamWOptions& adamw) {
  if (adamw.cooldown_steps == 0) return "none";
  return absl::StrCat(adamw.cooldown_steps, " of ", adamw.total_steps, " steps");
}

double MeanOver(const std::vector<LayerTally>& layers, double (LayerTally::*of)() const) {
  double sum = 0;
  for (const LayerTally& layer : layers) sum += (layer.*of)();
  return layers.empty() ? 0 : sum / static_cast<double>(layers.size());
}

absl::Status CheckLength(int length, const kernels::SelectionBudget& budget) {
  if (kernels::FreeBlocksAt(length - 1, budget).is_choice()) return absl::OkStatus();
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
  AUGUR_ASSIGN_OR_RETURN(backend_, MakeTrainingBackend(options_));
  std::optional<kernels::DType> kv_dtype = options_.kv_dtype;
  if (!kv_dtype.has_value() && !backend_->IsDevice()) kv_dtype = kernels::DType::kF32;
  AUGUR_ASSIGN_OR_RETURN(model_, LoadObservedModel({.folder = options_.model,
                                                    .tokens = options_.length,
                                                    .threads = options_.threads,
                                                    .kv_dtype = kv_dtype,
                                                    .attention = options_.budget,
                                                    .as_device = options_.by_training_ops},
                                                   backend_.get(), &clock_));
  gradients_ = ZeroMatrices(config_);
  return CreatePass();
}

absl::Status ForecastTraining::CreatePass() {
  const RopeAngles& rope = model_->layers().rope();
  const int variant = RopeVariantOf(model_->info.short_rope_context, options_.length);
  const size_t first_angle = size_t(rope.first[variant]) * (config_.head_dim / 2);
  ForecastPassOptions pass{.budget = budget_,
                           .has_fine_teacher = options_.has_fine_teacher,
                           .routes_model = options_.route == TrainingRoute::kTeacher,
                           .row_stride = options_.row_stride,
                           .asked_row_stride = options_.asked_row_stride,
                           .max_tokens = options_.length,
                           .cos = rope.cos + first_angle,
                           .sin = rope.sin + first_angle};
  if (options_.has_exact_alignment) pass.alignment = {.before = 0, .tokens = 31};
  if (!backend_->IsDevice() && !options_.by_training_ops) {
    pass_ = std::make_unique<ForecastPass>(config_, pass, &pool_);
    return absl::OkStatus();
  }
  AUGUR_ASSIGN_OR_RETURN(device_pass_, DeviceForecastPass::Create(backend_.get(), config_, pass,
                                                                  model_->chunk_tokens));
  return absl::OkStatus();
}

absl::Status ForecastTraining::ReadData() {
  const TokenId separator = config_.eos_token_ids.empty() ? -1 : config_.eos_token_ids.front();
  AUGUR_ASSIGN_OR_RETURN(text_, TrainingText::Read(options_.data, *model_->tokenizer, separator,
                                                   options_.length, options_.documents));
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
          {"row_stride", absl::StrCat(options_.row_stride, "/", options_.asked_row_stride)},
          {"seed", absl::StrCat(options_.seed)},
          {"device", backend_->IsDevice() ? "cuda" : "cpu"},
          {"budget", absl::StrCat(budget_.top_k, "/", budget_.init, "/", budget_.local)},
          {"teacher", absl::StrCat(options_.has_fine_teacher ? "fine" : "coarse", "/",
                                   options_.has_exact_alignment ? "exact" : "released")},
          {"route", NameOf(options_.route)},
          {"adamw", absl::StrCat(adamw.learning_rate, "/", adamw.warmup_steps, "/", adamw.beta1,
                                 "/", adamw.beta2, "/", adamw.epsilon, "/", adamw.weight_decay, "/",
                                 adamw.clip_norm)},
          {"cooldown", CooldownOf(adamw)}};
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

void ForecastTraining::RunSequence(int index, uint64_t seed, ForecastMatrices* gradients,
                                   std::vector<LayerTally>* tallies) {
  AttentionChoice choice{.budget = budget_};
  // The teacher's choice takes the place of the model's own (ForecastPass::Route).
  if (options_.route != TrainingRoute::kDense) choice.prefill = AttentionPolicy::kSparse;
  const std::span<const TokenId> tokens = text_->sequence(index);
  const std::vector<TokenRange> asked = text_->asked(index);
  const int count = static_cast<int>(tokens.size());
  std::span<const LayerTally> of_sequence;
  if (device_pass_ != nullptr) {
    device_pass_->BeginSequence(count, seed, gradients != nullptr, asked);
    const auto begin = [&](int first, int rows) { device_pass_->BeginChunk(first, rows); };
    if (model_->on_device) {
      ObservePromptOnDevice(tokens, choice, &*model_, device_pass_.get(), begin);
    } else {
      ObservePrompt(tokens, choice, &*model_, device_pass_.get(), begin);
    }
    of_sequence = device_pass_->EndSequence();
  } else {
    pass_->BeginSequence(count, seed, &state_.heads, gradients, asked);
    ObservePrompt(tokens, choice, &*model_, pass_.get(),
                  [&](int first, int rows) { pass_->BeginChunk(first, rows); });
    of_sequence = pass_->tallies();
  }
  tallies->resize(config_.num_layers);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    (*tallies)[layer].Add(of_sequence[layer]);
  }
}

void ForecastTraining::Step(const OnTrainingReport& report) {
  const int64_t began_ns = clock_.NowNs();
  for (std::vector<float>& layer : gradients_.layers) std::fill(layer.begin(), layer.end(), 0.0f);
  TrainingReport of_step{.steps = options_.steps};
  for (int i = 0; i < options_.batch; ++i) {
    const int64_t at = state_.optimizer.steps * options_.batch + i;
    RunSequence(order_->At(at), options_.seed + static_cast<uint64_t>(at), &gradients_,
                &of_step.layers);
  }
  if (device_pass_ != nullptr) device_pass_->TakeGradients(&gradients_);
  // The loss of a layer is the mean over its rows.
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const auto rows = static_cast<float>(std::max<int64_t>(of_step.layers[layer].rows, 1));
    for (float& value : gradients_.layers[layer]) value /= rows;
  }
  of_step.gradient_norm =
      StepAdamW(options_.optimizer, gradients_, &state_.optimizer, &state_.heads);
  if (device_pass_ != nullptr) device_pass_->SetHeads(state_.heads);
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
    RunSequence(i, kHeldOut + static_cast<uint64_t>(i), nullptr, &held_out.layers);
  }
  report(held_out);
}

absl::Status ForecastTraining::Run(const OnTrainingReport& report) {
  const auto is_stopped = [&] { return options_.stop != nullptr && options_.stop->load(); };
  if (device_pass_ != nullptr) device_pass_->SetHeads(state_.heads);
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
