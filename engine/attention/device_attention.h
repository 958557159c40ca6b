// Attention of one layer after another where ops run on a device behind the host: what
// layer_worker.h is on the CPU, with the same policies, tiers and bits. The host writes a step's
// rows down once; which blocks they choose, which slots those take and what must be copied is
// decided by ops on device tables (sequence_tables.h), so that a decode step can be recorded.
//
// Kinds of rows
//   decode    one generated token: of a resident sequence, or of a tiered one that selects and has
//             its blocks in slots. All that a recorded step holds.
//   prompt    rows of a resident sequence's prompt
//   staged    rows of a tiered sequence that are not decode rows: its prompt, or a generated token
//             under dense attention. Layers above the first work in the staging area, one sequence
//             at a time: its history comes from the host while the layer or sequence before
//             computes, its finished blocks go back behind.
//
// Orders (kernels::Lane). For decode rows that choose ahead, layer l:
//   main      append, compress | wait for the copies of l | attend ... layer l + 1
//   kSelect        choose for l + 1, place
//   kFetch              copy what l + 1 lacks, behind the copies of l
// No layer reads a page before its copy has landed: main follows kFetch. No slot is overwritten
// while it is read: copies of layer l + 1 write slots of layer l + 1 alone, and main has long left
// them. Lists of choices are kept twice, by parity of the layer.
//
// Sampled values (sampling.md; device_sampled.cc): rows of generated tokens that sample have calls
// of their own. A block that one of them misses moves its keys alone, drawn rows are read in its
// host page, and what those have cost is counted beside the slot, so that PlaceBlocks lets the
// values follow where that pays: a policy of device data, like the rest.
//
// InfiniGen (infinigen.h; device_infinigen.cc) is one more rule to choose by a layer ahead: main
// makes the next layer's queries of this layer's input before kSelect follows it.
//
// Thread: the engine's. Ownership: buffers of its own, made by Create; backend, tables and
// transfers outlive it. Failure: Create names size and knob; a step cannot fail.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/attention_policy.h"
#include "engine/attention/ordering_fault.h"
#include "engine/attention/value_sampling.h"
#include "engine/model/infinigen_basis.h"
#include "engine/model/rope_tables.h"
#include "engine/model/sequence_tables.h"
#include "engine/model/step_tables.h"
#include "engine/model/transformer_weights.h"
#include "engine/model_runner.h"
#include "kernels/backend.h"
#include "kernels/backend_array.h"
#include "memory/device_transfers.h"

namespace augur::engine {

struct DeviceAttentionOptions {
  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  kernels::DType kv_dtype = kernels::DType::kF32;
  kernels::DType out_dtype = kernels::DType::kF32;
  bool has_forecast = false;  // qkv rows hold Forecast heads
  int max_rows = 0;
  int max_segments = 0;
  int max_top_k = 0;  // of any request; 0: all attention is dense
  bool prefetch = true;
  int copy_ctas = 4;                  // that fetch, at most: granted_ctas says how many of them do
  kernels::DrivenChoice driven = {};  // for benches
  OrderingFault ordering = {};        // for tests
  int row_stride = 0;  // floats of a qkv row: q, k, v, then Forecast heads as in layer_worker.h
  float attention_scale = 1.0f;
  RopeAngles rope = {};
  // q_norm and k_norm of all layers; empty: the model has none.
  std::span<const LayerWeights> head_norms = {};
  float head_norm_epsilon = 0.0f;
  // InfiniGen; null: no request uses it.
  const InfinigenBasis* infinigen_basis = nullptr;
  std::span<const LayerWeights> query_weights = {};  // of all layers; q comes first in qkv
  int hidden_size = 0;
  // NOSA's eviction heads, as LayerWorkerOptions::eviction has them; empty: the model has none.
  std::span<const LayerWeights> eviction_weights = {};
  int query_top_k = 0;
  ValueSampling values = {};  // not offered: no request samples

  int q_width() const { return num_q_heads * head_dim; }
  int kv_width() const { return num_kv_heads * head_dim; }
  int num_channels() const { return head_dim / 4; }  // of a partial key
};

// What a step's calls are, beside the numbers of rows: a recorded step is for one of these.
struct AttentionCalls {
  bool dense = false;     // decode rows that read all blocks
  bool sparse = false;    // decode rows that choose by their own query
  bool forecast = false;  // decode rows that choose by the Forecast
  // Decode rows of sequences that keep partial keys, and mostly choose by them.
  bool infinigen = false;
  bool tiered = false;  // decode rows in slots
  // Decode rows that read all of their values, and such that sample them.
  bool exact = false;
  bool sampled = false;

