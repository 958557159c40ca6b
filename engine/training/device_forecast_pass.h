// ForecastPass (forecast_pass.h) by ops of a backend (kernels/training_ops.h): nothing of a
// sequence leaves the device but its tallies, and gradients once a step. In bfloat16 with sums in
// float32 on a device; on the CPU, where tests run it, in float32.
//
// The rows of a chunk that are compared go through in pieces, whose scratch is bounded
// (kPieceBytes), layer by layer: keys and windows of the new tokens, the teacher of the layer's own
// queries, then the head's products, loss and gradient.
//
// Thread: the engine's. Ownership: owns keys of one sequence (of every layer's K two elements and a
// sixteenth in place of each), heads, gradients and scratch, all made by Create; the backend
// outlives it. Every sum has one order: the same calls give the same bits. Failure: Create names
// bytes and knob.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/device_observer.h"
#include "engine/attention/layer_worker.h"
#include "engine/training/forecast_pass.h"
#include "kernels/backend_array.h"
#include "kernels/training_ops.h"

namespace augur::engine {

// What a step's time goes to, on the device's own clock.
enum class TrainingPart { kBackbone, kTeacher, kStudent };
inline constexpr int kTrainingParts = 3;

class DeviceForecastPass final : public AttentionObserver, public DeviceObserver {
 public:
  // chunk_tokens: rows of one Observe at most. timed: parts are measured.
  static absl::StatusOr<std::unique_ptr<DeviceForecastPass>> Create(
      kernels::Backend* backend, const ModelConfig& config, const ForecastPassOptions& options,
      int chunk_tokens, bool timed = false);

  // A copy of them, rounded, is what sequences are compared with from now on.
  void SetHeads(const ForecastMatrices& heads);

  // Which rows are compared: ListComparedRows.
  void BeginSequence(int num_tokens, uint64_t seed, bool with_gradients,
                     std::span<const TokenRange> asked = {});
  void BeginChunk(int first_position, int num_rows);
  void Observe(int layer, int rows, const float* qkv, int row_stride, const float* input) override;
  void ObserveOnDevice(int layer, int rows, const float* qkv, int row_stride, const void* input,
                       kernels::DType input_dtype) override;
  // Waits; [layers], of this sequence.
  std::span<const LayerTally> EndSequence();

  // Sums of the loss's derivatives since the last call, over all sequences with gradients.
  void TakeGradients(ForecastMatrices* gradients);

  // Seconds of all sequences so far, where they are timed.
  double seconds(TrainingPart part) const { return seconds_[static_cast<int>(part)]; }
  int64_t bytes() const { return bytes_; }  // of everything that it has allocated

 private:
  struct LayerKeys {
    kernels::BackendArray<std::byte> tokens, fine, coarse;
  };
  // Compared rows of the chunk under way.
  struct Piece {
    int first = 0;  // of positions_
    int rows = 0;
    int last_position = 0;
  };

  DeviceForecastPass(kernels::Backend* backend, const ModelConfig& config,
                     const ForecastPassOptions& options, int chunk_tokens, bool timed);
  absl::Status Allocate();
  void ClearGradients();
  void GatherInputs(const void* input, kernels::DType input_dtype);
  void Teach(int layer, const Piece& piece, const float* qkv, int row_stride);
  void Compare(int layer, const Piece& piece);
  void Stamp(TrainingPart part);
  size_t Elements(size_t count) const { return count * kernels::BytesOf(dtype_); }
  std::byte* InputsOf(const Piece& piece) {
    return inputs_.data() + Elements(size_t(piece.first) * config_.hidden_size);
  }

  kernels::Backend* const backend_;
  kernels::TrainingOps* const ops_;
  const ModelConfig config_;
  const ForecastPassOptions options_;
  const int chunk_tokens_;
  const bool timed_;
  const kernels::DType dtype_;
  const int64_t capacity_;       // tokens
  const int64_t window_stride_;  // of a row's windows
  const int most_rows_;          // compared of a chunk
  const int piece_rows_;
  int64_t bytes_ = 0;

  bool with_gradients_ = false;
  std::vector<int32_t> compared_;  // positions of the sequence, ascending
  int first_position_ = 0;
  std::vector<int32_t> positions_, row_ids_;  // of compared_, those in the chunk
  std::vector<Piece> pieces_;
  std::vector<LayerTally> tallies_;

  std::vector<LayerKeys> keys_;                                   // [layers]
  std::vector<kernels::BackendArray<std::byte>> heads_;           // [layers] [kv width, hidden]
  std::vector<kernels::BackendArray<float>> gradients_;           // likewise
  kernels::BackendArray<int32_t> device_positions_;               // [most_rows_]
  kernels::BackendArray<int32_t> device_row_ids_;                 // likewise
  kernels::BackendArray<std::byte> inputs_;                       // [most_rows_, hidden]
  kernels::BackendArray<std::byte> queries_;                      // [piece_rows_, q width]
  kernels::BackendArray<float> teacher_scratch_;                  // TeacherScratchFloats
  kernels::BackendArray<float> windows_;                          // [piece_rows_, kv heads, stride]
  kernels::BackendArray<float> products_;                         // likewise
  kernels::BackendArray<std::byte> product_gradients_;            // likewise
  kernels::BackendArray<float> forecast_products_;                // [piece_rows_, kv width]
  kernels::BackendArray<std::byte> forecasts_;                    // likewise
  kernels::BackendArray<float> derivatives_;                      // likewise
  kernels::BackendArray<std::byte> turned_;                       // likewise
  kernels::BackendArray<kernels::ForecastRowTally> row_tallies_;  // [piece_rows_, kv heads]
  kernels::BackendArray<kernels::ForecastTally> device_tallies_;  // [layers]
  kernels::BackendArray<int64_t> stamps_;

  std::vector<TrainingPart> stamped_;  // what each stamp ends
  std::vector<int64_t> stamp_values_;
  std::array<double, kTrainingParts> seconds_{};
  std::vector<std::byte> host_;  // what is copied to the device
};

}  // namespace augur::engine
