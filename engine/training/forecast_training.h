// Trains Forecast heads for a frozen model (SparDA Sec. 4.2): reads sequences of a text with the
// model, compares what each layer looks at with what its head foretells (forecast_pass.h), and lets
// AdamW move the heads. On the CPU, or on a device with all but AdamW there.
//
// Files: `out` is what augurd's key forecast_heads names; `out`.state is the run's state, from
// which a later run goes on, bit for bit as if it had not stopped (same number of threads or not).
// Both are written every save_every steps and at the end, whole or not at all.
//
// Thread: one, with a team of its own inside. Failure: one line (INVALID_ARGUMENT, NOT_FOUND) that
// names file or flag with what was expected and found; what was saved before stays.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/attention/attention_policy.h"
#include "engine/model/model_loader.h"
#include "engine/model/observed_prompt.h"
#include "engine/training/adamw.h"
#include "engine/training/device_forecast_pass.h"
#include "engine/training/forecast_pass.h"
#include "engine/training/training_state.h"
#include "engine/training/training_text.h"
#include "kernels/cpu/thread_pool.h"
#include "memory/base/clock.h"

namespace augur::engine {

// What the model itself attends to while it reads.
enum class TrainingRoute { kDense, kSparse, kTeacher };  // kTeacher: on the CPU

struct ForecastTrainingOptions {
  std::string model;              // folder
  std::vector<std::string> data;  // files and folders
  std::string out;
  bool resume = false;  // from out.state
  int length = 65536;   // tokens of a sequence
  DocumentCut documents = DocumentCut::kPacked;
  int64_t steps = 2000;
  int batch = 32;    // sequences of a step
  int held_out = 8;  // sequences at the end of the text that are only measured
  int64_t measure_every = 100;
  int64_t save_every = 100;
  int row_stride = 1;
  int asked_row_stride = 0;  // of rows where a document is asked; 0: row_stride
  uint64_t seed = 1;
  AttentionSettings budget;  // top_k_blocks, init_blocks, local_blocks
  bool has_fine_teacher = true;
  bool has_exact_alignment = false;
  TrainingRoute route = TrainingRoute::kDense;
  std::string device = "cpu";  // or cuda, cuda:N
  // Of the keys that all of it sees; unset: float32 on the CPU, the checkpoint's type on a device.
  std::optional<kernels::DType> kv_dtype = {};
  AdamWOptions optimizer;
  int threads = 1;
  bool by_training_ops = false;             // for tests: a device's runner and pass on the CPU
  const std::atomic<bool>* stop = nullptr;  // looked at between steps: saves and returns OK
};

struct TrainingReport {
  int64_t step = 0;  // taken so far
  int64_t steps = 0;
  bool is_held_out = false;  // else of the step's own sequences
  std::vector<LayerTally> layers = {};
  double gradient_norm = 0;
  double tokens_per_second = 0;

  double mean_loss() const;  // over layers
  double mean_recall() const;
};

using OnTrainingReport = std::function<void(const TrainingReport&)>;

class ForecastTraining {
 public:
  static absl::StatusOr<std::unique_ptr<ForecastTraining>> Create(
      const ForecastTrainingOptions& options);
  // Steps until all are taken or `stop` is set.
  absl::Status Run(const OnTrainingReport& report);

  const TrainingState& state() const { return state_; }

 private:
  explicit ForecastTraining(const ForecastTrainingOptions& options);
  absl::Status Load();
  absl::Status CreatePass();
  absl::Status ReadData();
  absl::Status BeginState();
  std::map<std::string, std::string> Settings() const;
  void Step(const OnTrainingReport& report);
  void Measure(const OnTrainingReport& report);
  void RunSequence(int index, uint64_t seed, ForecastMatrices* gradients,
                   std::vector<LayerTally>* tallies);
  absl::Status Save();

  const ForecastTrainingOptions options_;
  kernels::ThreadPool pool_;
  memory::SteadyClock clock_;
  std::unique_ptr<kernels::Backend> backend_;
  ModelConfig config_;
  kernels::SelectionBudget budget_;
  std::optional<ObservedModel> model_;
  std::optional<TrainingText> text_;
  std::optional<SequenceOrder> order_;
  std::unique_ptr<ForecastPass> pass_;               // on the CPU
  std::unique_ptr<DeviceForecastPass> device_pass_;  // or else
  ForecastMatrices gradients_;
  TrainingState state_;
};

}  // namespace augur::engine
