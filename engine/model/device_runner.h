// The forward pass on a device (kernels/cuda; on the CPU in tests), with every policy and both
// tiers: all that a step's ops read is device data, so a step is one upload of small arrays and one
// launch.
//
//   decode only   the batch is padded to the next bucket and one recorded graph runs it, selection,
//                 slots and copies included (engine/attention/device_attention.h)
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
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/copy_grants.h"
#include "engine/attention/device_attention.h"
#include "engine/attention/device_observer.h"
#include "engine/model/model_config.h"
#include "engine/model/sampling_options.h"
#include "engine/model/sequence_tables.h"
#include "engine/model/spill_queue.h"
#include "engine/model/step_tables.h"
#include "engine/model/transformer_layers.h"
#include "engine/model_runner.h"
#include "kernels/backend.h"
#include "memory/base/clock.h"
#include "memory/device_transfers.h"
#include "memory/kv_memory.h"

namespace augur::engine {

struct DeviceRunnerOptions {
  int max_rows = 0;      // of a step
  int max_segments = 0;  // sequences in a step
  int max_context = 0;   // positions that the RoPE tables and page lists cover
  kernels::DType kv_dtype = kernels::DType::kF32;
  bool run_ahead = true;
  // What requests use where they say nothing else: steps of it are recorded for themselves.
  AttentionPolicy decode_policy = AttentionPolicy::kDense;
  bool has_forecast = false;  // the weights hold Forecast heads
  int max_top_k = 0;          // blocks, of any request's selection; 0: all attention is dense
  int max_slots = 0;          // of a tiered sequence's groups; 0: nothing is tiered
  bool resident = true;       // sequences may live on the device
  bool prefetch = true;
  CopyQuotaOptions copy_ctas = {};    // that fetch pages in a step
  kernels::DrivenChoice driven = {};  // for benches
  ValueSampling values = {};          // not offered: no request samples
  OrderingFault ordering = {};        // for tests
};

// A decode-only step of `rows` sequences runs as one of this many; all up to max_segments have a
// bucket. Few steps between neighbours, since every row up to the bucket's size costs a little.
std::vector<int> DecodeBuckets(int max_segments);
// Bounds of the longest page list that graphs are recorded for, in blocks, ascending; the last
// covers the context.
std::vector<int> LengthClasses(int max_blocks);

class DeviceRunner final : public ModelRunner {
 public:
  // `transfers`: the KV memory's, where something is tiered.
  static absl::StatusOr<std::unique_ptr<DeviceRunner>> Create(
      kernels::Backend* backend, const ModelConfig& config, TransformerWeights weights,
      const DeviceRunnerOptions& options, memory::KvMemory* kv, memory::DeviceTransfers* transfers,
      const memory::Clock* clock);
  ~DeviceRunner() override;

  void Run(const StepInputs& inputs, StepOutputs* outputs) override;
  void Leave(memory::SequenceKv* kv, bool keep) override {
    tables_->Remove(kv, keep);
    rules_state_->Remove(kv->id);
  }
  int64_t waited_ns() const override { return waited_ns_; }

  const TransformerLayers& layers() const { return *layers_; }
  // For training; null: nobody. It sees steps that are not recorded ones, of which a prompt's are
  // none. What nobody waits for of its last layer is then not computed.
  void set_observer(DeviceObserver* observer) { observer_ = observer; }

  // Logits of the last Run: one row of vocab_size for each segment that wanted a token, in order.
  // Copies; for tests, without run_ahead.
  std::vector<float> CopyLogits() { return CopyRows(layers_->logits()); }
  // Likewise, as rules have changed them; only after a step in which a segment had some.
  std::vector<float> CopyAdjusted() { return CopyRows(layers_->adjusted()); }
  // Rows of all steps so far that had been run ahead when they were asked for.
  int64_t rows_foreseen() const { return rows_foreseen_; }
  // CTAs that fetch in the step launched last.
  int copy_ctas() const { return grants_->ctas(); }
  // For benches, between steps that have nothing to do with each other: records all steps anew.
  absl::Status SetCopyCtas(const CopyQuotaOptions& options);
  void SetDrivenReuse(float reuse);

