// The forward pass on a device (kernels/cuda; on the CPU in tests), with dense attention over
// resident KV: all that a step's ops read is device data, so a step is one upload of small tables
// and one launch.
//
//   decode only   the batch is padded to the next bucket and one recorded graph runs it
//   otherwise     the same ops, launched one by one: decode rows first, then prompt rows
//
// A token's phase, and with it every algorithm that its row meets, follows from its position
// (kernels/ops/phase.h), never from the step: generated tokens are rows of the decode phase even
// where a preemption makes them again together.
//
// Thread: the engine's. Ownership: weights, activations, tables and graphs, all made by Create; the
// backend and KV memory outlive it. Failure: Create names size and knob; a step cannot fail.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/model/page_tables.h"
#include "engine/model/transformer_layers.h"
#include "engine/model_runner.h"
#include "kernels/backend.h"
#include "memory/kv_memory.h"

namespace augur::engine {

struct DeviceRunnerOptions {
  int max_rows = 0;      // of a step
  int max_segments = 0;  // sequences in a step
  int max_context = 0;   // positions that the RoPE tables and page lists cover
  kernels::DType kv_dtype = kernels::DType::kF32;
};

// A decode-only step of `rows` sequences runs as one of this many; all up to max_segments have a
// bucket. Few steps between neighbours, since every row up to the bucket's size costs a little.
std::vector<int> DecodeBuckets(int max_segments);
// Bounds of the longest page list that graphs are recorded for, in blocks, ascending; the last
// covers the context.
std::vector<int> LengthClasses(int max_blocks);

class DeviceRunner final : public ModelRunner {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceRunner>> Create(kernels::Backend* backend,
                                                              const ModelConfig& config,
                                                              TransformerWeights weights,
                                                              const DeviceRunnerOptions& options,
                                                              memory::KvMemory* kv);
  ~DeviceRunner() override;

  void Run(const StepInputs& inputs, StepOutputs* outputs) override;

  // Logits of the last Run: one row of vocab_size for each segment that wanted a token, in order.
  // Copies; for tests.
  std::vector<float> CopyLogits();

 private:
  // Everything that a step's ops read beside weights and activations, in this order in one piece of
  // memory, which exists once on the device and once on the host.
  struct StepTables {
    int32_t* token_ids = nullptr;                 // [max_rows]
    kernels::AppendSegment* append = nullptr;     // [max_rows]
    kernels::AttentionSegment* attend = nullptr;  // [max_rows]
    int32_t* sampled_rows = nullptr;              // [max_segments]
    kernels::SamplingRow* sampling = nullptr;     // [max_segments]
  };
  // One row of a sequence's generated tokens, or several of its prompt.
  struct Piece {
    const StepSegment* segment = nullptr;
    int first_token = 0;  // of the segment
    int num_rows = 0;
    int table = 0;
  };
  struct StepShape {
    RowPhases phases;
    int decode_segments = 0;
    int segments = 0;
    int sampled = 0;
    int max_blocks = 0;  // of the longest page list
  };

  DeviceRunner(kernels::Backend* backend, const ModelConfig& config,
               const DeviceRunnerOptions& options, const memory::KvPools& pools);
  absl::Status Allocate();
  void RecordGraphs();
  StepShape PlanPieces(const StepInputs& inputs);
  void FillTables(const StepInputs& inputs, StepShape* shape);
  void PutPiece(const Piece& piece, int index, int first_row, const StepInputs& inputs);
  void PadTables(int segments, StepShape* shape);
  void UploadMapped();
  void RunOps(kernels::Backend* backend, const StepShape& shape);
  void RunAttention(kernels::Backend* backend, int layer, const StepShape& shape);

  kernels::Backend* const backend_;
  const ModelConfig config_;
  const DeviceRunnerOptions options_;
  const memory::KvPools pools_;
  const int max_blocks_;  // of a page list

  std::unique_ptr<TransformerLayers> layers_;
  PageTables page_tables_;
  int64_t step_ = 0;
  std::vector<Piece> pieces_;
  std::vector<kernels::MappedBlock> mapped_;
  std::vector<int> last_rows_;  // [segments]: where each segment's last token stands
  int sampled_ = 0;

  std::vector<void*> allocations_;
  std::byte** page_lists_ = nullptr;  // [max_segments][layers][kv heads][max_blocks_]
  StepTables device_;
  StepTables host_;
  size_t table_bytes_ = 0;
  kernels::MappedBlock* device_mapped_ = nullptr;  // [kMappedAtOnce]
  kernels::MappedBlock* host_mapped_ = nullptr;
  int32_t* device_tokens_ = nullptr;  // [max_segments] sampled
  int32_t* host_tokens_ = nullptr;
  std::map<std::pair<int, int>, std::unique_ptr<kernels::StepGraph>> graphs_;  // bucket, class
};

}  // namespace augur::engine
