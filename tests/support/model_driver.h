// A model stepped by hand: sequences are opened, computed row by row, saved and resumed as the test
// says, without engine or batcher. For tests of bits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/attention/attention_policy.h"
#include "engine/model/device_runner.h"
#include "engine/model/model_config.h"
#include "engine/model/transformer_runner.h"
#include "kernels/backend.h"
#include "memory/base/clock.h"
#include "memory/device_transfers.h"
#include "memory/kv_memory.h"

namespace augur::tests {

// What computes: the CPU by its own runner, the CPU by the runner for devices, or a device.
enum class DriverBackend { kCpu, kCpuAsDevice, kCuda };
// Those of this build and machine.
std::vector<DriverBackend> DriverBackendsHere();
// But for the CPU by its own runner.
std::vector<DriverBackend> DeviceBackendsHere();
const char* NameOf(DriverBackend backend);

// The repository where the tests were built; elsewhere (a carried package) the current folder.
std::string SourceFolder();

struct ModelDriverOptions {
  std::string folder;
  int threads = 1;
  DriverBackend backend = DriverBackend::kCpu;
  bool run_ahead = false;  // of the runner for devices; then Step's logits are empty
  kernels::DType kv_dtype = kernels::DType::kF32;
  bool host_fp8 = false;  // host pages in fp8
  int max_rows = 1024;
  int max_segments = 64;
  int max_context = 0;  // 0: the model's
  int frames = 1000;
  int host_blocks = 0;  // 0: nothing can be tiered
  int staging_blocks = 64;
  int max_top_k = 16;
  int num_slots = 16;  // of tiered sequences that select
  bool prefetch = true;
  engine::CopyQuotaOptions copy_ctas = {};  // of the runner for devices
  engine::OrderingFault ordering = {};      // likewise
  int page_check = 1;
  int recall_every = 0;
  std::string forecast_heads = {};   // file; empty: none
  std::string infinigen_basis = {};  // likewise
  memory::CopyThreadsOptions copies = {};
  engine::ValueSettings values = {};  // resolved for the model by the driver
};

class ModelDriver {
 public:
  // `transfers` as in KvMemory::Create.
  explicit ModelDriver(const ModelDriverOptions& options,
                       std::unique_ptr<memory::TransferEngine> transfers = nullptr);

  struct Sequence {
    memory::SequenceId id = 0;
    std::vector<int32_t> tokens;
    int prompt_tokens = 0;
    int computed = 0;
    engine::AttentionChoice attention;
    uint64_t seed = 0;
    float temperature = 0.0f;
    const engine::LogitRules* rules = nullptr;
    int rope_variant = 0;
    int logprobs = -1;         // as engine::StepSegment has them
    int prompt_logprobs = -1;  // of all rows
  };

  // `room`: tokens that may be appended. hits: blocks taken from the cache under PublishAll's keys.
  Sequence Start(std::vector<int32_t> tokens, int room,
                 const engine::AttentionChoice& attention = {},
                 memory::Residency residency = memory::Residency::kDevice, int hits = 0,
                 int slots = 0);
  void Finish(const Sequence& sequence);
  // Puts the sequence's full blocks into the prefix cache, under keys of this driver's own.
  void PublishAll(const Sequence& sequence);
  void Save(const Sequence& sequence);
  void Resume(const Sequence& sequence);

  struct Part {
    Sequence* sequence;
    int rows;
  };
  // Computes the next rows of each sequence; the logits of each last row.
  std::vector<std::vector<float>> Step(const std::vector<Part>& parts);
  std::vector<float> StepOne(Sequence* sequence, int rows) { return Step({{sequence, rows}})[0]; }
  // The rest of the tokens in chunks that end on multiples of `chunk`; the last row's logits.
  std::vector<float> Prefill(Sequence* sequence, int chunk);
  // Greedy steps; the logits of each.
  std::vector<std::vector<float>> Decode(Sequence* sequence, int steps);
  // Prefill and Decode of a sequence of its own: 1 + decodes rows of logits.
  std::vector<std::vector<float>> Complete(const std::vector<int32_t>& prompt, int chunk,
                                           int decodes,
                                           const engine::AttentionChoice& attention = {},
                                           memory::Residency residency = memory::Residency::kDevice,
                                           std::vector<int32_t>* greedy = nullptr);

  // The last Step's logits as rules have changed them, likewise; it must have had some.
  std::vector<std::vector<float>> Adjusted();

  const std::vector<int32_t>& sampled() const { return outputs_.tokens; }
  const engine::StepOutputs& outputs() const { return outputs_; }
  // For an engine core that steps it instead.
  engine::ModelRunner* runner();
  // What Decode goes on from, after other sequences have stepped.
  void RestoreSampled(const std::vector<int32_t>& sampled) { outputs_.tokens = sampled; }
  void set_observer(engine::AttentionObserver* observer) { host_runner_->set_observer(observer); }
  int vocab() const { return config_.vocab_size; }
  const engine::ModelConfig& config() const { return config_; }
  kernels::DType weights_dtype() const { return weights_dtype_; }
  const engine::LayerWorker& layer_worker() const { return host_runner_->layer_worker(); }
  memory::KvMemory& kv() { return *kv_; }
  int64_t rows_foreseen() const { return device_runner_->rows_foreseen(); }

 private:
  void MakeRunner(engine::TransformerWeights weights, bool has_forecast);
  std::vector<float> CopyLogits();
  std::vector<std::vector<float>> InRows(const std::vector<float>& all) const;
  int max_context() const;

  const ModelDriverOptions options_;
  engine::ValueSampling values_;
  memory::SteadyClock clock_;
  std::unique_ptr<kernels::Backend> backend_;
  engine::ModelConfig config_;
  kernels::DType weights_dtype_ = kernels::DType::kF32;
  memory::DeviceTransfers* device_transfers_ = nullptr;  // kv_'s, where a device moves pages
  std::unique_ptr<memory::KvMemory> kv_;
  std::unique_ptr<engine::TransformerRunner> host_runner_;  // one of the two
  std::unique_ptr<engine::DeviceRunner> device_runner_;
  engine::StepOutputs outputs_;
  memory::SequenceId next_id_ = 1;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace augur::tests