  bool selects() const { return sparse || forecast || infinigen; }
  bool foretells() const { return forecast || infinigen; }
  auto operator<=>(const AttentionCalls&) const = default;
};

// Rows of one segment under one policy.
struct AttentionPiece {
  const StepSegment* segment = nullptr;
  kernels::Segment rows;  // first_row: in the step
  int table = 0;          // of the sequence
  AttentionPolicy policy = AttentionPolicy::kDense;
};

// What sampled attention has read, all steps so far.
struct SampledTotals {
  kernels::SampledCounts counts;
  uint64_t host_rows = 0;  // of the distinct rows, those that were read in host pages
};

class DeviceAttention {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceAttention>> Create(
      kernels::Backend* backend, const DeviceAttentionOptions& options, SequenceTables* tables,
      memory::DeviceTransfers* transfers);
  DeviceAttention(const DeviceAttention&) = delete;
  DeviceAttention& operator=(const DeviceAttention&) = delete;

  // Writing a step down: Begin, then decode rows in order of their rows, then the others, then
  // Finish, which puts the arrays into `tables` for its next upload.
  void Begin();
  // A row whose layer's keys are all there before the layer runs, but for its own, chooses a layer
  // ahead; where one does not (ChoosesInTime), none of the step's does, and it is not a recorded
  // one.
  void AddDecodeRow(const AttentionPiece& piece);
  void AddPadding(int row);
  void AddPrompt(const AttentionPiece& piece);
  // Behind all prompts: pieces of one staged segment, generated rows and those of its prompt.
  void AddStaged(std::span<const AttentionPiece> generated, std::span<const AttentionPiece> prompt);
  // `calls`: at least those of the decode rows. max_blocks: of the longest sequence.
  void Finish(StepTables* tables, const AttentionCalls& calls, int rows, int max_blocks);

  // Whether the segment's generated rows must choose when their layer runs: their keys, or partial
  // keys or biases that a resumed sequence lacks, come with the step itself.
  bool ChoosesInTime(const StepSegment& segment) const;

  // What the arrays of so many rows and staged segments take, at most.
  size_t BytesOfStep(int rows, int segments) const;

  // Running it, on the backend or one that records; without recording staged rows as well.
  void BeginStep(kernels::Backend* backend);
  void EndStep(kernels::Backend* backend);
  // qkv [rows, row_stride] -> attended [rows, q_width of out_dtype]; layers in order. input: what
  // qkv was made of, [rows, hidden_size] of out_dtype.
  void RunLayer(kernels::Backend* backend, int layer, float* qkv, void* attended,
                const void* input);
  // The part of RunLayer that later steps need: k and v are appended, q and k in qkv rotated. For
  // a layer whose rows nobody reads; without staged rows.
  void AppendLayer(kernels::Backend* backend, int layer, float* qkv);
  // Counts of all steps so far: [num_layers] each, in device memory.
  const kernels::PlacementCounts* placement() const { return placement_.data(); }
  // When layer l's copies were waited for and when they had been made, in the last step that
  // fetched: [num_layers][2]. Layer 0, which never fetches: when the step began and ended.
  const int64_t* stamps() const { return stamps_.data(); }
  const SampledTotals* sampled_totals() const { return sampled_totals_.data(); }  // [1] likewise
  int32_t* granted_ctas() { return granted_.data(); }  // [1] on the device
  // In place of the options', in steps recorded from now on.
  void set_copy_ctas(int ctas) { copy_ctas_ = ctas; }
  void set_driven_reuse(float reuse) { driven_reuse_ = reuse; }

 private:
  // CTAs that stream a prompt's history: no governor watches them, and they fill the link.
  static constexpr int kHistoryCtas = 4;
  // CTAs that copy a prompt's working set from the staging area to its slots, on the device.
  static constexpr int kSlotCopyCtas = 16;

