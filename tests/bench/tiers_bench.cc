#include "tests/bench/tiers_bench.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "engine/batcher.h"
#include "engine/engine_options.h"
#include "engine/kv_options.h"
#include "engine/model/device_runner.h"
#include "engine/model/model_config.h"
#include "engine/model/model_loader.h"
#include "kernels/check.h"
#include "tests/bench/bench_attention.h"
#include "tests/bench/bench_memory.h"
#include "tests/bench/reuse_bench.h"

namespace augur::bench {
namespace {

using engine::AttentionPolicy;

// Before the timed steps; with spare slots more, so that those are full, too, and with sampled
// values, so that those of the local window have come: a real one has never been without.
constexpr int kWarmSteps = 8;
constexpr int kSpareWarmSteps = 32;
// What a device of --device-gb keeps for embeddings, activations, workspaces and the runtime.
constexpr double kBufferBytes = 2.2e9;
constexpr int kPromptTokens = 1;
// Positions beyond the context: every batch goes on where the one before has stopped.
constexpr int kSpareBlocks = 32;

struct Bench {
  engine::ModelConfig config;
  memory::SteadyClock clock;
  engine::AttentionChoice attention;
  kernels::DrivenChoice driven;
  bool tiered = false;
  engine::LoadedModel model;
  kernels::DType dtype = kernels::DType::kBF16;
  bool samples = false;  // some run does
  int threads = 1;       // of the host

  int batch = 0;  // open sequences
  int lag = 0;    // tokens of the last sequence behind the others

