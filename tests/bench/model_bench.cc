#include "tests/bench/model_bench.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "engine/batcher.h"
#include "engine/model/model_config.h"
#include "engine/model/model_loader.h"
#include "kernels/check.h"
#include "tests/bench/bench_attention.h"
#include "tests/bench/bench_memory.h"

namespace augur::bench {
namespace {

using engine::StepSegment;

constexpr int kDecodeSteps = 17;

// A model, and sequences of the longest length a case needs.
class BenchModel {
 public:
  // On a device the pool takes what the weights leave, else `most_blocks`, as the host pool does.
  static std::unique_ptr<BenchModel> Load(kernels::Backend* backend,
                                          const ModelBenchOptions& options, int max_rows,
                                          int max_sequences, int max_tokens, int most_blocks) {
    auto model = std::make_unique<BenchModel>();
    const auto config = options.random_weights.empty()
                            ? engine::LoadModelConfig(options.folder)
                            : engine::LoadModelConfigFile(options.random_weights);
    if (!config.ok()) return Refuse(config.status());
    const auto policy = engine::PolicyNamed(options.policy);
    const auto residency = engine::ResidencyNamed(options.residency);
    if (!policy.has_value() || !residency.has_value()) {
      return Refuse(absl::InvalidArgumentError("--policy or --residency: no such name"));
    }
    model->config = *config;
    model->attention = {.prefill = *policy, .decode = *policy, .budget = kBudget};
    const auto element = static_cast<int>(
        kernels::BytesOf(backend->IsDevice() ? kernels::DType::kBF16 : kernels::DType::kF32));
    const auto layout =
        memory::MakeKvLayout(config->num_layers, config->num_kv_heads, config->head_dim, element);
    engine::KvOptions kv;
    kv.residency = *residency;
    kv.device_bytes = backend->IsDevice() ? 0 : layout.frame_bytes() * most_blocks;
    model->is_tiered = *residency == engine::ResidencyMode::kTiered;
    if (model->is_tiered) kv.host_bytes = layout.host_block_bytes() * most_blocks;
    auto loaded = engine::LoadModel(backend, &model->clock,
                                    {.folder = options.folder,
                                     .random_weights = options.random_weights,
                                     .max_context = max_tokens,
                                     .kv = kv,
                                     .attention = AttentionOf(*policy),
                                     .max_batch = max_sequences,
                                     .max_batched_tokens = max_rows,
                                     .driven = {.reuse = options.reuse}});
    if (!loaded.ok()) return Refuse(loaded.status());
    model->backend_ = backend;
    model->dtype = loaded->info.dtype;
    model->rope_variant = engine::RopeVariantOf(loaded->info.short_rope_context, max_tokens);
    model->kv = std::move(loaded->kv);
    model->runner = std::move(loaded->runner);
    return model;
  }

  // Sequences 0 to count - 1 with room for `tokens` each; false where the pools are too small.
  bool Open(int count, int tokens) {
    Close();
    memory::KvStore* store = kv->store();
    const int blocks = engine::BlocksFor(tokens);
    const memory::Residency residency =
        is_tiered ? memory::Residency::kTiered : memory::Residency::kDevice;
    for (; open_ < count; ++open_) {
      if (!store->Open({.id = static_cast<memory::SequenceId>(open_ + 1),
                        .demand = {.residency = residency,
                                   .selects = attention.selects(),
                                   .num_slots = attention.selects() ? kBudget.top_k : 0},
                        .keys = {},
                        .hits = 0,
                        .blocks = blocks,
                        .most_blocks = blocks})) {
        return false;
      }
    }
    return true;
  }

  void Close() {
    memory::KvStore* store = kv->store();
    for (; open_ > 0; --open_) {
      runner->Leave(&store->sequence(open_), /*keep=*/false);
      store->Release(open_);
    }
    store->WaitForClosing();
  }

  // Random finite keys and values in the whole pool.
  void FillKv() {
    const memory::KvPools& pools = kv->store()->pools();
    FillWithRandom(backend_, pools.device, pools.layout.frame_bytes() * pools.num_frames, dtype);
  }