  // What rows choose by. Layer 0 of infinigen: their own query, as kSparseRule.
  enum Rule { kSparseRule, kForecastRule, kInfinigenRule, kNumRules };
  // When: in their layer, or a layer ahead, whatever the rule. Rows of one time are placed
  // together.
  enum Time { kInTime, kAhead, kNumTimes };
  enum PhaseIndex { kDecodeRows, kPromptRows, kNumPhases };
  struct Range {
    int first = 0;
    int count = 0;
  };
  // Rows whose pages are found by one offset: all but staged ones, or those of a staged segment.
  struct Group {
    Range append, compress, evict;
    std::array<std::array<Range, kNumPhases>, kNumRules> select;
    std::array<Range, kNumTimes> place;
    std::array<Range, kNumPhases> dense;
    // InfiniGen's: sums and choices of channels (prompt rows), partial keys, queries, and what rows
    // choose by in layer 0 (generated rows).
    Range sums, channels, project, queries, select_first;
    Range value_sums, own_sums;
    Range sampled_dense, sampled;  // generated rows that sample: all blocks, chosen ones
    Range chosen;                  // decode rows that select
    Range choosing;                // prompt rows that select
    // Of a staged segment alone.
    const StepSegment* segment = nullptr;
    int table = -1;
    int history_blocks = 0;  // that come from the host, or from the open block's slot
    int num_spilled = 0;     // blocks that it begins and completes
    bool returns_tail = false;
    Range end;          // its working set, which moves into the slots
    int end_list = -1;  // of end_blocks; -1: what its last row has chosen
  };
  // Arrays of the step, as the host writes them.
  struct Lists {
    std::vector<kernels::AppendSegment> append;
    std::vector<kernels::CompressSegment> compress;
    std::vector<kernels::EvictionSegment> evict;
    std::vector<kernels::TailSegment> tails;
    std::array<std::vector<kernels::SelectSegment>, kNumRules> select;
    std::array<std::vector<kernels::PlaceSegment>, kNumTimes> place_first;  // layer 0
    std::array<std::vector<kernels::PlaceSegment>, kNumTimes> place;
    std::vector<kernels::AttentionSegment> dense;
    std::array<std::vector<kernels::AttentionSegment>, 2> chosen;    // by parity of the layer
    std::array<std::vector<kernels::AttentionSegment>, 2> choosing;  // likewise
    std::vector<kernels::PageRange> histories, spills;               // of staged groups
    std::vector<kernels::PlaceSegment> ends;
    std::vector<int32_t> end_blocks;  // [groups][kv heads][stride]: of those that end by a list
    std::vector<int32_t> end_counts;  // [groups][kv heads]
    std::vector<kernels::ChannelSegment> sums;
    std::vector<kernels::ChooseChannelsSegment> channels;
    std::vector<kernels::ProjectSegment> project;
    std::vector<kernels::QuerySegment> queries;
    std::vector<kernels::SelectSegment> select_first;
    std::vector<kernels::SumValuesSegment> value_sums;
    std::vector<kernels::SumValuesSegment> own_sums;  // of generated rows, where values are chained
    std::vector<kernels::SampledSegment> sampled_dense;
    std::array<std::vector<kernels::SampledSegment>, 2> sampled;  // by parity of the layer
    std::vector<kernels::ValueReadsSegment> reads;                // of decode rows in slots
  };
  // The same on the device.
  struct Arrays {
    const kernels::AppendSegment* append = nullptr;
    const kernels::CompressSegment* compress = nullptr;
    const kernels::EvictionSegment* evict = nullptr;
    const kernels::TailSegment* tails = nullptr;
    std::array<const kernels::SelectSegment*, kNumRules> select{};
    std::array<const kernels::PlaceSegment*, kNumTimes> place_first{};
    std::array<const kernels::PlaceSegment*, kNumTimes> place{};
    const kernels::AttentionSegment* dense = nullptr;
    std::array<const kernels::AttentionSegment*, 2> chosen{};
    std::array<const kernels::AttentionSegment*, 2> choosing{};
    const kernels::PageRange* histories = nullptr;
    const kernels::PageRange* spills = nullptr;
    const kernels::PlaceSegment* ends = nullptr;
    const int32_t* end_blocks = nullptr;
    const int32_t* end_counts = nullptr;
    const kernels::ChannelSegment* sums = nullptr;
    const kernels::ChooseChannelsSegment* channels = nullptr;
    const kernels::ProjectSegment* project = nullptr;
    const kernels::QuerySegment* queries = nullptr;
    const kernels::SelectSegment* select_first = nullptr;
    const kernels::SumValuesSegment* value_sums = nullptr;
    const kernels::SumValuesSegment* own_sums = nullptr;
    const kernels::SampledSegment* sampled_dense = nullptr;
    std::array<const kernels::SampledSegment*, 2> sampled{};
    const kernels::ValueReadsSegment* reads = nullptr;
  };
  // What rows have chosen for one layer.
  struct Selection {
    kernels::BackendArray<int32_t> blocks;            // [max_rows][kv heads][stride]
    kernels::BackendArray<int32_t> counts;            // [max_rows][kv heads]
    kernels::BackendArray<const std::byte*> pages;    // [max_rows][kv heads][stride]
    kernels::BackendArray<const std::byte*> biases;   // likewise; empty: the model has none
    kernels::BackendArray<const std::byte*> values;   // likewise; empty: no slot has keys alone
    kernels::BackendArray<int32_t> source_slots;      // likewise
    kernels::BackendArray<const std::byte*> sums;     // likewise; empty: none are kept
    kernels::BackendArray<kernels::PageCopy> copies;  // [max_segments][kv heads][stride]; of
                                                      // halves, where there are any, twice
    kernels::BackendArray<int32_t> num_copies;        // [1]
  };