  std::vector<int32_t> ids;
  std::vector<engine::StepSegment> segments;
  engine::StepOutputs outputs;
};

bool Refuse(const absl::Status& status) {
  std::fprintf(stderr, "augur-bench: %s\n", std::string(status.message()).c_str());
  return false;
}

int BlocksOf(const TiersBenchOptions& options) {
  return engine::BlocksFor(options.context) + kSpareBlocks;
}

// Of layers, head and Forecast heads, in 16 bits.
double WeightBytes(const TiersBenchOptions& options, const engine::ModelConfig& config) {
  const double forecast = options.policy == "forecast" ? config.num_layers * config.kv_width() : 0;
  return 2.0 * (static_cast<double>(LayerWeightsOf(config)) +
                config.hidden_size * (config.vocab_size + forecast));
}

// Nothing where it is neither a number of CTAs nor auto.
std::optional<engine::CopyQuotaOptions> QuotaOf(const TiersBenchOptions& options,
                                                const std::string& copy_ctas) {
  if (copy_ctas == "auto") {
    if (options.copy_ctas_min > options.copy_ctas_max) return std::nullopt;
    return engine::CopyQuotaOptions{options.copy_ctas_min, options.copy_ctas_max};
  }
  int ctas = 0;
  const char* const end = copy_ctas.data() + copy_ctas.size();
  const auto [stopped, error] = std::from_chars(copy_ctas.data(), end, ctas);
  if (error != std::errc() || stopped != end || ctas < 1 || ctas > 64) return std::nullopt;
  return engine::CopyQuotaOptions{ctas, ctas};
}

bool SetValues(const TiersBenchOptions& options, Bench* bench, engine::ValueSettings* values) {
  const auto estimator = engine::ValueEstimatorNamed(options.estimator);
  const auto fetch = engine::ValueFetchNamed(options.value_fetch);
  bool exact = false;
  for (const std::string& mode : options.values) {
    if (mode != "exact" && mode != "sampled") {
      return Refuse(absl::InvalidArgumentError("--values: expected exact or sampled"));
    }
    (mode == "sampled" ? bench->samples : exact) = true;
  }
  if (!bench->samples) return true;
  if (!estimator.has_value() || !fetch.has_value()) {
    return Refuse(absl::InvalidArgumentError("--estimator or --value-fetch: no such name"));
  }
  values->sampled = options.values.front() == "sampled";
  values->request_override = exact;
  values->estimator = *estimator;
  values->samples = {options.samples};
  values->fetch = *fetch;
  return true;
}

// Nothing, with a line on stderr, where re-use or law are none.
std::optional<kernels::DrivenChoice> DrivenOf(const TiersBenchOptions& options,
                                              const std::string& reuse) {
  const bool natural = reuse == "natural";
  kernels::DrivenChoice driven;
  if (natural || options.others == "law") {
    const auto law = ReadReuseLaw(options.reuse_law, options.reuse_source);
    if (!law.has_value()) return std::nullopt;
    driven = *law;
    if (natural) return driven;
  } else if (options.others != "alike") {
    Refuse(absl::InvalidArgumentError("--others: expected alike or law"));
    return std::nullopt;
  }
  const char* const end = reuse.data() + reuse.size();
  const auto [stopped, error] = std::from_chars(reuse.data(), end, driven.reuse);
  if (error == std::errc() && stopped == end && driven.reuse <= 1) return driven;
  Refuse(absl::InvalidArgumentError("--reuse: expected a share or natural"));
  return std::nullopt;
}

bool Load(kernels::Backend* backend, const TiersBenchOptions& options, Bench* bench) {
  const auto config = engine::LoadModelConfigFile(options.random_weights);
  if (!config.ok()) return Refuse(config.status());
  bench->config = *config;
  const auto policy = engine::PolicyNamed(options.policy);
  const auto residency = engine::ResidencyNamed(options.residency);
  if (!policy.has_value() || !residency.has_value()) {
    return Refuse(absl::InvalidArgumentError("--policy or --residency: no such name"));
  }
  bench->tiered = *residency == engine::ResidencyMode::kTiered;
  bench->attention = {.prefill = AttentionPolicy::kDense, .decode = *policy, .budget = kBudget};
  const int most = *std::max_element(options.batches.begin(), options.batches.end());
  if (options.host_dtype != "same" && options.host_dtype != "fp8") {
    return Refuse(absl::InvalidArgumentError("--host-dtype: expected same or fp8"));
  }
  engine::ValueSampling values;
  if (!SetValues(options, bench, &values)) return false;
  auto layout = memory::MakeKvLayout(config->num_layers, config->num_kv_heads, config->head_dim,
                                     kernels::BytesOf(bench->dtype), /*biases=*/false,
                                     values.needs_value_sums());
  engine::KvOptions kv;
  kv.host_fp8 = options.host_dtype == "fp8";
  if (kv.host_fp8) layout.fp8_of = bench->dtype;
  kv.residency = *residency;
  kv.host_bytes = *residency == engine::ResidencyMode::kDevice
                      ? 0
                      : static_cast<int64_t>(layout.host_block_bytes()) * most * BlocksOf(options);
  if (options.device_gb > 0) {
    const double pool = options.device_gb * 1e9 - WeightBytes(options, *config) - kBufferBytes;
    if (pool <= 0) return Refuse(absl::InvalidArgumentError("--device-gb: less than the weights"));
    kv.device_bytes = static_cast<int64_t>(pool);
  }
  kv.prefetch = options.prefetch;
  const auto driven = DrivenOf(options, options.reuse.front());
  if (!driven.has_value()) return false;
  bench->driven = *driven;
  kv.copy_ctas = *QuotaOf(options, options.copy_ctas.front());
  engine::AttentionSettings attention =
      SettingsOf(bench->attention.prefill, bench->attention.decode, options.spare_slots);
  attention.values = values;
  if (*policy == AttentionPolicy::kInfinigen) {
    attention.infinigen_basis = "random";
  } else {
    attention.forecast_heads = "random";
  }
  auto loaded = engine::LoadModel(backend, &bench->clock,
                                  {.folder = {},
                                   .random_weights = options.random_weights,
                                   .max_context = BlocksOf(options) * 64,
                                   .kv = kv,
                                   .attention = attention,
                                   .max_batch = most,
                                   .max_batched_tokens = most + 64,
                                   .driven = bench->driven});
  if (!loaded.ok()) return Refuse(loaded.status());
  bench->model = *std::move(loaded);
  return true;
}

// As if a prompt's sums had chosen the first columns of each basis.
void ChooseFirstChannels(const memory::KvLayout& layout, memory::SequenceKv* kv) {
  for (size_t i = 0; i < kv->channels.size(); ++i) {
    kv->channels[i] = static_cast<int32_t>(i % layout.num_channels());
  }
}

// Sequences that have computed `context` tokens, all of them on the host where they are tiered.
bool Open(const TiersBenchOptions& options, int batch, Bench* bench) {
  bench->batch = batch;
  bench->lag = 0;
  memory::KvStore* const store = bench->model.kv->store();
  for (int i = 1; i <= batch; ++i) {
    const auto id = static_cast<memory::SequenceId>(i);
    const memory::Residency residency =
        bench->tiered ? memory::Residency::kTiered : memory::Residency::kDevice;
    if (!store->Open(
            {.id = id,
             .demand = {.residency = residency,
                        .selects = bench->attention.selects(),
                        .num_slots = kBudget.top_k + options.spare_slots,
                        .partial_keys = bench->attention.decode == AttentionPolicy::kInfinigen},
             .keys = {},
             .hits = 0,
             .blocks = BlocksOf(options),
             .most_blocks = BlocksOf(options)})) {
      return false;
    }
    memory::SequenceKv& kv = store->sequence(id);
    kv.keyed_blocks = options.context / 64;
    kv.summed_tokens = kPromptTokens;
    kv.partial_tokens = options.context;
    ChooseFirstChannels(store->pools().layout, &kv);
    for (int& blocks : kv.submitted_blocks) blocks = options.context / 64;
    for (int& blocks : kv.landed_blocks) blocks = options.context / 64;
    if (!bench->samples || !bench->tiered) continue;
    FillHostKeys(store->pools(), kv, options.context / 64, kBudget.init, kBudget.local,
                 bench->dtype, options.keys, bench->threads);
  }
  return true;
}

void Close(int batch, Bench* bench) {
  memory::KvStore* const store = bench->model.kv->store();
  for (int i = 1; i <= batch; ++i) {
    const auto id = static_cast<memory::SequenceId>(i);
    if (!store->is_open(id)) continue;
    bench->model.runner->Leave(&store->sequence(id), /*keep=*/false);
    store->Release(id);
  }
  store->WaitForClosing();
}

void Step(int batch, int position, Bench* bench) {
  bench->ids.clear();
  bench->segments.clear();
  bench->model.kv->store()->Poll();
  for (int i = 0; i < batch; ++i) {
    engine::StepSegment segment;
    const int at = i + 1 == bench->batch ? position - bench->lag : position;
    segment.rows = {.first_row = i, .num_rows = 1, .first_position = at};
    segment.kv = &bench->model.kv->store()->sequence(i + 1);
    segment.attention = &bench->attention;
    segment.prompt_tokens = kPromptTokens;
    segment.rope_variant =
        engine::RopeVariantOf(bench->model.info.short_rope_context, bench->model.max_context);
    segment.wants_token = true;
    segment.sampling.temperature = 0;
    segment.sampling.position = static_cast<uint32_t>(at + 1);
    const bool goes_on = i < static_cast<int>(bench->outputs.tokens.size());
    bench->ids.push_back(goes_on ? std::max(0, bench->outputs.tokens[i]) : 3 + i);
    bench->segments.push_back(segment);
  }
  bench->model.runner->Run({.token_ids = bench->ids, .segments = bench->segments}, &bench->outputs);
}

// What a copy of `bytes` from the host pool reaches through the lane that fetches.
double LinkBytesPerSecond(kernels::Backend* backend, const Bench& bench, int ctas) {
  const memory::KvPools& pools = bench.model.kv->store()->pools();
  const size_t page = pools.layout.page_bytes, host_page = pools.layout.host_page_bytes();
  const size_t host_pages = size_t(pools.num_host_blocks) * pools.layout.num_groups();
  const size_t room = size_t(pools.num_frames) * pools.layout.num_groups();
  const int pages = static_cast<int>(std::min({host_pages, room, (size_t{1} << 30) / page}));
  auto* list =
      static_cast<kernels::PageCopy*>(backend->AllocateHost(pages * sizeof(kernels::PageCopy)));
  AUGUR_CHECK(list != nullptr);
  const size_t stride = host_pages / pages;  // all over the pool
  for (int i = 0; i < pages; ++i) {
    list[i] = {pools.host + i * stride * host_page, pools.device + i * page};
  }
  kernels::Backend* const lane = backend->OnLane(kernels::Lane::kFetch);
  const double seconds = BestSeconds(3, [&] {
    lane->CopyPages({.pages = list,
                     .known_pages = pages,
                     .page_bytes = static_cast<int>(page),
                     .quota = ctas,
                     .fp8 = pools.fp8_pages()});
    lane->Synchronize();
  });
  backend->Free(list);
  return static_cast<double>(pages) * static_cast<double>(host_page) / seconds;
}

void FillDevice(kernels::Backend* backend, const TiersBenchOptions& options, const Bench& bench) {
  const memory::KvPools& pools = bench.model.kv->store()->pools();
  FillWithRandom(backend, pools.device, pools.layout.frame_bytes() * pools.num_frames, bench.dtype,
                 bench.samples ? 3.0f * options.keys.near_spread : 1.0f);
}

struct Counts {
  double chosen = 0, reused = 0, fetched = 0, wait_ns = 0;
  double page_bytes = 0, key_bytes = 0, value_bytes = 0, row_bytes = 0;
  double rows = 0, distinct_rows = 0, host_rows = 0;  // of values, that were drawn