  // Rows [first, first + count) of a sequence whose tokens repeat a pattern.
  void AddRows(int sequence, int first, int count, bool wants_token) {
    StepSegment segment;
    segment.rows = {
        .first_row = static_cast<int>(ids_.size()), .num_rows = count, .first_position = first};
    segment.kv = &kv->store()->sequence(sequence + 1);
    segment.attention = &attention;
    // One row goes on from a prompt, more are a prompt's.
    segment.prompt_tokens = count == 1 ? first : first + count;
    segment.rope_variant = rope_variant;
    segment.wants_token = wants_token;
    segment.sampling.temperature = 0;
    segment.sampling.position = static_cast<uint32_t>(first + count);
    const size_t index = segments_.size();
    segments_.push_back(segment);
    if (count == 1 && index < outputs_.tokens.size()) {
      // As the daemon does: on from what the step before has drawn.
      ids_.push_back(std::max(0, outputs_.tokens[index]));
      return;
    }
    for (int i = 0; i < count; ++i) ids_.push_back(3 + (first + i) * 7 % (config.vocab_size - 3));
  }

  void Run() {
    runner->Run({.token_ids = ids_, .segments = segments_}, &outputs_);
    ids_.clear();
    segments_.clear();
  }

  // Prompts of sequences [first, first + count), which share each step's rows alike.
  void Prefill(int first, int count, int tokens, int chunk) {
    const int part = chunk / count / 64 * 64;
    for (int done = 0; done < tokens; done += part) {
      const int rows = std::min(part, tokens - done);
      for (int i = 0; i < count; ++i) AddRows(first + i, done, rows, done + rows == tokens);
      kv->store()->Poll();
      Run();
    }
  }

  engine::ModelConfig config;
  kernels::DType dtype = kernels::DType::kF32;
  int rope_variant = 0;  // of sequences as long as the context
  engine::AttentionChoice attention;
  bool is_tiered = false;
  const memory::SteadyClock clock;
  std::unique_ptr<memory::KvMemory> kv;
  std::unique_ptr<engine::ModelRunner> runner;

 private:
  static engine::AttentionSettings AttentionOf(engine::AttentionPolicy policy) {
    if (policy == engine::AttentionPolicy::kDense) {
      engine::AttentionSettings dense;
      dense.prefill = dense.decode = policy;
      return dense;
    }
    engine::AttentionSettings attention = SettingsOf(policy, policy, /*spare_slots=*/0);
    if (policy == engine::AttentionPolicy::kForecast) attention.forecast_heads = "random";
    return attention;
  }
  static std::unique_ptr<BenchModel> Refuse(const absl::Status& status) {
    std::fprintf(stderr, "augur-bench: %s\n", std::string(status.message()).c_str());
    return nullptr;
  }