  DeviceAttention(kernels::Backend* backend, const DeviceAttentionOptions& options,
                  SequenceTables* tables, memory::DeviceTransfers* transfers);
  absl::Status Allocate();
  bool is_tiered() const { return tables_->options().max_slots > 0; }
  bool selects() const { return stride_ > 0; }
  kernels::SelectionBudget BudgetOf(const StepSegment& segment) const;
  static Rule RuleOf(AttentionPolicy policy);
  static Time TimeOf(Rule rule) { return rule == kSparseRule ? kInTime : kAhead; }
  // Of what a segment that read everything leaves in its slots.
  int end_stride() const { return std::max(stride_, tables_->options().max_slots); }
  bool Lacks(OrderingEdge edge) const { return options_.ordering.missing == edge; }
  int64_t DelayOf(OrderingEdge edge) const { return options_.ordering.DelayOf(edge); }
  void Delay(kernels::Backend* backend, OrderingEdge edge);
  Selection& SelectionOf(int layer) {
    return selections_[Lacks(OrderingEdge::kTwoLists) ? 0 : layer % 2];
  }
  size_t list_at(int row) const { return size_t(row) * options_.num_kv_heads * stride_; }

  // The piece's rows and, where it is the segment's first, all before that lack what `have` tokens
  // have.
  static kernels::Segment WithMissing(const AttentionPiece& piece, int have);
  kernels::AppendSegment AppendOf(const AttentionPiece& piece);
  kernels::CompressSegment CompressOf(const AttentionPiece& piece);
  kernels::TailSegment TailOf(const AttentionPiece& piece);
  // All blocks where the lists lead.
  kernels::AttentionSegment WholeOf(const AttentionPiece& piece);
  kernels::SelectSegment SelectOf(const AttentionPiece& piece, Rule rule);
  kernels::PlaceSegment PlaceOf(const AttentionPiece& piece, bool in_slots);
  kernels::AttentionSegment ChosenOf(const AttentionPiece& piece, int parity);
  void AddAppended(const AttentionPiece& piece);
  void AddPromptPiece(const AttentionPiece& piece);
  void AddStagedRow(const AttentionPiece& piece);
  void AddPieces(std::span<const AttentionPiece> pieces, PhaseIndex phase, Group* group);
  void AddEnd(const AttentionPiece& last, Group* group);
  void Pack(StepTables* tables);

