#include "loadtest/load_progress.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"

namespace augur::loadtest {

std::string ProgressText(const std::string& stage, const StageProgress& progress) {
  const double rate =
      progress.elapsed_s > 0 ? static_cast<double>(progress.output_tokens) / progress.elapsed_s : 0;
  return absl::StrFormat("%s: %u of %u sent, %u ended, %u bad, %.0f tokens/s, %.1f s", stage,
                         progress.sent, progress.planned, progress.ended, progress.errors, rate,
                         progress.elapsed_s);
}

LoadProgress::Mode LoadProgress::ModeOf(bool wanted) {
  if (isatty(STDERR_FILENO) == 1) return Mode::kTerminal;
  return wanted ? Mode::kLines : Mode::kOff;
}

LoadProgress::LoadProgress(Mode mode, std::string stage, const LoadRunner* runner)
    : mode_(mode), stage_(std::move(stage)), runner_(runner) {
  if (mode_ != Mode::kOff) thread_ = std::thread([this] { Print(); });
}

LoadProgress::~LoadProgress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (mode_ == Mode::kTerminal) std::fputs("\r\033[K", stderr);
}

void LoadProgress::Print() {
  const bool terminal = mode_ == Mode::kTerminal;
  const auto pause = std::chrono::milliseconds(terminal ? 500 : 5000);
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, pause, [this] { return ending_; })) {
    const std::string text = ProgressText(stage_, runner_->progress());
    std::fprintf(stderr, terminal ? "\r%s\033[K" : "%s\n", text.c_str());
    std::fflush(stderr);
  }
}

}  // namespace augur::loadtest
