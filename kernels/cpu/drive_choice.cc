#include "kernels/ops/drive_choice.h"

#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/kv_page.h"

namespace augur::kernels {

namespace {

// The list of row `row` of a segment, whose places are `item`'s.
void DriveRow(const DriveChoiceParams& params, int item, int row, std::vector<bool>* chosen) {
  const SelectSegment& segment = params.segments[item / params.num_kv_heads];
  const int position = segment.rows.first_position + row;
  const int blocks = position / kBlockTokens + 1;
  const SelectionBudget& budget = segment.budget;
  const int candidates = blocks - budget.init - budget.local;
  const int places = budget.top_k - budget.init - budget.local;
  AUGUR_CHECK(blocks <= kMaxDrivenBlocks);
  chosen->assign(blocks, budget.top_k >= blocks);
  for (int place = 0; candidates > places && place < places; ++place) {
    const uint64_t id = (uint64_t(params.layer) << 40) + (uint64_t(item) << 16) + place;
    int block = DrivenBlock(id, position, params.reuse, budget);
    while ((*chosen)[block]) block = budget.init + (block - budget.init + 1) % candidates;
    (*chosen)[block] = true;
  }
  const size_t list =
      size_t(segment.rows.first_row + row) * params.num_kv_heads + item % params.num_kv_heads;
  int count = 0;
  for (int block = 0; block < blocks; ++block) {
    if (!(*chosen)[block] && block >= budget.init && block < blocks - budget.local) continue;
    params.blocks[list * params.selection_stride + count++] = block;
  }
  params.counts[list] = count;
}

}  // namespace

void CpuBackend::DriveChoice(const DriveChoiceParams& params) {
  std::vector<bool> chosen;
  for (int item = 0; item < params.num_segments * params.num_kv_heads; ++item) {
    const int rows = params.segments[item / params.num_kv_heads].rows.num_rows;
    AUGUR_CHECK(rows <= params.max_rows);
    for (int row = 0; row < rows; ++row) DriveRow(params, item, row, &chosen);
  }
}

}  // namespace augur::kernels
