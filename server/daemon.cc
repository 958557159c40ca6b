#include "server/daemon.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#ifdef AUGUR_HAS_CUDA
#include "kernels/cuda/make_cuda_backend.h"
#endif
#include "kernels/device_failure.h"
#include "kernels/kv_page.h"
#include "server/config_values.h"
#include "server/logging.h"
#include "server/port_file.h"
#include "server/quote.h"
#include "server/warm_up.h"

namespace augur::server {
namespace {

constexpr int64_t kWatchdogPeriodNs = memory::kNsPerSecond;
// After the drain limit: for streams that read to take their last messages and the status.
constexpr int64_t kEndGraceNs = 2 * memory::kNsPerSecond;
// After the last stream: for statuses to reach their clients' machines.
constexpr int64_t kFlushNs = 500 * memory::kNsPerMs;
constexpr int64_t kDrainPollNs = 5 * memory::kNsPerMs;
// After a device failure: for streams to take their status, then for it to leave this machine. With
// FlushLogging's second the process ends within 2 s.
constexpr int64_t kFaultGraceNs = 500 * memory::kNsPerMs;
constexpr int64_t kFaultFlushNs = 200 * memory::kNsPerMs;

class DirectEntry final : public EngineEntry {
 public:
  explicit DirectEntry(engine::Engine* engine) : engine_(engine) {}
  absl::Status Submit(std::shared_ptr<engine::Request> request) override {
    return engine_->Submit(std::move(request));
  }
  void Wake() override { engine_->Wake(); }

 private:
  engine::Engine* const engine_;
};

// A device that breaks at a step of the self-test's choosing.
class FaultyRunner final : public engine::ModelRunner {
 public:
  FaultyRunner(std::unique_ptr<engine::ModelRunner> runner, int64_t fault_after)
      : runner_(std::move(runner)), steps_left_(fault_after) {}
  void Run(const engine::StepInputs& inputs, engine::StepOutputs* outputs) override {
    if (--steps_left_ == 0) kernels::ReportDeviceFailure("self-test (device_fault_after)");
    runner_->Run(inputs, outputs);
  }

 private:
  const std::unique_ptr<engine::ModelRunner> runner_;
  int64_t steps_left_;
};

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAlreadyExists:
      return kExitPortInUse;
    case absl::StatusCode::kResourceExhausted:
      return kExitNoMemory;
    default:
      return kExitBadInput;
  }
}

ExitCode Fail(const absl::Status& status) {
  PrintFailure(std::string(status.message()));
  return ExitCodeOf(status);
}

StreamLimits LimitsOf(const ServerConfig& config) {
  return {.buffer_bytes = config.stream_buffer_bytes,
          .buffer_messages = config.stream_buffer_messages,
          .linger_ns = config.slow_reader_timeout_ns};
}

int64_t LongestTokenBytes(const engine::Tokenizer& tokenizer) {
  size_t longest = 0;
  for (int id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.TokenBytes(id).size());
  }
  return static_cast<int64_t>(longest);
}

std::optional<int> IntOf(const std::optional<int64_t>& value) {
  if (!value) return std::nullopt;
  return static_cast<int>(*value);
}

engine::AttentionSettings AttentionOf(const ServerConfig& config) {
  return {.prefill = config.prefill_policy,
          .decode = config.decode_policy,
          .top_k_blocks = IntOf(config.top_k_blocks),
          .max_top_k_blocks = IntOf(config.max_top_k_blocks),
          .init_blocks = IntOf(config.init_blocks),
          .local_blocks = IntOf(config.local_blocks),
          .dense_len = IntOf(config.dense_len),
          .spare_slots = IntOf(config.spare_slots),
          .forecast_heads = config.forecast_heads,
          .infinigen_basis = config.infinigen_basis,
          .values = config.values};
}