 private:
  struct Piece {
    AttentionPiece attention;
    int first_token = 0;  // of the segment
  };
  // Pieces of a step by what is done with them; rows stand in this order.
  struct Pieces {
    std::vector<Piece> decode;            // a row each, as a recorded step has them
    std::vector<Piece> staged_generated;  // see device_attention.h
    std::vector<Piece> prompt;
    std::vector<Piece> staged_prompt;
  };
  struct StepShape {
    RowPhases phases;
    int sampled = 0;
    int max_blocks = 0;  // of the longest page list
    AttentionCalls calls;
  };
  // What every step uploads; the rest is DeviceAttention's.
  struct StepArrays {
    int32_t* token_ids = nullptr;                    // [rows]
    const int32_t* sampled_rows = nullptr;           // [sampled]
    const kernels::SamplingRow* sampling = nullptr;  // [sampled]
  };
  // What steps with options of sampling upload and run beside: nothing where no row has any.
  struct StepOptions {
    const kernels::LogitRule* rules = nullptr;  // [sampled]; null: none
    const int32_t* top = nullptr;               // [sampled]; null: no log probabilities
    ToldTokens told;                            // no rows in recorded steps
  };
  struct HostArrays {
    std::vector<int32_t> token_ids;
    std::vector<int32_t> sampled_rows;
    std::vector<kernels::SamplingRow> sampling;
    std::vector<kernels::LogitRule> rules;  // [sampled]
    std::vector<int32_t> top;               // [sampled]: StepSegment::logprobs
    ToldList told;
  };
  // A row of a decode graph; epoch 0: padding.
  struct GraphRow {
    const StepSegment* segment = nullptr;  // of the step before; read within one Run only
    memory::SequenceId sequence = 0;
    uint64_t epoch = 0;
    int position = 0;
    kernels::SamplingRow sampling;
    kernels::LogitRule rule;
    int logprobs = -1;
  };
  // What a step brings back to the host.
  struct StepResult {
    int32_t* tokens = nullptr;                      // [max_segments]
    kernels::PlacementCounts* placement = nullptr;  // [layers], of all steps
    int64_t* stamps = nullptr;                      // [layers][2]
    SampledTotals* sampled = nullptr;               // [1], of all steps
    kernels::TokenLogprobsRow* logprobs = nullptr;  // [max_segments]
  };
  // A launched step whose result is on its way.
  struct InFlight {
    uint64_t mark = 0;
    StepResult result;
    AttentionCalls calls;
    QuotaPlan quota = {};  // of a recorded step that is tiered
  };
  using GraphKey = std::tuple<AttentionCalls, int, int>;  // calls, bucket, class
  struct RecordedStep {
    std::unique_ptr<kernels::StepGraph> graph;
    int load = 0;  // to the copy quota
  };

  DeviceRunner(kernels::Backend* backend, const ModelConfig& config,
               const DeviceRunnerOptions& options, memory::KvMemory* kv,
               memory::DeviceTransfers* transfers, const memory::Clock* clock);
  absl::Status Allocate();
  absl::StatusOr<std::byte*> AllocateHost(size_t bytes);
  absl::Status CreateAttention();
  // Null: no request uses InfiniGen.
  const InfinigenBasis* infinigen_basis() const;
  bool has_infinigen() const { return infinigen_basis() != nullptr; }
  void RecordGraphs();
  absl::Status CreateGrants(const CopyQuotaOptions& options);
  // On the main order; what governs its copies.
  QuotaPlan LaunchGraph(const GraphKey& key);
  std::vector<AttentionCalls> RecordedCalls() const;
  // The least of the recorded ones that holds `calls`.
  const AttentionCalls& CoveringCalls(const AttentionCalls& calls) const;

