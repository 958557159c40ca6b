// The model of recorded_model.h on real pages: every computed token leaves its records in the pages
// that LayerResidency names, every read compares the records of the page it was given, and the
// token that follows is a hash of what was read. It makes the calls of
// engine/attention/layer_worker in the same order, so a sequence that reads a wrong, stale or
// unwritten page, one whose copy has not landed, or another tenant's, is found at once (fault) or
// gets another transcript than NextToken says.
//
// Of a prefill chunk that selects every eighth row and the last one read.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/model_runner.h"
#include "memory/base/clock.h"
#include "memory/layer_residency.h"
#include "tests/support/recorded_model.h"

namespace augur::tests {

struct RecordingOptions {
  memory::ResidencyLimits limits;
  int max_top_k = 1;     // of any request
  bool prefetch = true;  // false: rows that choose ahead fetch when their layer needs them
};

class RecordingRunner final : public engine::ModelRunner {
 public:
  // The store has RecordLayout and outlives the runner. Each Run moves `clock` (may be null) by
  // ns_per_row for every row, layer by layer.
  RecordingRunner(const RecordingOptions& options, memory::KvStore* store, memory::FakeClock* clock,
                  int64_t ns_per_row);

  void Run(const engine::StepInputs& inputs, engine::StepOutputs* outputs) override;

  RecordShape shape() const;
  int64_t rows_run() const { return rows_run_; }
  // Slot groups planned: for decode rows, tiles and ends of chunks.
  int64_t group_plans() const { return group_plans_; }
  const memory::ResidencyStats& stats() const { return stats_; }
  // The first read that was not what it had to be; empty: none.
  const std::string& fault() const { return fault_; }

 private:
  // Rows of a segment under one policy.
  struct Piece {
    int segment = 0;
    kernels::Segment rows;
    bool selects = false;
    bool ahead = false;  // of its layer: chosen while the layer before runs
    bool ends_segment = false;
  };
  // A segment in the step under way.
  struct Work {
    const engine::StepSegment* segment = nullptr;
    RecordChain* chain = nullptr;
    bool chunk = false;    // tiered with more than one row
    int first_place = -1;  // among the staged blocks
    uint64_t hash = 0;     // of what its last row has read
    int first_block() const { return segment->rows.first_position / 64; }
    int end_position() const { return segment->rows.first_position + segment->rows.num_rows; }
    int end_block() const { return (end_position() + 63) / 64; }
  };
  // Choices of single rows of tiered sequences for one layer.
  struct Selection {
    std::vector<int32_t> blocks;           // [segments][kv heads][stride]
    std::vector<int32_t> counts;           // [segments][kv heads]
    std::vector<const std::byte*> pages;   // [segments][kv heads][stride]
    std::vector<const std::byte*> values;  // likewise, of tokens that sample
  };

  RecordChain* ChainOf(const engine::StepSegment& segment, const int32_t* tokens);
  void ForgetEnded();
  void BeginStep(const engine::StepInputs& inputs);
  void PrepareTail(memory::SequenceKv* kv, int position, const memory::ForcedBlocks& forced);
  void AddPieces(int index);
  void RestoreKeys(Work* work);
  void RunLayer(int layer);
  void Append(const Work& work, int layer);
  const std::byte* WholePage(memory::SequenceKv* kv, int layer, int head, int block);
  void CompressAppended(const Work& work, int layer);
  void Request(int layer, memory::TransferKind kind);
  void Attend(const Piece& piece, int layer);
  void AttendResident(const Piece& piece, int layer);
  void AttendSlots(const Piece& piece, int layer);
  void AttendStream(const Piece& piece, int layer);
  void AttendChunk(const Piece& piece, int layer);
  void BeginChunk(const Piece& piece, int layer);
  void EndChunk(const Piece& piece);
  void WriteBehind(int layer);
  int PlaceOf(const Work& work, int block) const;
  // Rows of a piece that read: offset of the one after `row`, or num_rows.
  static int NextReader(const Piece& piece, int row);

  // A generated token alone in its segment that samples its values: half of a page's records are
  // its keys, the other half its values.
  static bool Samples(const Work& work);
  // Tells the tiers how many rows of each entry the token has read.
  void NoteRows(const Work& work, int layer, const int32_t* blocks, const int32_t* counts,
                int stride);
  // Compares the records of one page and gives their sum. values: where the second half lies; null:
  // behind the first.
  Record ReadPage(const RecordChain& chain, const std::byte* page, int layer, int head, int block,
                  int end_position, const std::byte* values = nullptr);
  // Compares compressed keys of all windows that end before end_position.
  void ReadKeys(const Work& work, int layer, int end_position);
  void Fault(const std::string& what);

  memory::KvStore* const store_;
  const memory::KvPools& pools_;
  const RecordingOptions options_;
  memory::FakeClock own_clock_;
  memory::FakeClock* const clock_;
  const int64_t ns_per_row_;
  memory::ResidencyStats stats_;
  memory::LayerResidency residency_;

  std::map<memory::SequenceId, RecordChain> chains_;
  std::vector<Work> works_;
  std::vector<Piece> pieces_;
  int rows_ = 0;
  int staged_places_ = 0;
  std::array<Selection, 2> selections_;  // of the layer of that parity
  std::vector<memory::BlockRequest> requests_;
  std::vector<int32_t> choice_;
  std::vector<std::vector<int32_t>> tile_;   // [kv heads]
  std::vector<std::vector<int32_t>> grown_;  // likewise
  std::vector<std::vector<int32_t>> last_;   // choice of the last row, likewise
  std::vector<Record> sums_;                 // likewise, of the row that answers

  int64_t rows_run_ = 0;
  int64_t group_plans_ = 0;
  std::string fault_;
};

}  // namespace augur::tests