// What a request may name: the deployment's own choice, and the others where overriding is allowed.
std::vector<engine::AttentionPolicy> PoliciesOf(const ServerConfig& config,
                                                const engine::AttentionChoice& own) {
  using engine::AttentionPolicy;
  if (!config.policy_override) return {own.decode};
  std::vector<AttentionPolicy> policies = {AttentionPolicy::kDense, AttentionPolicy::kSparse};
  if (!config.infinigen_basis.empty()) policies.push_back(AttentionPolicy::kInfinigen);
  if (!config.forecast_heads.empty()) policies.push_back(AttentionPolicy::kForecast);
  return policies;
}

engine::KvOptions KvOptionsOf(const ServerConfig& config) {
  engine::KvOptions kv;
  kv.residency = config.residency;
  kv.device_bytes = config.kv_bytes;
  kv.host_bytes = config.host_kv_bytes;
  kv.dtype = config.kv_dtype;
  kv.host_fp8 = config.host_kv_fp8;
  kv.staging_blocks = static_cast<int>(config.staging_blocks);
  kv.prefetch = config.prefetch;
  kv.copy_ctas = {.min_ctas = static_cast<int>(config.copy_ctas.value_or(config.copy_ctas_min)),
                  .max_ctas = static_cast<int>(config.copy_ctas.value_or(config.copy_ctas_max))};
  kv.recall_every = static_cast<int>(config.recall_every);
  kv.page_check = static_cast<int>(config.page_check);
  kv.copies = {.num_threads = static_cast<int>(config.copy_threads),
               .queue_copies = static_cast<int>(config.transfer_queue),
               .bytes_per_second = static_cast<double>(config.link_bytes_per_second),
               .places_per_second = static_cast<double>(config.link_pages_per_second),
               .latency_ns = config.link_latency_ns};
  return kv;
}

// Pool sizes, and the memory formula with this deployment's numbers for a request as long as the
// context.
KvDescription DescribeKv(const ServerConfig& config, const engine::LoadedModel& model) {
  const memory::KvLayout& layout = model.kv->store()->pools().layout;
  const bool tiered = config.residency != engine::ResidencyMode::kDevice;
  const memory::KvDemand demand{
      .residency = tiered ? memory::Residency::kTiered : memory::Residency::kDevice,
      .selects = model.attention.choice.selects(),
      .num_slots = model.attention.num_slots(),
      .partial_keys = model.attention.choice.decode == engine::AttentionPolicy::kInfinigen};
  const int blocks = (model.max_context + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
  const memory::KvFootprint whole = memory::FootprintOf(layout, demand, blocks);
  const memory::KvPools& pools = model.kv->store()->pools();
  return {.residency = engine::NameOf(config.residency),
          .full_context = memory::DescribeFootprint(layout, demand, blocks),
          .full_context_fits =
              whole.frames() <= pools.num_frames && whole.host_blocks <= pools.num_host_blocks,
          .page_bytes = static_cast<int64_t>(layout.page_bytes),
          .host_page_bytes = static_cast<int64_t>(layout.host_page_bytes()),
          .frame_bytes = static_cast<int64_t>(layout.frame_bytes()),
          .host_block_bytes = static_cast<int64_t>(layout.host_block_bytes()),
          .slots = tiered ? model.attention.num_slots() : 0};
}

Deployment DescribeDeployment(const ServerConfig& config, const engine::LoadedModel& model) {
  Deployment deployment;
  deployment.served_name = config.served_name;
  deployment.family = model.info.family;
  deployment.dtype = kernels::NameOf(model.info.dtype);
  deployment.version = AUGUR_VERSION;
  deployment.num_parameters = model.info.num_parameters;
  deployment.vocab_size = model.info.vocab_size;
  deployment.max_context = model.max_context;
  deployment.max_batch = static_cast<int>(config.batch);
  deployment.eos_token_ids = model.info.eos_token_ids;
  deployment.has_tokenizer = model.tokenizer != nullptr;
  if (model.tokenizer != nullptr)
    deployment.longest_token_bytes = LongestTokenBytes(*model.tokenizer);
  deployment.prefix_cache = config.prefix_cache;
  deployment.attention = model.attention.choice;
  deployment.policies = PoliciesOf(config, model.attention.choice);
  deployment.values = model.attention.values;
  deployment.kv = DescribeKv(config, model);
  deployment.max_top_k_blocks = model.attention.max_top_k;
  deployment.short_rope_context = model.info.short_rope_context;
  deployment.kv_variant = model.info.fingerprint;
  return deployment;
}

engine::EngineOptions EngineOptionsOf(const ServerConfig& config,
                                      const engine::LoadedModel& model) {
  engine::EngineOptions options;
  options.max_context = model.max_context;
  options.short_rope_context = model.info.short_rope_context;
  options.residency = config.residency;
  options.num_slots = model.attention.num_slots();
  options.max_batch = static_cast<int>(config.batch);
  options.max_batched_tokens = static_cast<int>(config.batched_tokens);
  options.max_queued_requests = static_cast<int>(config.queue_requests);
  options.max_queued_tokens = config.queue_tokens;
  options.prefix_cache = config.prefix_cache;
  options.reserve_ahead = CudaDeviceOf(config.device) >= 0;
  options.slow_reader_timeout_ns = config.slow_reader_timeout_ns;
  return options;
}

}  // namespace