  void NoteComputed(const StepInputs& inputs);
  // Which segments the step run ahead has answered: its row, or -1.
  void MatchAhead(const StepInputs& inputs);
  // Those that it has not.
  InFlight LaunchRest(const StepInputs& inputs);
  StepShape PlanPieces(const StepInputs& inputs);
  void PlanSegment(const StepSegment& segment, StepShape* shape);
  int Prepare(const StepSegment& segment, const kernels::Segment& rows, bool staged);
  void WaitForWrites(memory::SequenceKv* kv, int block, int local);
  void AddCalls(const AttentionPiece& piece, StepShape* shape) const;
  // Gives rows to all pieces, in order, and writes them down.
  void FillRows(const StepInputs& inputs);
  void AddTold(const StepInputs& inputs);
  int RowOf(const StepSegment& segment, int position) const;
  void FillPiece(const StepInputs& inputs, Piece* piece);
  void AddStaged();
  GraphKey KeyOf(const StepShape& shape) const;
  void PadToGraph(int bucket);
  StepArrays Put(StepTables* tables);
  // Behind all that a recorded step reads.
  StepOptions PutOptions(StepTables* tables);
  // Rows of this step as the next one may be foreseen from, in the order in which the device holds
  // their tokens; false: not foreseeable.
  bool GatherGraphRows(const StepInputs& inputs);
  bool MayRunAhead(const StepSegment& segment, int position) const;
  void LaunchAhead();
  // What `options` asks for comes along.
  InFlight CopyResult(int count, const AttentionCalls& calls, const StepOptions& options);
  void FillOutputs(const StepInputs& inputs, const InFlight& foreseen, const InFlight& rest,
                   StepOutputs* outputs) const;
  void WaitFor(const InFlight& step);
  void CountTransfers(const InFlight& step);
  // What a layer's copies have moved; the bytes.
  uint64_t CountBytes(const kernels::PlacementCounts& now, const kernels::PlacementCounts& before);
  void CountSampled(const SampledTotals& now);
  void RunOps(kernels::Backend* backend, const StepShape& shape, const StepArrays& device,
              const ToldTokens& told = {});
  // Behind a step that has drawn `sampled` tokens as if there were none: draws them anew by rules,
  // and tells log probabilities.
  void RunOptions(const StepArrays& arrays, const StepOptions& options, int sampled);
  std::vector<float> CopyRows(const float* rows);

  kernels::Backend* const backend_;
  const ModelConfig config_;
  const DeviceRunnerOptions options_;
  memory::KvStore* const store_;
  memory::ResidencyStats* const stats_;
  memory::DeviceTransfers* const transfers_;
  const memory::Clock* const clock_;
  const int max_blocks_;  // of a page list
  const std::vector<int> buckets_;
  const std::vector<int> classes_;

  std::unique_ptr<TransformerLayers> layers_;
  std::unique_ptr<SequenceTables> tables_;
  std::unique_ptr<DeviceAttention> attention_;
  std::unique_ptr<SpillQueue> spills_;  // null: nothing is tiered
  std::unique_ptr<LogitState> rules_state_;
  DeviceObserver* observer_ = nullptr;
  int64_t waited_ns_ = 0;
  int64_t rows_foreseen_ = 0;
  int sampled_ = 0;  // rows of the last Run

  // Of the step under way; kept for their capacity.
  Pieces pieces_;
  HostArrays host_;
  std::vector<int> last_rows_;  // [segments]: where each segment's last token stands
  std::vector<int> answered_;   // [segments]: row of the step run ahead, or -1
  std::vector<GraphRow> graph_rows_;
  std::vector<AttentionPiece> staged_generated_, staged_prompt_;  // of one segment

  // The step run ahead of the last Run.
  bool has_ahead_ = false;
  InFlight ahead_;
  std::vector<GraphRow> ahead_rows_;
  std::vector<int32_t> last_tokens_;  // [ahead_rows_]: what they were foreseen to go on from

  std::vector<void*> host_allocations_;
  std::unique_ptr<StepTables> decode_tables_;                         // of graphs
  std::unique_ptr<StepTables> mixed_tables_;                          // of other steps
  kernels::BackendArray<int32_t> device_tokens_;                      // [max_segments] sampled
  kernels::BackendArray<kernels::TokenLogprobsRow> device_logprobs_;  // [max_segments]
  kernels::BackendArray<kernels::TokenLogprobsRow> device_told_;      // [max_rows]
  kernels::TokenLogprobsRow* told_ = nullptr;  // [max_rows] on the host, of the last step
  std::array<StepResult, 3> results_{};        // of the last steps
  int next_result_ = 0;
  std::vector<kernels::PlacementCounts> counted_;  // [layers]: what stats_ have
  SampledTotals counted_sampled_;                  // likewise
  std::vector<AttentionCalls> recorded_;
  std::map<GraphKey, RecordedStep> graphs_;
  std::unique_ptr<CopyGrants> grants_;
};

}  // namespace augur::engine
