#include "kernels/cpu/forecast_loss.h"

#include <numeric>

#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"

namespace augur::kernels {

void ChooseFreeBlocks(std::span<const float> scores, const FreeBlocks& free,
                      std::vector<int32_t>* blocks) {
  blocks->resize(free.candidates());
  std::iota(blocks->begin(), blocks->end(), free.begin);
  if (!free.is_choice()) return;
  const int num_windows = static_cast<int>(scores.size());
  const auto score_of = [&](int32_t block) {
    const int first = std::max(kBlockWindows * block - 1, 0);
    const int end = std::min(kBlockWindows * (block + 1), num_windows);
    return *std::max_element(scores.begin() + first, scores.begin() + end);
  };
  const auto is_better = [&](int32_t a, int32_t b) {
    const float of_a = score_of(a), of_b = score_of(b);
    return of_a > of_b || (of_a == of_b && a < b);
  };
  std::nth_element(blocks->begin(), blocks->begin() + free.wanted, blocks->end(), is_better);
  blocks->resize(free.wanted);
  std::sort(blocks->begin(), blocks->end());
}

void WindowsOf(std::span<const int32_t> blocks, int num_windows, std::vector<int32_t>* windows) {
  windows->clear();
  for (const int32_t block : blocks) {
    const int first = kBlockWindows * block;
    const int end = std::min(first + kBlockWindows, num_windows);
    for (int window = first; window < end; ++window) windows->push_back(window);
  }
}

}  // namespace augur::kernels