  kernels::Backend* backend_ = nullptr;
  int open_ = 0;
  std::vector<int32_t> ids_;
  std::vector<StepSegment> segments_;
  engine::StepOutputs outputs_;
};

// The folder's or file's name, without what leads there.
std::string NameOf(const ModelBenchOptions& options) {
  const std::string& path =
      options.random_weights.empty() ? options.folder : options.random_weights;
  return path.substr(path.rfind('/') + 1);
}

// Multiply-adds counted as two: linears for every token, attention over what lies before it, one
// head row.
double PrefillFlops(const engine::ModelConfig& config, int tokens) {
  const double pairs = 0.5 * tokens * (tokens + 1.0);
  const double linear = 2.0 * static_cast<double>(LayerWeightsOf(config)) * tokens;
  const double attention = 4.0 * config.num_layers * config.q_width() * pairs;
  return linear + attention + 2.0 * config.hidden_size * config.vocab_size;
}

}  // namespace

int64_t LayerWeightsOf(const engine::ModelConfig& config) {
  const int64_t attention =
      int64_t{config.hidden_size} * (2 * config.q_width() + 2 * config.kv_width());
  return config.num_layers *
         (attention + int64_t{3} * config.hidden_size * config.intermediate_size);
}

bool RunPrefillBench(kernels::Backend* backend, const BenchContext& context,
                     const ModelBenchOptions& options, const Ceilings& ceilings) {
  if (options.chunk / options.at_once < 64) {
    std::fprintf(stderr,
                 "augur-bench: --chunk: expected 64 rows for each of %d prompts, found %d\n",
                 options.at_once, options.chunk);
    return false;
  }
  const double peak = ceilings.flops_per_second();
  const int longest = *std::max_element(options.prompts.begin(), options.prompts.end());
  const auto model = BenchModel::Load(backend, options, options.chunk, options.at_once, longest,
                                      options.at_once * engine::BlocksFor(longest));
  if (model == nullptr) return false;
  for (const int tokens : options.prompts) {
    double seconds = 0;
    for (int repeat = 0; repeat < context.repeats; ++repeat) {
      if (!model->Open(options.at_once, tokens)) {
        std::fprintf(stderr, "augur-bench: %d x %d tokens do not fit the KV pools\n",
                     options.at_once, tokens);
        break;
      }
      const double once =
          BestSeconds(1, [&] { model->Prefill(0, options.at_once, tokens, options.chunk); });
      if (repeat == 0 || once < seconds) seconds = once;
    }
    model->Close();
    if (seconds == 0) continue;
    const double flops = options.at_once * PrefillFlops(model->config, tokens) / seconds;
    BenchRecord(context, "prefill")
        .Add("model", NameOf(options))
        .Add("policy", options.policy)
        .Add("residency", options.residency)
        .Add("at_once", int64_t{options.at_once})
        .Add("tokens", int64_t{tokens})
        .Add("chunk", int64_t{options.chunk})
        .Add("reuse_asked", static_cast<double>(options.reuse))
        .Add("ms", seconds * 1e3)
        .Add("tokens_per_s", options.at_once * tokens / seconds)
        .Add("dense_gflops", flops / 1e9)
        .Add("of_peak", flops / peak)
        .Print();
  }
  return true;
}

namespace {

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct DecodeTimes {
  double step = 0;       // seconds: the median of the steps, the best of the repeats
  double host = 0;       // of it, the runner's own work beside the waits for the device; likewise
  double most_host = 0;  // of the same repeat as `host`: the busiest step but for the first
};

DecodeTimes TimeDecodeSteps(BenchModel* model, int repeats, int batch, int tokens) {
  DecodeTimes best;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::vector<double> steps, hosts;
    for (int step = 0; step < kDecodeSteps; ++step) {
      for (int s = 0; s < batch; ++s) model->AddRows(s, tokens + step, 1, true);
      const int64_t waited_ns = model->runner->waited_ns();
      steps.push_back(BestSeconds(1, [&] { model->Run(); }));
      hosts.push_back(steps.back() -
                      static_cast<double>(model->runner->waited_ns() - waited_ns) * 1e-9);
    }
    const double step = MedianOf(steps), host = MedianOf(hosts);
    if (repeat == 0 || step < best.step) best.step = step;
    if (repeat > 0 && host >= best.host) continue;
    best.host = host;
    best.most_host = *std::max_element(hosts.begin() + 1, hosts.end());
  }
  return best;
}

// What lies between a graph's end and the next one's start on the device, by events in its stream:
// the median, in seconds, of steps of a pass of their own. On the CPU nothing is timed.
double GapBetweenGraphs(kernels::Backend* backend, BenchModel* model, int batch, int tokens) {
  // The first two are the first step's own and the one run ahead of it.
  constexpr size_t kFirst = 2;
  backend->TimeLaunches(kDecodeSteps);
  TimeDecodeSteps(model, 1, batch, tokens);
  std::vector<double> gaps;
  const std::vector<kernels::LaunchTime> launches = backend->TakeLaunchTimes();
  for (size_t i = kFirst; i < launches.size(); ++i) gaps.push_back(launches[i].since_last);
  return MedianOf(gaps);
}

// What the events around a graph see of its start and end: a graph that copies 64 bytes.
double EmptyGraphSeconds(kernels::Backend* backend) {
  constexpr size_t kBytes = 64;
  void* const data = backend->Allocate(2 * kBytes);
  AUGUR_CHECK(data != nullptr);
  const auto graph = backend->Record([&](kernels::Backend* recorder) {
    recorder->Copy(data, static_cast<std::byte*>(data) + kBytes, kBytes);
  });
  backend->TimeLaunches(kDecodeSteps);
  for (int i = 0; i < kDecodeSteps; ++i) backend->Launch(*graph);
  std::vector<double> durations;
  for (const kernels::LaunchTime& launch : backend->TakeLaunchTimes()) {
    durations.push_back(launch.duration);
  }
  backend->Free(data);
  return MedianOf(durations);
}

}  // namespace

