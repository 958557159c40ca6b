#include "server/client/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "server/client/printing.h"

namespace augur::client {
namespace {

constexpr int kDefaultColumns = 80;
constexpr int kMaxBar = 40;
constexpr int kMinBar = 4;

int TerminalColumns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefaultColumns;
  return size.ws_col;
}

std::string Figures(const v1::PrefillProgress& progress) {
  std::string text = WithThousands(progress.processed_tokens()) + "/" +
                     WithThousands(progress.total_tokens()) + " tokens  " +
                     FormatMilliseconds(static_cast<double>(progress.elapsed_ms()));
  if (progress.cached_tokens() > 0)
    text += "  (" + WithThousands(progress.cached_tokens()) + " cached)";
  return text;
}

}  // namespace

std::string DrawBar(const v1::PrefillProgress& progress, int columns) {
  const std::string figures = Figures(progress);
  // One column stays free: some terminals wrap when the last one is written.
  const int room = std::min(kMaxBar, columns - 1 - static_cast<int>(figures.size()) - 3);
  if (room < kMinBar) return figures.substr(0, static_cast<size_t>(std::max(0, columns - 1)));
  const double part =
      progress.total_tokens() == 0
          ? 0.0
          : std::min(1.0, 1.0 * progress.processed_tokens() / progress.total_tokens());
  const auto filled = static_cast<size_t>(part * room);
  return "[" + std::string(filled, '#') + std::string(static_cast<size_t>(room) - filled, '-') +
         "] " + figures;
}

void ProgressBar::Show(const v1::PrefillProgress& progress) {
  if (terminal_) {
    std::fprintf(stderr, "\r%s\033[K", DrawBar(progress, TerminalColumns()).c_str());
    drawn_ = true;
  } else {
    std::fprintf(stderr, "prefill %s\n", Figures(progress).c_str());
  }
  std::fflush(stderr);
}

void ProgressBar::Clear() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace augur::client