  // Parts of RunLayer; `offset` leads from the group's segments' lists to those of the layer.
  void Append(kernels::Backend* backend, const Group& group, int layer, int64_t offset, float* qkv);
  // Of the segments; `scores` says what rows are scored by: q and all that goes with it.
  void Select(kernels::Backend* backend, const kernels::SelectSegment* segments, int num_segments,
              PhaseIndex phase, int layer, kernels::SelectBlocksParams scores);
  void SelectSparse(kernels::Backend* backend, const Group& group, PhaseIndex phase, int layer,
                    const float* qkv);
  void SelectPrompts(kernels::Backend* backend, const Group& group, int layer, const float* qkv);
  kernels::SelectBlocksParams ScoresOfQuery(const float* qkv, int layer) const;
  // Generated rows of all rules that choose ahead. qkv: of the layer; not read above layer 0.
  void SelectForetold(kernels::Backend* backend, const Group& group, int layer, const float* qkv);
  void Place(kernels::Backend* backend, Time time, Range range, int layer, int64_t offset);
  // Where the chosen blocks' pages (biases, sums) lie for good: found [rows][kv heads][stride], by
  // the tables' lists at `offset`.
  void FindSources(kernels::Backend* backend, Time time, Range range, int layer, int64_t offset,
                   const std::byte** found);
  void PlaceInPlace(Time time, Range range, int layer, int64_t offset);
  void Attend(kernels::Backend* backend, const Group& group, int layer, int64_t offset,
              const float* qkv, void* attended);
  void SelectForecast(kernels::Backend* backend, const Group& group, PhaseIndex phase, int layer,
                      const float* qkv);
  bool ChoosesAhead(int layer) const;
  void RunAhead(kernels::Backend* backend, int layer);
  void FetchNow(kernels::Backend* backend, int layer);
  void FetchPlaced(kernels::Backend* fetch, int layer);
  void RunMain(kernels::Backend* backend, int layer, float* qkv, void* attended);
  void RunStaged(size_t group, int layer, float* qkv, void* attended);
  void StartHistory(size_t group, int layer);
  void MoveIntoSlots(const Group& group, int layer, int64_t offset);
  void ReturnTail(size_t group, int layer);
  void SpillStaged(size_t group, int layer);
  int ListStaged(size_t group, int layer, int num_blocks);

  // device_eviction.cc
  bool has_biases() const { return !options_.eviction_weights.empty(); }
  kernels::EvictionSegment EvictionOf(const AttentionPiece& piece);
  const float* const* BiasesOf(int table) const;
  void AppendBiases(kernels::Backend* backend, const Group& group, int layer, int64_t offset);
  void PlaceBiases(kernels::Backend* backend, Time time, Range range, int layer);

  // device_sampled.cc
  bool draws_values() const {
    return options_.values.offered() && !options_.values.samples_queries();
  }
  bool keeps_state() const {
    return draws_values() && options_.values.estimator == ValueEstimator::kShared;
  }
  bool has_value_sums() const { return tables_->pools().layout.has_value_sums(); }
  // Slots may hold keys alone, and pages move in halves.
  bool has_halves() const { return draws_values() && is_tiered(); }
  // Of what the fetch lane copies.
  int fetched_bytes() const;
  bool Samples(const AttentionPiece& piece) const;
  kernels::SumValuesSegment ValueSumsOf(const AttentionPiece& piece);
  kernels::SumValuesSegment OwnSumOf(const AttentionPiece& piece);
  // Of blocks from first_block on, up to position `end`.
  kernels::SumValuesSegment SumsFrom(int first_block, int end, int table);
  kernels::SampledSegment SampledOf(const AttentionPiece& piece);
  kernels::SampledSegment SampledDenseOf(const AttentionPiece& piece);
  kernels::SampledSegment SampledChosenOf(const AttentionPiece& piece, int parity, bool in_slots);
  void AddSampledRow(const AttentionPiece& piece);
  void AddStagedSampledRow(const AttentionPiece& piece);
  void PackSampled(StepTables* tables, bool whole);
  size_t SampledBytesOfRow() const;
  // What PlaceBlocks says of values, too; `sources` are those of slots, or pages of the device.
  kernels::PlaceBlocksParams WithValues(kernels::PlaceBlocksParams params, bool from_host,
                                        Selection* selection) const;
  void SumValues(kernels::Backend* backend, const kernels::SumValuesSegment* segments,
                 int num_segments, int layer, int64_t offset);
  void PlaceSums(kernels::Backend* backend, Time time, Range range, int layer);
  void AttendSampled(kernels::Backend* backend, const Group& group, int layer, int64_t offset,
                     const float* qkv, void* attended);
  // Some rows of the step may read values at their slots' sources.
  bool ReadsSlots(int layer) const;
  // What they have read is counted beside the next layer, before the one after it is chosen for.
  bool CountsReadsAside(int layer) const { return ChoosesAhead(layer + 2); }
  void CountReads(kernels::Backend* backend, int layer);

