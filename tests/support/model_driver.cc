#include "tests/support/model_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "engine/batcher.h"
#include "engine/model/checkpoint.h"
#include "engine/model/forecast_heads.h"
#include "kernels/check.h"
#ifdef AUGUR_HAS_CUDA
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/make_cuda_backend.h"
#endif

namespace augur::tests {
namespace {

// Keys for PublishAll: the first tokens name the text, the tests' texts differ there.
std::vector<memory::BlockKey> KeysOf(const std::vector<int32_t>& tokens, int blocks) {
  std::vector<memory::BlockKey> keys;
  uint64_t hash = 1;
  for (int block = 0; block < blocks; ++block) {
    for (int i = 0; i < 64; ++i) hash = hash * 6364136223846793005u + tokens.at(64 * block + i) + 1;
    keys.push_back({hash, hash * 3});
  }
  return keys;
}

std::unique_ptr<kernels::Backend> MakeBackend(const ModelDriverOptions& options) {
  if (options.backend != DriverBackend::kCuda) {
    return kernels::MakeCpuBackend({.num_threads = options.threads});
  }
#ifdef AUGUR_HAS_CUDA
  std::string error;
  auto backend = kernels::MakeCudaBackend({}, &error);
  EXPECT_NE(backend, nullptr) << error;
  return backend;
#else
  AUGUR_CHECK(!"a build with CUDA");
  return nullptr;
#endif
}

}  // namespace

std::vector<DriverBackend> DriverBackendsHere() {
  std::vector<DriverBackend> backends = {DriverBackend::kCpu, DriverBackend::kCpuAsDevice};
#ifdef AUGUR_HAS_CUDA
  if (!kernels::FindCudaDevices().empty()) backends.push_back(DriverBackend::kCuda);
#endif
  return backends;
}

std::vector<DriverBackend> DeviceBackendsHere() {
  std::vector<DriverBackend> backends = DriverBackendsHere();
  std::erase(backends, DriverBackend::kCpu);
  return backends;
}

const char* NameOf(DriverBackend backend) {
  switch (backend) {
    case DriverBackend::kCpu:
      return "cpu";
    case DriverBackend::kCpuAsDevice:
      return "cpu_as_device";
    case DriverBackend::kCuda:
      return "cuda";
  }
  return "?";
}

std::string SourceFolder() {
  std::error_code error;
  return std::filesystem::is_directory(AUGUR_SOURCE_DIR, error) ? AUGUR_SOURCE_DIR : ".";
}

ModelDriver::ModelDriver(const ModelDriverOptions& options,
                         std::unique_ptr<memory::TransferEngine> transfers)
    : options_(options), backend_(MakeBackend(options)) {
  const auto config = engine::LoadModelConfig(options.folder);
  AUGUR_CHECK(config.ok());
  config_ = *config;
  const auto checkpoint = engine::Checkpoint::Open(options.folder);
  AUGUR_CHECK(checkpoint.ok());
  std::optional<engine::ForecastHeads> heads;
  if (!options.forecast_heads.empty()) {
    auto loaded = engine::LoadForecastHeads(options.forecast_heads, config_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    heads = *std::move(loaded);
  }
  auto weights = engine::LoadTransformerWeights(**checkpoint, config_, backend_.get(),
                                                heads ? &*heads : nullptr);
  AUGUR_CHECK(weights.ok());
  weights_dtype_ = weights->dtype;
  if (!options.infinigen_basis.empty()) {
    auto basis = engine::LoadInfinigenBasis(options.infinigen_basis, config_);
    AUGUR_CHECK(basis.ok());
    weights->infinigen = *std::move(basis);
  }
  const auto values = engine::ResolveValues(options.values, config_.num_layers,
                                            engine::ResidencyMode::kDevice, /*on_device=*/false);
  EXPECT_TRUE(values.ok()) << values.status();
  values_ = *values;
  memory::KvMemoryOptions plan;
  plan.layout = memory::MakeKvLayout(config_.num_layers, config_.num_kv_heads, config_.head_dim,
                                     kernels::BytesOf(options.kv_dtype), config_.has_eviction_heads,
                                     values_.needs_value_sums());
  if (options.host_fp8) plan.layout.fp8_of = options.kv_dtype;
  plan.num_frames = options.frames;
  plan.num_host_blocks = options.host_blocks;
  plan.num_staging_pages =
      memory::StagingPages(plan.layout, {.max_rows = options.max_rows,
                                         .max_segments = options.max_segments,
                                         .fetch_blocks = options.staging_blocks});
  plan.copies = options.copies;
  plan.page_check = options.page_check;
  if (options.backend != DriverBackend::kCpu && options.host_blocks > 0) {
    AUGUR_CHECK(transfers == nullptr);
    auto made = memory::DeviceTransfers::Create(backend_.get());
    AUGUR_CHECK(made.ok());
    device_transfers_ = made->get();
    transfers = *std::move(made);
    plan.page_check = 0;
    plan.num_staging_pages = 2 * config_.num_kv_heads * engine::BlocksFor(max_context());
  }
  auto kv = memory::KvMemory::Create(backend_.get(), plan, std::move(transfers));
  AUGUR_CHECK(kv.ok());
  kv_ = *std::move(kv);
  MakeRunner(*std::move(weights), heads.has_value());
}

void ModelDriver::MakeRunner(engine::TransformerWeights weights, bool has_forecast) {
  if (options_.backend != DriverBackend::kCpu) {
    auto runner = engine::DeviceRunner::Create(
        backend_.get(), config_, std::move(weights),
        {.max_rows = options_.max_rows,
         .max_segments = options_.max_segments,
         .max_context = max_context(),
         .kv_dtype = options_.kv_dtype,
         .run_ahead = options_.run_ahead,
         .decode_policy =
             has_forecast ? engine::AttentionPolicy::kForecast : engine::AttentionPolicy::kDense,
         .has_forecast = has_forecast,
         .max_top_k = options_.max_top_k,
         .max_slots = options_.host_blocks > 0 ? std::max(2, options_.num_slots) : 0,
         .prefetch = options_.prefetch,
         .copy_ctas = options_.copy_ctas,
         .values = values_,
         .ordering = options_.ordering},
        kv_.get(), device_transfers_, &clock_);
    AUGUR_CHECK(runner.ok());
    device_runner_ = *std::move(runner);
    return;
  }
  auto runner = engine::TransformerRunner::Create(backend_.get(), config_, std::move(weights),
                                                  {.max_rows = options_.max_rows,
                                                   .max_segments = options_.max_segments,
                                                   .max_context = max_context(),
                                                   .kv_dtype = options_.kv_dtype,
                                                   .has_forecast = has_forecast,
                                                   .max_top_k = options_.max_top_k,
                                                   .staging_blocks = options_.staging_blocks,
                                                   .prefetch = options_.prefetch,
                                                   .recall_every = options_.recall_every,
                                                   .values = values_},
                                                  kv_.get(), &clock_);
  AUGUR_CHECK(runner.ok());
  host_runner_ = *std::move(runner);
}

std::vector<float> ModelDriver::CopyLogits() {
  if (device_runner_ != nullptr) return device_runner_->CopyLogits();
  const std::span<const float> logits = host_runner_->logits();
  return {logits.begin(), logits.end()};
}

ModelDriver::Sequence ModelDriver::Start(std::vector<int32_t> tokens, int room,
                                         const engine::AttentionChoice& attention,
                                         memory::Residency residency, int hits, int slots) {
  Sequence sequence{.id = next_id_++,
                    .tokens = std::move(tokens),
                    .prompt_tokens = 0,
                    .computed = hits * 64,
                    .attention = attention};
  sequence.prompt_tokens = static_cast<int>(sequence.tokens.size());
  // As pool_fit's DemandOf: a prompt's last chunk of one row selects from slots, too.
  if (slots == 0) slots = attention.selects() ? options_.num_slots : 2;
  const std::vector<memory::BlockKey> keys = KeysOf(sequence.tokens, hits);
  const int64_t most_tokens = static_cast<int64_t>(sequence.tokens.size()) + room;
  sequence.rope_variant = engine::RopeVariantOf(config_.rope.short_context(), most_tokens);
  const int most = engine::BlocksFor(most_tokens);
  AUGUR_CHECK(kv_->store()->Open(
      {.id = sequence.id,
       .demand = {.residency = residency,
                  .selects = attention.selects(),
                  .num_slots = slots,
                  .partial_keys = attention.decode == engine::AttentionPolicy::kInfinigen},
       .keys = keys,
       .hits = hits,
       .blocks = most,
       .most_blocks = most}));
  kv_->store()->FinishWarmUp(sequence.id);
  return sequence;
}

int ModelDriver::max_context() const {
  return options_.max_context > 0 ? options_.max_context : config_.max_position_embeddings;
}

engine::ModelRunner* ModelDriver::runner() {
  if (device_runner_ != nullptr) return device_runner_.get();
  return host_runner_.get();
}

void ModelDriver::Finish(const Sequence& sequence) {
  runner()->Leave(&kv_->store()->sequence(sequence.id), /*keep=*/false);
  kv_->store()->Release(sequence.id);
  kv_->store()->WaitForClosing();
}

void ModelDriver::PublishAll(const Sequence& sequence) {
  const int blocks = sequence.computed / 64;
  const std::vector<memory::BlockKey> keys = KeysOf(sequence.tokens, blocks);
  for (int block = 0; block < blocks; ++block) {
    while (!kv_->store()->Publish(sequence.id, block, keys[block])) kv_->store()->Poll();
  }
}

void ModelDriver::Save(const Sequence& sequence) {
  runner()->Leave(&kv_->store()->sequence(sequence.id), /*keep=*/true);
  kv_->store()->Save(sequence.id, sequence.computed);
}

void ModelDriver::Resume(const Sequence& sequence) {
  AUGUR_CHECK(kv_->store()->Resume(sequence.id, options_.num_slots));
  kv_->store()->FinishWarmUp(sequence.id);
}

std::vector<std::vector<float>> ModelDriver::Step(const std::vector<Part>& parts) {
  std::vector<int32_t> ids;
  std::vector<engine::StepSegment> segments;
  kv_->store()->Poll();
  for (const Part& part : parts) {
    Sequence& sequence = *part.sequence;
    engine::StepSegment segment;
    segment.rows = {static_cast<int>(ids.size()), part.rows, sequence.computed};
    segment.kv = &kv_->store()->sequence(sequence.id);
    segment.attention = &sequence.attention;
    segment.prompt_tokens = sequence.prompt_tokens;
    segment.rope_variant = sequence.rope_variant;
    segment.wants_token = true;
    segment.tokens = sequence.tokens;
    segment.logprobs = sequence.logprobs;
    segment.prompt_logprobs = sequence.prompt_logprobs;
    const int generated = sequence.computed + part.rows - sequence.prompt_tokens;
    // Tokens drawn within the sequence, for their logits alone, are drawn as they are.
    const int known = static_cast<int>(sequence.tokens.size());
    const bool is_last = sequence.computed + part.rows == known;
    if (is_last && sequence.rules != nullptr && sequence.rules->ApplyAt(generated)) {
      segment.rules = sequence.rules;
    }
    segment.sampling.temperature = sequence.temperature;
    segment.sampling.seed = sequence.seed;
    segment.sampling.position = static_cast<uint32_t>(sequence.computed + part.rows);
    segments.push_back(segment);
    const auto first = sequence.tokens.begin() + sequence.computed;
    ids.insert(ids.end(), first, first + part.rows);
    sequence.computed += part.rows;
  }
  runner()->Run({.token_ids = ids, .segments = segments}, &outputs_);
  if (options_.run_ahead) return {};
  return InRows(CopyLogits());
}

std::vector<std::vector<float>> ModelDriver::Adjusted() {
  if (device_runner_ != nullptr) return InRows(device_runner_->CopyAdjusted());
  const std::span<const float> adjusted = host_runner_->adjusted();
  return InRows({adjusted.begin(), adjusted.end()});
}

std::vector<std::vector<float>> ModelDriver::InRows(const std::vector<float>& all) const {
  std::vector<std::vector<float>> rows;
  for (auto row = all.begin(); row != all.end(); row += config_.vocab_size) {
    rows.emplace_back(row, row + config_.vocab_size);
  }
  return rows;
}

std::vector<float> ModelDriver::Prefill(Sequence* sequence, int chunk) {
  std::vector<float> last;
  const int tokens = static_cast<int>(sequence->tokens.size());
  while (sequence->computed < tokens) {
    const int end = std::min(tokens, (sequence->computed / chunk + 1) * chunk);
    last = StepOne(sequence, end - sequence->computed);
  }
  return last;
}

std::vector<std::vector<float>> ModelDriver::Decode(Sequence* sequence, int steps) {
  std::vector<std::vector<float>> logits;
  for (int i = 0; i < steps; ++i) {
    sequence->tokens.push_back(outputs_.tokens[0]);
    logits.push_back(StepOne(sequence, 1));
  }
  return logits;
}

std::vector<std::vector<float>> ModelDriver::Complete(const std::vector<int32_t>& prompt, int chunk,
                                                      int decodes,
                                                      const engine::AttentionChoice& attention,
                                                      memory::Residency residency,
                                                      std::vector<int32_t>* greedy) {
  Sequence sequence = Start(prompt, decodes, attention, residency);
  std::vector<std::vector<float>> logits = {Prefill(&sequence, chunk)};
  for (std::vector<float>& row : Decode(&sequence, decodes)) logits.push_back(std::move(row));
  if (greedy != nullptr)
    greedy->assign(sequence.tokens.begin() + prompt.size(), sequence.tokens.end());
  Finish(sequence);
  return logits;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace augur::tests
