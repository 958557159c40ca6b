// One sequence's share of a training step or of a measurement: watches the frozen model read the
// sequence (engine/attention/layer_worker.h, AttentionObserver) and, layer by layer, compares what
// the layer's own queries look at with what its Forecast head would have chosen. Gradients go to
// the heads alone; nothing of a chunk is kept but the keys of the sequence so far.
//
// The head that selects for layer l reads the input of layer l - 1, and of layer 0 for layer 0
// itself (SparDA Sec. 4.1); RoPE with the token's own position follows.
//
// Thread: one, with the pool's team inside. Ownership: owns keys of one sequence, 3 floats for each
// element of K (tokens themselves, fine and coarse windows); options.max_tokens bounds them.
// Results do not depend on the number of threads. Failure: none that a text could cause.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/attention/layer_worker.h"
#include "engine/model/model_config.h"
#include "engine/training/forecast_matrices.h"
#include "engine/training/training_text.h"
#include "kernels/cpu/forecast_teacher.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/forecast_loss.h"
#include "kernels/ops/select_blocks.h"

namespace augur::engine {

struct ForecastPassOptions {
  kernels::SelectionBudget budget;
  bool has_fine_teacher = true;  // false: the teacher scores the compressed keys themselves
  kernels::FineAlignment alignment = {};
  bool routes_model = false;  // the model attends to the teacher's choice; all rows are taught
  int row_stride = 1;         // one row of so many is compared, which one is drawn
  int asked_row_stride = 0;   // likewise of rows where a document is asked; 0: the same
  int max_tokens = 0;
  const float* cos = nullptr;  // [max_tokens, head_dim / 2], as the model rotates
  const float* sin = nullptr;
};

// Sums over (row, kv head) of one layer.
struct LayerTally {
  double loss = 0;
  int64_t rows = 0;  // that had free blocks to choose
  double recall = 0;
  int64_t choices = 0;  // that had more of them than the budget

  void Add(const LayerTally& other);
  double mean_loss() const { return rows == 0 ? 0 : loss / static_cast<double>(rows); }
  double mean_recall() const { return choices == 0 ? 0 : recall / static_cast<double>(choices); }
};

// Positions of a sequence that are compared, ascending: one of each row_stride (asked_row_stride
// in the ranges of `asked`), drawn by `seed`, where there are free blocks to choose.
void ListComparedRows(int num_tokens, uint64_t seed, std::span<const TokenRange> asked,
                      const ForecastPassOptions& options, std::vector<int32_t>* compared);

class ForecastPass final : public AttentionObserver {
 public:
  // `pool` outlives the pass.
  ForecastPass(const ModelConfig& config, const ForecastPassOptions& options,
               kernels::ThreadPool* pool);

  // Which rows are compared: ListComparedRows. `gradients` (null: only measured) gets the sums over
  // rows of the loss's derivatives, of the heads' shape; both stay the caller's.
  void BeginSequence(int num_tokens, uint64_t seed, const ForecastMatrices* heads,
                     ForecastMatrices* gradients, std::span<const TokenRange> asked = {});
  // Before each step of the model: which rows of the sequence it computes.
  void BeginChunk(int first_position, int num_rows);
  void Observe(int layer, int rows, const float* qkv, int row_stride, const float* input) override;
  std::span<const int32_t> Route(int layer, int row, int kv_head) override;

  std::span<const LayerTally> tallies() const { return tallies_; }  // [layers], of this sequence

 private:
  // Keys of a layer, [kv heads][capacity][head_dim] each.
  struct LayerKeys {
    std::vector<float> tokens;
    std::vector<float> fine;    // at t: (k_t + k_t+1) / 2
    std::vector<float> coarse;  // at j + 1: the mean of 32 tokens from 16 j
  };
  struct RowScratch {
    std::vector<float> products, shares, gradient;
    std::vector<int32_t> teacher_blocks, student_blocks, windows;
  };

  void AppendKeys(int layer, int rows, const float* qkv, int row_stride);
  void GatherInputs(const float* input);
  void Compare(int layer, const float* qkv, int row_stride);
  // The teacher's windows, [rows, kv heads, window_stride_], at `positions` of the chunk.
  void TeachRows(int layer, const float* qkv, int row_stride, std::span<const int32_t> positions,
                 std::vector<float>* windows);
  void ChooseRoutes(int layer, int rows, const float* qkv, int row_stride);
  void CompareRow(int layer, int row, int kv_head, RowScratch* scratch);
  void AddGradient(int layer);

  const ModelConfig config_;
  const ForecastPassOptions options_;
  kernels::ThreadPool* const pool_;
  kernels::ForecastTeacher teacher_;
  int64_t capacity_ = 0;  // tokens, whole blocks
  int64_t window_stride_ = 0;

  const ForecastMatrices* heads_ = nullptr;
  ForecastMatrices* gradients_ = nullptr;
  std::vector<int32_t> compared_;  // positions of the sequence, ascending
  int first_position_ = 0;
  std::vector<int32_t> positions_;  // of compared_, those in the chunk

  std::vector<LayerKeys> keys_;          // [layers]
  std::vector<float> inputs_;            // [rows compared, hidden]: what the next head reads
  std::vector<float> queries_;           // [rows compared, q width]
  std::vector<float> windows_;           // [rows compared, kv heads, window_stride]: the teacher's
  std::vector<float> forecasts_;         // [rows compared, kv width]
  std::vector<float> derivatives_;       // likewise, of the loss
  std::vector<LayerTally> row_tallies_;  // [rows compared, kv heads]
  std::vector<RowScratch> scratch_;      // [threads]

  std::vector<int32_t> routed_positions_;     // of the chunk, where there is a choice
  std::vector<float> route_windows_;          // as windows_, of those
  std::vector<std::vector<int32_t>> routes_;  // [rows of the chunk, kv heads]; empty: all blocks

  std::vector<LayerTally> tallies_;
};

}  // namespace augur::engine