  // device_infinigen.cc
  bool has_infinigen() const { return options_.infinigen_basis != nullptr; }
  void UploadBasis();
  kernels::ProjectSegment ProjectOf(const AttentionPiece& piece);
  kernels::QuerySegment QueryOf(const AttentionPiece& piece);
  void AddSums(const AttentionPiece& prompt);
  bool Approximates() const { return calls_.infinigen || staged_infinigen_; }
  void TrackInfinigen(kernels::Backend* backend, const Group& group, int layer, int64_t offset,
                      const float* qkv);
  void Approximate(kernels::Backend* backend, int layer, const void* input);
  void SelectInfinigen(kernels::Backend* backend, const Group& group, int layer, const float* qkv);
  int64_t basis_layer() const { return int64_t{options_.kv_width()} * options_.head_dim; }
  int vector_width() const { return options_.num_kv_heads * options_.num_channels(); }

  void Drive(kernels::Backend* backend, const kernels::SelectSegment* segments, int num_segments,
             PhaseIndex phase, int layer);
  int stack_stride() const { return kernels::kStackHead + tables_->options().max_blocks; }
  int64_t stacks_layer() const {
    return int64_t{2} * options_.max_segments * options_.num_kv_heads * stack_stride();
  }

  kernels::Backend* const backend_;
  const DeviceAttentionOptions options_;
  SequenceTables* const tables_;
  memory::DeviceTransfers* const transfers_;  // null: nothing is tiered
  const int stride_;                          // blocks of a selection; 0: nothing selects
  int copy_ctas_ = 0;                         // that fetch, at most
  float driven_reuse_ = -1.0f;                // of driven choices; below 0: what scores choose

  // The step under way.
  Lists lists_;
  Arrays arrays_;
  Group main_;
  std::vector<Group> staged_;
  AttentionCalls calls_;
  int rows_ = 0;
  int decode_rows_ = 0;
  int max_blocks_ = 0;
  int generated_rows_ = 0;         // those and the staged ones, before all prompts' rows
  bool in_time_ = false;           // no row chooses ahead
  bool staged_infinigen_ = false;  // some staged generated row chooses by partial keys
  bool chained_values_ = false;    // a sequence has several rows that sample with a state
  int num_staged_tails_ = 0;       // the last of lists_.tails
  unsigned stage_ = 0;             // layers of staged groups begun, all steps

  std::array<kernels::BackendArray<float>, 2> forecasts_;    // [max_rows, kv_width], by parity
  std::array<Selection, 2> selections_;                      // by parity of the layer
  kernels::BackendArray<kernels::PageCopy> history_copies_;  // [kv heads][max_blocks]
  std::array<kernels::BackendArray<kernels::PageCopy>, 2> spill_copies_;  // likewise, by stage
  kernels::BackendArray<kernels::PageCopy> end_copies_;                   // [kv heads][stride]
  kernels::BackendArray<int32_t> num_end_copies_;
  kernels::BackendArray<const std::byte*> end_pages_;  // [kv heads][stride], not read
  kernels::BackendArray<kernels::PlacementCounts> placement_;
  kernels::BackendArray<int64_t> stamps_;
  kernels::BackendArray<int32_t> granted_;
  kernels::BackendArray<int32_t> stacks_;  // [layers][stacks_layer], of choices drawn by a law

  // Rows of values, [max_rows][kv heads][stride], by parity of the layer.
  std::array<kernels::BackendArray<int32_t>, 2> entry_rows_;
  kernels::BackendArray<SampledTotals> sampled_totals_;

  // InfiniGen's; empty where there is no basis.
  kernels::BackendArray<float> basis_;                   // [layers][kv heads][head_dim][head_dim]
  kernels::BackendArray<float> sum_runs_;                // SumChannels' scratch
  std::array<kernels::BackendArray<float>, 2> queries_;  // [max_rows, q_width], of the layer of
                                                         // that parity, approximated
  std::array<kernels::BackendArray<float>, 2> vectors_;  // [max_rows, vector_width] likewise
};

}  // namespace augur::engine