void PrintFailure(const std::string& message) {
  std::fprintf(stderr, "augurd: %s\n", OneLine(message).c_str());
}

Daemon::Daemon(ServerConfig config, std::string port_file, StopRequest* stop)
    : config_(std::move(config)),
      port_file_(std::move(port_file)),
      stop_(stop),
      service_({.model = config_.served_name,
                .stats = &front_,
                .clock = &clock_,
                .limits = LimitsOf(config_)},
               &clock_) {
  health_.Set("", false);
  health_.Set(kServiceName, false);
  health_.Set(kLiveName, true);
}

Daemon::~Daemon() {
  // Callers first: nobody may use a part that is gone.
  watchdog_.reset();
  grpc_.reset();
  intake_.reset();
}

ExitCode Daemon::Run() {
  stop_->BeginLoading();
  ExitCode code = Listen();
  if (code == kExitClean) code = LoadModel();
  if (code == kExitClean) code = BecomeReady();
  stop_->EndLoading();
  if (code != kExitClean) return code;
  stop_->Wait();
  Drain();
  serving_ = false;
  return kExitClean;
}

ExitCode Daemon::Listen() {
  auto grpc = GrpcServer::Start({.listen = config_.listen,
                                 .max_receive_bytes = config_.max_message_bytes,
                                 .max_streams = config_.max_streams,
                                 .reflection = config_.reflection},
                                {&service_, &health_});
  if (!grpc.ok()) return Fail(grpc.status());
  grpc_ = *std::move(grpc);
  auto metrics = MetricsExporter::Start(config_.metrics, AUGUR_VERSION, &front_);
  if (!metrics.ok()) return Fail(metrics.status());
  metrics_ = *std::move(metrics);
  if (port_file_.empty()) return kExitClean;
  const absl::Status prepared = PreparePortFile(port_file_);
  return prepared.ok() ? kExitClean : Fail(prepared);
}

std::unique_ptr<kernels::Backend> Daemon::MakeBackend() const {
  const int cuda_device = CudaDeviceOf(config_.device);
  if (cuda_device < 0) {
    return kernels::MakeCpuBackend({.num_threads = static_cast<int>(config_.threads)});
  }
#ifdef AUGUR_HAS_CUDA
  std::string error;
  auto backend = kernels::MakeCudaBackend(
      {.device = cuda_device,
       .max_decode_rows = static_cast<int>(std::max<int64_t>(config_.batch, 64)),
       .usual_decode_rows = static_cast<int>(config_.batch)},
      &error);
  if (backend == nullptr) PrintFailure("device: " + error);
  return backend;
#else
  PrintFailure(absl::StrCat("device: expected cpu or auto, found ", config_.device,
                            "; this build has no CUDA (cmake --preset cuda)"));
  return nullptr;
#endif
}