  double bytes() const { return page_bytes + key_bytes + value_bytes + row_bytes; }
};

Counts CountsOf(const memory::ResidencyStats& stats) {
  Counts counts;
  for (int layer = 0; layer < stats.num_layers; ++layer) {
    counts.chosen += static_cast<double>(stats.layers[layer].chosen_blocks);
    counts.reused += static_cast<double>(stats.layers[layer].reused_blocks);
    counts.fetched += static_cast<double>(stats.layers[layer].fetched_blocks);
    counts.wait_ns += static_cast<double>(stats.layers[layer].wait_ns);
  }
  const auto number = [](const auto& counter) { return static_cast<double>(counter); };
  counts.page_bytes = number(stats.page_bytes);
  counts.key_bytes = number(stats.key_bytes);
  counts.value_bytes = number(stats.value_bytes);
  counts.row_bytes = number(stats.row_bytes);
  counts.rows = number(stats.sampled_rows);
  counts.distinct_rows = number(stats.sampled_distinct_rows);
  counts.host_rows = number(stats.host_rows);
  return counts;
}

// Weights, head, compressed keys and pages that a step reads.
double DeviceBytes(const TiersBenchOptions& options, const Bench& bench, int batch) {
  const engine::ModelConfig& config = bench.config;
  const double element = static_cast<double>(kernels::BytesOf(bench.dtype));
  const double width = element * config.num_layers * config.kv_width();  // of a token's keys
  const double blocks = options.context / 64.0;
  const bool selects = bench.attention.selects();
  double keys = selects ? width * blocks * kernels::kBlockWindows : 0;
  double weights = WeightBytes(options, config);
  if (options.policy == "infinigen") {
    keys = width / 4 * options.context;  // a quarter of each token's
    // The query weights of all layers but the first are read a second time.
    weights += element * (config.num_layers - 1.0) * config.hidden_size * config.q_width();
  }
  // Sampled rows are not counted: a floor.
  const double halves = bench.attention.values.sampled ? 1 : 2;
  const double pages =
      halves * width * 64 * (selects ? std::min<double>(kBudget.top_k, blocks) : blocks);
  return weights + batch * (keys + pages);
}

// What fills the record of every case.
struct Case {
  const BenchContext& context;
  const TiersBenchOptions& options;
  const Ceilings& ceilings;
  std::string copy_ctas;
  double link = 0;  // bytes a second
};

// What a step's copies were, and how many rows of values a token has drawn in each layer.
void AddDrawn(const Case& about, int batch, int steps, const Counts& before, const Counts& counts,
              const Bench& bench, BenchRecord* record) {
  const double tokens = double(batch) * steps * bench.config.num_layers;
  const double q_heads = tokens * bench.config.num_q_heads;
  const double kv_heads = tokens * bench.config.num_kv_heads;
  record->Add("estimator", about.options.estimator)
      .Add("samples", int64_t{about.options.samples})
      .Add("value_fetch", about.options.value_fetch)
      .Add("near_spread", static_cast<double>(about.options.keys.near_spread))
      .Add("far_spread", static_cast<double>(about.options.keys.far_spread))
      .Add("page_mb", (counts.page_bytes - before.page_bytes) / steps / 1e6)
      .Add("key_mb", (counts.key_bytes - before.key_bytes) / steps / 1e6)
      .Add("value_mb", (counts.value_bytes - before.value_bytes) / steps / 1e6)
      .Add("row_mb", (counts.row_bytes - before.row_bytes) / steps / 1e6)
      .Add("rows_a_q_head", (counts.rows - before.rows) / q_heads)
      .Add("rows_a_kv_head", (counts.distinct_rows - before.distinct_rows) / kv_heads)
      .Add("host_rows_a_kv_head", (counts.host_rows - before.host_rows) / kv_heads);
}

// Runs `steps` steps of a batch, the last of which ends at `*position`, and prints them.
void Measure(const Case& about, int batch, int steps, int window, int* position, Bench* bench) {
  const memory::ResidencyStats& stats = *bench->model.kv->stats();
  const auto* runner = dynamic_cast<const engine::DeviceRunner*>(bench->model.runner.get());
  const Counts before = CountsOf(stats);
  double ctas = 0;
  const double seconds = BestSeconds(1, [&] {
    for (int i = 0; i < steps; ++i) {
      Step(batch, (*position)++, bench);
      ctas += runner == nullptr ? 0 : runner->copy_ctas();
    }
  });
  const Counts counts = CountsOf(stats);
  const TiersBenchOptions& options = about.options;
  const double step = seconds / steps;
  const double bytes = DeviceBytes(options, *bench, batch);
  const double device_ms = bytes / about.ceilings.read_bytes_per_second(bytes) * 1e3;
  const double moved = (counts.bytes() - before.bytes()) / steps;
  const double chosen = counts.chosen - before.chosen;
  BenchRecord record(about.context, "tiers");
  record.Add("model", options.random_weights.substr(options.random_weights.rfind('/') + 1))
      .Add("policy", options.policy)
      .Add("residency", options.residency)
      .Add("host_dtype", options.host_dtype)
      .Add("values", bench->attention.values.sampled ? "sampled" : "exact")
      .Add("prefetch", int64_t{options.prefetch})
      .Add("spare_slots", int64_t{options.spare_slots})
      .Add("device_gb", options.device_gb)
      .Add("context", int64_t{options.context})
      .Add("batch", int64_t{batch})
      .Add("reuse_asked", static_cast<double>(bench->driven.reuse))
      .Add("others", bench->driven.by_law ? "law of " + options.reuse_source : "alike");
  if (window >= 0) record.Add("window", int64_t{window});
  record.Add("ms_per_step", step * 1e3)
      .Add("tokens_per_s", batch / step)
      .Add("device_floor_ms", device_ms);
  if (bench->tiered) {
    record.Add("reuse", chosen > 0 ? (counts.reused - before.reused) / chosen : 0.0)
        .Add("fetched_mb", moved / 1e6)
        .Add("link_floor_ms", moved / about.link * 1e3)
        .Add("link_gb_per_s", about.link / 1e9)
        .Add("wait_ms", (counts.wait_ns - before.wait_ns) / steps / 1e6)
        .Add("copy_ctas", about.copy_ctas)
        .Add("ctas_per_step", ctas / steps);
  }
  if (bench->attention.values.sampled)
    AddDrawn(about, batch, steps, before, counts, *bench, &record);
  record.Print();
}

struct StepTimes {
  int steps = 0;
  double seconds = 0, worst = 0;

