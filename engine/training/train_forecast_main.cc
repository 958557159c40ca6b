// augur-train-forecast: makes the file that augurd's key forecast_heads names, from a model and a
// text. Exit status: 0 trained; 2 a wrong command line; 1 everything else, with one line that says
// why; 130 interrupted, after the state was saved.
#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "engine/training/forecast_training.h"

namespace augur::engine {
namespace {

std::atomic<bool> stop{false};
void OnSignal(int) { stop.store(true); }

struct Flags {
  ForecastTrainingOptions options;
  std::string documents = "packed";
  std::string teacher = "fine";
  std::string alignment = "released";
  std::string route = "dense";
  std::string compute;  // not given
  std::string log;
  int top_k = 0, init = -1, local = 0;  // not given
};

void AddRunFlags(CLI::App* app, Flags* flags) {
  ForecastTrainingOptions* options = &flags->options;
  app->add_option("--model", options->model, "Hugging Face folder, with tokenizer.json")
      ->type_name("DIR")
      ->required();
  app->add_option("--data", options->data,
                  "UTF-8 text; *.jsonl: the key \"text\" of each line; a folder: its *.txt, *.md\n"
                  "and *.jsonl files")
      ->type_name("FILE|DIR ...")
      ->required();
  app->add_option("--out", options->out,
                  "Heads to write (safetensors); the run's state stands beside it, in FILE.state")
      ->type_name("FILE")
      ->required();
  app->add_flag("--resume", options->resume, "Go on from FILE.state, bit for bit");
  app->add_option("--length", options->length, "Tokens of a sequence")->capture_default_str();
  app->add_option("--documents", flags->documents,
                  "How documents become sequences: packed one behind the other and cut, or whole:\n"
                  "one that does not fit begins the next sequence")
      ->check(CLI::IsMember({"packed", "whole"}))
      ->capture_default_str();
  app->add_option("--steps", options->steps, "Optimizer steps")->capture_default_str();
  app->add_option("--batch", options->batch, "Sequences of a step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--held-out", options->held_out,
                  "Sequences at the end of the text that are measured, not trained on")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_option("--measure-every", options->measure_every, "Steps between measurements")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app->add_option("--save-every", options->save_every, "Steps between saves")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app->add_option("--seed", options->seed, "Fixes first weights, order and rows")
      ->capture_default_str();
  app->add_option("--device", options->device, "What computes: cpu, cuda or cuda:N")
      ->capture_default_str();
  app->add_option("--threads", options->threads, "Threads that compute on the CPU")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--log", flags->log, "Appends a JSON object for every step and measurement")
      ->type_name("FILE");
}

void AddLossFlags(CLI::App* app, Flags* flags) {
  ForecastTrainingOptions* options = &flags->options;
  app->add_option("--row-stride", options->row_stride,
                  "Compare one row of so many, drawn; all are read by the model")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--asked-row-stride", options->asked_row_stride,
                  "Likewise of the rows from a document's first question on, as\n*.jsonl says it "
                  "(\"asked_from\"); 0: the same")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_option("--top-k-blocks", flags->top_k, "Blocks of a choice; the model's own or 25");
  app->add_option("--init-blocks", flags->init, "First blocks, always chosen; likewise or 1");
  app->add_option("--local-blocks", flags->local, "Last blocks, always chosen; likewise or 8");
  app->add_option("--teacher", flags->teacher,
                  "What the teacher scores: pairs of keys, or the\ncompressed keys (ablation)")
      ->check(CLI::IsMember({"fine", "coarse"}))
      ->capture_default_str();
  app->add_option("--alignment", flags->alignment,
                  "How pairs are gathered to windows: 17 from 1 before,\nor the 31 inside")
      ->check(CLI::IsMember({"released", "exact"}))
      ->capture_default_str();
  app->add_option("--route", flags->route,
                  "How the model itself attends: to all, to its own choice, or to\nthe teacher's "
                  "(ablations; the last on the CPU)")
      ->check(CLI::IsMember({"dense", "sparse", "teacher"}))
      ->capture_default_str();
  app->add_option("--compute", flags->compute,
                  "Type in which keys and values are kept: on the CPU fp32\n(the default) or bf16; "
                  "on a device bf16, or the checkpoint's")
      ->check(CLI::IsMember({"fp32", "bf16"}));
}

void AddOptimizerFlags(CLI::App* app, AdamWOptions* adamw) {
  app->add_option("--learning-rate", adamw->learning_rate)->capture_default_str();
  app->add_option("--warmup-steps", adamw->warmup_steps)->capture_default_str();
  app->add_option("--cooldown-steps", adamw->cooldown_steps,
                  "The rate falls evenly to nothing over the last so many\nof --steps")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app->add_option("--beta1", adamw->beta1)->capture_default_str();
  app->add_option("--beta2", adamw->beta2)->capture_default_str();
  app->add_option("--epsilon", adamw->epsilon)->capture_default_str();
  app->add_option("--weight-decay", adamw->weight_decay)->capture_default_str();
  app->add_option("--clip-norm", adamw->clip_norm, "0: off")->capture_default_str();
}

void Resolve(Flags* flags) {
  ForecastTrainingOptions& options = flags->options;
  if (flags->top_k > 0) options.budget.top_k_blocks = flags->top_k;
  if (flags->init >= 0) options.budget.init_blocks = flags->init;
  if (flags->local > 0) options.budget.local_blocks = flags->local;
  options.documents = flags->documents == "whole" ? DocumentCut::kWhole : DocumentCut::kPacked;
  options.has_fine_teacher = flags->teacher == "fine";
  options.has_exact_alignment = flags->alignment == "exact";
  if (flags->route == "sparse") options.route = TrainingRoute::kSparse;
  if (flags->route == "teacher") options.route = TrainingRoute::kTeacher;
  if (flags->compute == "bf16") options.kv_dtype = kernels::DType::kBF16;
  if (flags->compute == "fp32") options.kv_dtype = kernels::DType::kF32;
  options.optimizer.total_steps = options.steps;
  options.stop = &stop;
}

void Print(const TrainingReport& report) {
  std::fprintf(stderr, "step %lld/%lld  %s  loss %.4f  recall %.4f",
               static_cast<long long>(report.step), static_cast<long long>(report.steps),
               report.is_held_out ? "held out" : "trained", report.mean_loss(),
               report.mean_recall());
  if (report.is_held_out) {
    std::fputs("  by layer", stderr);
    for (const LayerTally& layer : report.layers) {
      std::fprintf(stderr, " %.3f/%.3f", layer.mean_loss(), layer.mean_recall());
    }
    std::fputc('\n', stderr);
  } else {
    std::fprintf(stderr, "  norm %.3f  %.0f tokens/s\n", report.gradient_norm,
                 report.tokens_per_second);
  }
}

void Log(std::FILE* file, const TrainingReport& report) {
  nlohmann::ordered_json json = {{"step", report.step},
                                 {"held_out", report.is_held_out},
                                 {"loss", report.mean_loss()},
                                 {"recall", report.mean_recall()}};
  if (report.is_held_out) {
    for (const LayerTally& layer : report.layers) {
      json["layers"].push_back({{"loss", layer.mean_loss()}, {"recall", layer.mean_recall()}});
    }
  } else {
    json["gradient_norm"] = report.gradient_norm;
    json["tokens_per_second"] = report.tokens_per_second;
  }
  std::fprintf(file, "%s\n", json.dump().c_str());
  std::fflush(file);
}

int Fail(const absl::Status& status) {
  const std::string message(status.message());
  std::fprintf(stderr, "augur-train-forecast: %s\n", message.c_str());
  return 1;
}

int Train(const Flags& flags) {
  std::FILE* log = nullptr;
  if (!flags.log.empty()) {
    log = std::fopen(flags.log.c_str(), "a");
    if (log == nullptr) return Fail(absl::NotFoundError(flags.log + ": cannot be written"));
  }
  auto training = ForecastTraining::Create(flags.options);
  absl::Status status = training.status();
  if (status.ok()) {
    status = (*training)->Run([&](const TrainingReport& report) {
      Print(report);
      if (log != nullptr) Log(log, report);
    });
  }
  if (log != nullptr) std::fclose(log);
  if (!status.ok()) return Fail(status);
  std::printf("%s: written after %lld steps\n", flags.options.out.c_str(),
              static_cast<long long>((*training)->state().optimizer.steps));
  return stop.load() ? 130 : 0;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Trains Forecast heads for a frozen model: which blocks of history the next layer "
      "will read.");
  Flags flags;
  const unsigned cpus = std::thread::hardware_concurrency();
  flags.options.threads = cpus == 0 ? 1 : static_cast<int>(cpus);
  AddRunFlags(&app, &flags);
  AddLossFlags(&app, &flags);
  AddOptimizerFlags(&app, &flags.options.optimizer);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::fprintf(stderr, "augur-train-forecast: %s (see --help)\n", error.what());
    return 2;
  }
  Resolve(&flags);
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  return Train(flags);
}

}  // namespace
}  // namespace augur::engine

int main(int argc, char** argv) { return augur::engine::Main(argc, argv); }