void Daemon::TurnAway() {
  // First: who has seen the health turn is not let in any more.
  service_.StopAdmitting();
  health_.Set("", false);
  health_.Set(kServiceName, false);
  front_.ready.store(0);
}

void Daemon::OnDeviceFailure(const std::string& message) {
  if (!serving_.exchange(false)) {
    PrintFailure("the device failed: " + message);
    std::_Exit(kExitBrokenDevice);
  }
  spdlog::critical("the device failed: {}", Quoted(message, 512));
  std::thread([this] {
    // Streams need a moment to tell their clients; the process must not outlive it.
    const int64_t end_ns = clock_.NowNs() + kFaultGraceNs;
    while (front_.open_streams.load() > 0 && clock_.NowNs() < end_ns) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kDrainPollNs));
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(kFaultFlushNs));
    FlushLogging();
    std::_Exit(kExitBrokenDevice);
  }).detach();
  TurnAway();
  engine_->EndAllWithinStep(absl::UnavailableError("the device failed"));
}

ExitCode Daemon::LoadModel() {
  kernels::SetDeviceFailureHandler(
      [this](const std::string& message) { OnDeviceFailure(message); });
  backend_ = MakeBackend();
  if (backend_ == nullptr) return kExitNoMemory;
  auto model = engine::LoadModel(backend_.get(), &clock_,
                                 {.folder = config_.model,
                                  .random_weights = config_.random_weights,
                                  .random_seed = static_cast<uint64_t>(config_.random_seed),
                                  .max_context = static_cast<int>(config_.context),
                                  .kv = KvOptionsOf(config_),
                                  .attention = AttentionOf(config_),
                                  .compute_threads = static_cast<int>(config_.threads),
                                  .max_batch = static_cast<int>(config_.batch),
                                  .max_batched_tokens = static_cast<int>(config_.batched_tokens)});
  if (!model.ok()) return Fail(model.status());
  StartEngine(*std::move(model));
  return kExitClean;
}

void Daemon::StartEngine(engine::LoadedModel model) {
  model_.deployment = DescribeDeployment(config_, model);
  info_ = model.info;
  kv_ = std::move(model.kv);
  tokenizer_ = std::move(model.tokenizer);
  const engine::EngineOptions options = EngineOptionsOf(config_, model);
  if (config_.device_fault_after > 0) {
    model.runner =
        std::make_unique<FaultyRunner>(std::move(model.runner), config_.device_fault_after);
  }
  engine_ =
      std::make_unique<engine::Engine>(options, model.info.eos_token_ids, std::move(model.runner),
                                       kv_->store(), tokenizer_.get(), &clock_);
  entry_ = std::make_unique<DirectEntry>(engine_.get());
  intake_ = std::make_unique<TextIntake>(
      TextIntakeOptions{.threads = static_cast<int>(config_.intake_threads),
                        .max_jobs = config_.intake_requests,
                        .max_bytes = config_.intake_bytes},
      &front_);
  router_ = std::make_unique<Router>(&model_.deployment, tokenizer_.get(), entry_.get(),
                                     intake_.get(), &clock_);
  model_.tokenizer = tokenizer_.get();
  model_.engine_stats = &engine_->stats();
  model_.router = router_.get();
  model_.intake = intake_.get();
  model_.streams = {.model = config_.served_name,
                    .engine = entry_.get(),
                    .stats = &front_,
                    .clock = &clock_,
                    .limits = LimitsOf(config_)};
  model_.default_deadline_ns = config_.default_deadline_ns;
  metrics_->SetModel(
      {.name = config_.served_name,
       .stats = &engine_->stats(),
       .num_blocks = kv_->store()->pools().num_frames,
       .block_bytes = static_cast<int64_t>(kv_->store()->pools().layout.frame_bytes()),
       .tiers = kv_->stats(),
       .transfers = kv_->transfers(),
       .max_context = options.max_context});
  watchdog_ = std::make_unique<LivenessWatchdog>(
      [this] { return engine_->StalledNs(); }, config_.stall_limit_ns, kWatchdogPeriodNs, &health_);
}

