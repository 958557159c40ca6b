// The forward pass on a device (kernels/cuda; on the CPU in tests), with dense attention over
// resident KV: all that a step's ops read is device data, so a step is one upload of small tables
// and one launch.
//
//   decode only   the batch is padded to the next bucket and one recorded graph runs it
//   otherwise     the same ops, launched one by one: decode rows first, then prompt rows
//
// Running ahead: behind a decode-only step the next one is launched at once, before the host has
// seen the sampled tokens, which never leave the device for it: it takes every sequence to go on by
// one token. When the engine asks for that step, rows that went on as foreseen are answered by it,
// whatever became of the others: sequences that ended or wait cost nothing but their row, rows that
// were not foreseen are run beside it. So the device does not wait for the host. A row that was run
// in vain has written the KV of one token behind its sequence's last, into a page that this
// sequence holds or, if it ended meanwhile, whoever holds it next writes later in the device's
// order; and since a row depends on itself alone, running it again gives the same bits.
//
// A token's phase, and with it every algorithm that its row meets, follows from its position
// (kernels/ops/phase.h), never from the step: generated tokens are rows of the decode phase even
// where a preemption makes them again together.
//
// Thread: the engine's. Ownership: weights, activations, tables and graphs, all made by Create; the
// backend and KV memory outlive it. Failure: Create names size and knob; a step cannot fail.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/model/page_tables.h"
#include "engine/model/step_tables.h"
#include "engine/model/transformer_layers.h"
#include "engine/model_runner.h"
#include "kernels/backend.h"
#include "memory/base/clock.h"
#include "memory/kv_memory.h"

namespace augur::engine {

struct DeviceRunnerOptions {
  int max_rows = 0;      // of a step
  int max_segments = 0;  // sequences in a step
  int max_context = 0;   // positions that the RoPE tables and page lists cover
  kernels::DType kv_dtype = kernels::DType::kF32;
  bool run_ahead = true;
};

// A decode-only step of `rows` sequences runs as one of this many; all up to max_segments have a
// bucket. Few steps between neighbours, since every row up to the bucket's size costs a little.
std::vector<int> DecodeBuckets(int max_segments);
// Bounds of the longest page list that graphs are recorded for, in blocks, ascending; the last
// covers the context.
std::vector<int> LengthClasses(int max_blocks);

class DeviceRunner final : public ModelRunner {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceRunner>> Create(
      kernels::Backend* backend, const ModelConfig& config, TransformerWeights weights,
      const DeviceRunnerOptions& options, memory::KvMemory* kv, const memory::Clock* clock);
  ~DeviceRunner() override;

  void Run(const StepInputs& inputs, StepOutputs* outputs) override;
  int64_t waited_ns() const override { return waited_ns_; }

  // Logits of the last Run: one row of vocab_size for each segment that wanted a token, in order.
  // Copies; for tests, without run_ahead.
  std::vector<float> CopyLogits();
  // Rows of all steps so far that had been run ahead when they were asked for.
  int64_t rows_foreseen() const { return rows_foreseen_; }

 private:
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
  // A row of a decode graph; epoch 0: padding.
  struct GraphRow {
    const memory::SequenceKv* kv = nullptr;  // read within one Run only
    memory::SequenceId sequence = 0;
    uint64_t epoch = 0;
    int position = 0;
    kernels::SamplingRow sampling;
  };
  // A launched step whose tokens are on their way.
  struct InFlight {
    uint64_t mark = 0;
    int32_t* tokens = nullptr;
  };

  DeviceRunner(kernels::Backend* backend, const ModelConfig& config,
               const DeviceRunnerOptions& options, const memory::KvPools& pools,
               const memory::Clock* clock);
  absl::Status Allocate();
  absl::StatusOr<std::byte*> AllocateBytes(bool host, size_t bytes);
  void RecordGraphs();
  // Which segments the step run ahead has answered: its row, or -1.
  void MatchAhead(const StepInputs& inputs);
  // Those that it has not.
  InFlight LaunchRest(const StepInputs& inputs);
  StepShape PlanPieces(const StepInputs& inputs);
  void FillTables(const StepInputs& inputs, const StepShape& shape, const StepArrays& host);
  void PutRows(const StepArrays& host, int index, const kernels::Segment& rows, int table) const;
  // Bucket and length class; the rows behind `shape`'s are filled with padding.
  std::pair<int, int> PadToGraph(const StepArrays& host, const StepShape& shape) const;
  void PutPadding(const StepArrays& host, int row) const;
  // Rows of this step as the next one may be foreseen from, in the order in which the device holds
  // their tokens; false: not foreseeable.
  bool GatherGraphRows(const StepInputs& inputs);
  void LaunchAhead();
  void UploadMapped();
  InFlight CopyTokens(int count);
  void WaitFor(const InFlight& step);
  void RunOps(kernels::Backend* backend, const StepShape& shape, const StepArrays& device);
  void RunAttention(kernels::Backend* backend, int layer, const StepShape& shape,
                    const StepArrays& device);

  kernels::Backend* const backend_;
  const ModelConfig config_;
  const DeviceRunnerOptions options_;
  const memory::KvPools pools_;
  const memory::Clock* const clock_;
  const int max_blocks_;  // of a page list
  const std::vector<int> buckets_;
  const std::vector<int> classes_;

  std::unique_ptr<TransformerLayers> layers_;
  PageTables page_tables_;
  int64_t step_ = 0;
  int64_t waited_ns_ = 0;
  int64_t rows_foreseen_ = 0;
  int sampled_ = 0;  // rows of the last Run

  // Of the step under way; kept for their capacity.
  std::vector<Piece> pieces_;
  std::vector<kernels::MappedBlock> mapped_;
  std::vector<int> last_rows_;  // [segments]: where each segment's last token stands
  std::vector<int> answered_;   // [segments]: row of the step run ahead, or -1
  std::vector<GraphRow> graph_rows_;

  // The step run ahead of the last Run.
  bool has_ahead_ = false;
  InFlight ahead_;
  std::vector<GraphRow> ahead_rows_;
  std::vector<int32_t> last_tokens_;  // [ahead_rows_]: what they were foreseen to go on from

  std::vector<void*> allocations_;
  std::byte** page_lists_ = nullptr;               // [max_segments][layers][kv heads][max_blocks_]
  std::unique_ptr<StepTables> decode_tables_;      // of graphs
  std::unique_ptr<StepTables> mixed_tables_;       // of other steps
  kernels::MappedBlock* device_mapped_ = nullptr;  // [kMappedAtOnce]
  kernels::MappedBlock* host_mapped_ = nullptr;
  uint64_t mapped_mark_ = 0;               // of the last upload from host_mapped_
  int32_t* device_tokens_ = nullptr;       // [max_segments] sampled
  std::array<int32_t*, 3> host_tokens_{};  // likewise: of the last steps
  int next_tokens_ = 0;
  std::map<std::pair<int, int>, std::unique_ptr<kernels::StepGraph>> graphs_;  // bucket, class
};

}  // namespace augur::engine
