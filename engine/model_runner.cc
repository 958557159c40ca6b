#include "engine/model_runner.h"

#include <algorithm>

namespace augur::engine {

ToldRows ToldRowsOf(const StepSegment& segment) {
  if (segment.prompt_logprobs < 0) return {};
  const int first = std::max(segment.rows.first_position, segment.tell_from);
  // The prompt's last row comes before the first generated token.
  const int end =
      std::min(segment.rows.first_position + segment.rows.num_rows, segment.prompt_tokens - 1);
  return {.first = first, .count = std::max(0, end - first)};
}

}  // namespace augur::engine