ExitCode Daemon::BecomeReady() {
  const absl::Status warm = WarmUp(entry_.get(), clock_);
  if (!warm.ok()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        config_.model, ": the model generated no token at warm-up: ", warm.message())));
  }
  // The engine's histograms hold it, so the front counts it, too.
  front_.CountRequest(0, EndReason::kLength);
  service_.Open(&model_);
  health_.Set(kServiceName, true);
  health_.Set("", true);
  front_.ready.store(1);
  serving_ = true;
  LogReady(info_);
  if (port_file_.empty()) return kExitClean;
  const absl::Status written = WritePortFile(port_file_, grpc_->address(), metrics_->address());
  return written.ok() ? kExitClean : Fail(written);
}

void Daemon::LogReady(const engine::ModelInfo& info) const {
  const engine::EngineOptions& options = engine_->options();
  const memory::KvPools& pools = kv_->store()->pools();
  const int64_t blocks = pools.num_frames;
  const auto block_bytes = static_cast<int64_t>(pools.layout.frame_bytes());
  spdlog::info(
      "ready version={} model={} family={} parameters={} dtype={} backend={} threads={} context={} "
      "kv_dtype={} kv_bytes={} kv_blocks={} kv_capacity_tokens={} batch={} batched_tokens={} "
      "prefix_cache={} "
      "grpc={} metrics={} pid={}",
      AUGUR_VERSION, Quoted(config_.served_name), info.family, info.num_parameters,
      kernels::NameOf(info.dtype), Quoted(backend_->Describe()), config_.threads,
      options.max_context, kernels::NameOf(config_.kv_dtype.value_or(info.dtype)),
      blocks * block_bytes, blocks, blocks * kernels::kBlockTokens, options.max_batch,
      options.max_batched_tokens, config_.prefix_cache, grpc_->address(), metrics_->address(),
      getpid());
  LogKv();
}

void Daemon::LogKv() const {
  const memory::KvPools& pools = kv_->store()->pools();
  const KvDescription& kv = model_.deployment.kv;
  spdlog::info(
      "kv residency={} frames={} frame_bytes={} host_blocks={} host_block_bytes={} "
      "staging_bytes={} slots={} full_context={}",
      kv.residency, pools.num_frames, kv.frame_bytes, pools.num_host_blocks, kv.host_block_bytes,
      pools.num_staging_pages * pools.layout.page_bytes, kv.slots, Quoted(kv.full_context, 512));
  if (kv.full_context_fits) return;
  spdlog::warn(
      "a request as long as the context of {} tokens takes more than the pools have and would be "
      "refused, with the numbers; raise kv_bytes{} or lower context",
      engine_->options().max_context, pools.num_host_blocks > 0 ? ", host_kv_bytes" : "");
}

void Daemon::Drain() {
  spdlog::info("draining open_streams={} limit={}", front_.open_streams.load(),
               FormatDuration(config_.drain_limit_ns));
  TurnAway();
  const int64_t deadline_ns = clock_.NowNs() + config_.drain_limit_ns;
  engine_->BeginDrain(deadline_ns);
  WaitUntilDrained(deadline_ns);
  const int64_t left = front_.open_streams.load();
  health_.Shutdown();
  // Scraped to the end of the drain; closing may take 2 s of its own.
  std::thread closer([this] { metrics_->Close(); });
  grpc_->Shutdown(kFlushNs);
  closer.join();
  spdlog::info("stopped cut_streams={}", left);
}

// Until every stream has ended, or the limit and a little grace have passed: what is left then does
// not read.
void Daemon::WaitUntilDrained(int64_t deadline_ns) {
  bool hurried = false;
  while (!engine_->idle() || front_.open_streams.load() > 0) {
    if (!hurried && stop_->count() > 1) {
      hurried = true;
      deadline_ns = clock_.NowNs();
      engine_->BeginDrain(deadline_ns);
    }
    if (clock_.NowNs() >= deadline_ns + kEndGraceNs) return;
    stop_->WaitForNs(kDrainPollNs);
  }
}

}  // namespace augur::server