bool RunDecodeBench(kernels::Backend* backend, const BenchContext& context,
                    const ModelBenchOptions& options, const Ceilings& ceilings) {
  const int most = *std::max_element(options.batches.begin(), options.batches.end());
  const int longest = *std::max_element(options.contexts.begin(), options.contexts.end());
  const auto model =
      BenchModel::Load(backend, options, std::max(options.chunk, most), most,
                       longest + kDecodeSteps, most * engine::BlocksFor(longest + kDecodeSteps));
  if (model == nullptr) return false;
  if (options.synthetic_kv) model->FillKv();
  const engine::ModelConfig& config = model->config;
  const double element = static_cast<double>(kernels::BytesOf(model->dtype));
  const double weight_bytes =
      element *
      static_cast<double>(LayerWeightsOf(config) + int64_t{config.hidden_size} * config.vocab_size);
  const double empty_graph = backend->IsDevice() ? EmptyGraphSeconds(backend) : 0;
  std::map<int, double> alone;  // tokens/s at batch 1, by context
  for (const int tokens : options.contexts) {
    for (const int batch : options.batches) {
      if (!model->Open(batch, tokens + kDecodeSteps)) {
        model->Close();
        std::fprintf(stderr, "augur-bench: %d x %d tokens do not fit the KV pool\n", batch, tokens);
        continue;
      }
      for (int s = 0; s < batch && !options.synthetic_kv; ++s) {
        model->Prefill(s, 1, tokens, options.chunk);
      }
      const DecodeTimes times = TimeDecodeSteps(model.get(), context.repeats, batch, tokens);
      const double seconds = times.step;
      const double kv_bytes = element * 2.0 * config.num_layers * config.kv_width() *
                              (tokens + 0.5 * kDecodeSteps) * batch;
      const double bytes = weight_bytes + kv_bytes;
      const double bandwidth = ceilings.read_bytes_per_second(bytes);
      const double bound_ms = bytes / bandwidth * 1e3;
      if (batch == 1) alone[tokens] = 1 / seconds;
      BenchRecord record(context, "decode");
      record.Add("model", NameOf(options))
          .Add("context", int64_t{tokens})
          .Add("batch", int64_t{batch})
          .Add("ms_per_step", seconds * 1e3)
          .Add("tokens_per_s", batch / seconds)
          .Add("read_mb", bytes / 1e6)
          .Add("read_gb_per_s", bandwidth / 1e9)
          .Add("bytes_bound_ms", bound_ms)
          .Add("times_bound", seconds * 1e3 / bound_ms);
      if (backend->IsDevice()) {
        record.Add("host_us", times.host * 1e6)
            .Add("host_most_us", times.most_host * 1e6)
            .Add("graph_gap_us", GapBetweenGraphs(backend, model.get(), batch, tokens) * 1e6)
            .Add("empty_graph_us", empty_graph * 1e6);
      }
      if (alone.contains(tokens)) record.Add("times_batch_1", batch / seconds / alone[tokens]);
      record.Print();
    }
  }
  return true;
}

}  // namespace augur::bench