  void Add(double step) {
    ++steps;
    seconds += step;
    worst = std::max(worst, step);
  }
};

// Steps of all sequences but the last, which was saved and comes back beside them: in pieces, as
// the engine plans them, or all handed over at once, waiting for room in the link's queue.
void MeasureWarmUp(const Case& about, int batch, bool in_pieces, int* position, Bench* bench) {
  constexpr int kAloneSteps = 48;
  memory::KvStore* const store = bench->model.kv->store();
  const auto cold = static_cast<memory::SequenceId>(batch);
  const int slots = kBudget.top_k + about.options.spare_slots;
  bench->model.runner->Leave(&store->sequence(cold), /*keep=*/true);
  const int saved_at = *position - bench->lag;
  store->Save(cold, saved_at);
  for (int i = 0; i < kWarmSteps; ++i) Step(batch - 1, (*position)++, bench);
  StepTimes alone, beside;
  for (int i = 0; i < kAloneSteps; ++i) {
    alone.Add(BestSeconds(1, [&] { Step(batch - 1, (*position)++, bench); }));
  }
  const int64_t most_bytes = engine::EngineOptions{}.warm_up_bytes;
  bool resumed = false;
  do {
    beside.Add(BestSeconds(1, [&] {
      if (!resumed) AUGUR_CHECK(store->Resume(cold, slots));
      resumed = true;
      while (!in_pieces && store->IsCold(cold)) {
        if (store->WarmUp(cold, most_bytes) == 0) store->transfers()->Wait(store->OldestPending());
      }
      const int64_t left = most_bytes - store->BytesOnTheirWay(cold);
      if (in_pieces && left > 0) store->WarmUp(cold, left);
      Step(batch - 1, (*position)++, bench);
    }));
  } while (!store->Ready(cold));
  bench->lag = *position - saved_at;
  const double joined = BestSeconds(1, [&] { Step(batch, (*position)++, bench); });
  BenchRecord(about.context, "warm_up")
      .Add("handed_over", std::string(in_pieces ? "in pieces" : "at once"))
      .Add("context", int64_t{about.options.context})
      .Add("others", int64_t{batch - 1})
      .Add("ms_per_step_alone", alone.seconds / alone.steps * 1e3)
      .Add("worst_ms_alone", alone.worst * 1e3)
      .Add("ms_per_step_beside", beside.seconds / beside.steps * 1e3)
      .Add("worst_ms_beside", beside.worst * 1e3)
      .Add("steps_until_warm", int64_t{beside.steps})
      .Add("ms_until_warm", beside.seconds * 1e3)
      .Add("ms_joining_step", joined * 1e3)
      .Print();
}

void RunBatch(const Case& about, int batch, Bench* bench) {
  const TiersBenchOptions& options = about.options;
  bench->outputs.tokens.clear();
  if (!Open(options, batch, bench)) {
    std::fprintf(stderr, "augur-bench: %d x %d tokens do not fit the pools\n", batch,
                 options.context);
    return Close(batch, bench);
  }
  int position = options.context;
  if (options.window > 0) {
    for (int window = 0; (window + 1) * options.window <= options.steps; ++window) {
      Measure(about, batch, options.window, window, &position, bench);
    }
  } else {
    const bool longer = options.spare_slots > 0 || bench->attention.values.sampled;
    const int warm = longer ? kSpareWarmSteps : kWarmSteps;
    for (int i = 0; i < warm; ++i) Step(batch, position++, bench);
    Measure(about, batch, options.steps, /*window=*/-1, &position, bench);
  }
  for (int round = 0; round < options.warm_ups && bench->tiered && batch > 1; ++round) {
    MeasureWarmUp(about, batch, /*in_pieces=*/round % 2 == 0, &position, bench);
  }
  Close(batch, bench);
}

}  // namespace

bool RunTiersBench(kernels::Backend* backend, const BenchContext& context,
                   const TiersBenchOptions& options, const Ceilings& ceilings) {
  for (const std::string& copy_ctas : options.copy_ctas) {
    if (!QuotaOf(options, copy_ctas).has_value()) {
      return Refuse(absl::InvalidArgumentError(
          "--copy-ctas: expected numbers from 1 to 64, or auto with bounds that are in order"));
    }
  }
  std::vector<kernels::DrivenChoice> driven;
  for (const std::string& reuse : options.reuse) {
    const auto one = DrivenOf(options, reuse);
    if (!one.has_value()) return false;
    driven.push_back(*one);
    if (one->by_law != driven.front().by_law) {
      return Refuse(
          absl::InvalidArgumentError("--reuse: natural beside shares needs --others law"));
    }
  }
  Bench bench;
  bench.threads = context.threads;
  if (!Load(backend, options, &bench)) return false;
  auto* const runner = dynamic_cast<engine::DeviceRunner*>(bench.model.runner.get());
  for (const std::string& copy_ctas : options.copy_ctas) {
    const engine::CopyQuotaOptions quota = *QuotaOf(options, copy_ctas);
    if (runner != nullptr && &copy_ctas != &options.copy_ctas.front()) {
      if (const absl::Status set = runner->SetCopyCtas(quota); !set.ok()) return Refuse(set);
    }
    const double link = bench.tiered ? LinkBytesPerSecond(backend, bench, quota.max_ctas) : 0;
    FillDevice(backend, options, bench);  // behind what has measured the link
    const Case about{context, options, ceilings, copy_ctas, link};
    for (const kernels::DrivenChoice& choice : driven) {
      bench.driven = choice;
      if (runner != nullptr && driven.size() > 1) runner->SetDrivenReuse(choice.reuse);
      for (const std::string& mode : options.values) {
        bench.attention.values.sampled = mode == "sampled";
        for (const int batch : options.batches) RunBatch(about, batch, &bench);
      }
    }
  }
  return true;
}

}  // namespace augur::bench
