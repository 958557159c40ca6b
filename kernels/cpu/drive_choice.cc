#include "kernels/ops/drive_choice.h"

#include <algorithm>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/kv_page.h"

namespace augur::kernels {

namespace {

// A row's list, whose places are `item`'s.
struct DrivenList {
  int item = 0;
  int position = 0;
  SelectionBudget budget;

  int blocks() const { return position / kBlockTokens + 1; }
  int candidates() const { return blocks() - budget.init - budget.local; }
  int places() const { return budget.top_k - budget.init - budget.local; }
};

void ChooseAlike(const DriveChoiceParams& params, const DrivenList& list,
                 std::vector<bool>* chosen) {
  const int init = list.budget.init;
  for (int place = 0; place < list.places(); ++place) {
    int block = DrivenBlock(DrivenPlace(params.layer, list.item, place), list.position,
                            params.reuse, list.budget);
    while ((*chosen)[block]) block = init + (block - init + 1) % list.candidates();
    (*chosen)[block] = true;
  }
}

// What is chosen comes to the stack's top, in the order in which it stood there.
void ChooseByLaw(const DriveChoiceParams& params, const DrivenList& list,
                 std::vector<bool>* chosen) {
  const int candidates = list.candidates(), places = list.places(), position = list.position;
  AUGUR_CHECK(candidates + kStackHead <= params.stack_stride);
  int32_t* const halves = params.stacks + size_t(list.item) * 2 * params.stack_stride;
  const int32_t* const from = halves + ((position - 1) & 1) * params.stack_stride;
  int32_t* const to = halves + (position & 1) * params.stack_stride;
  const int known = from[0] == position - 1 ? std::min<int>(from[1], candidates) : 0;
  std::vector<bool> taken(candidates);
  for (int place = 0; place < places; ++place) {
    taken[place] = StaysChosen(DrivenPlace(params.layer, list.item, place), position, params.reuse);
  }
  const std::vector<bool> stays = taken;
  for (int place = 0; place < places; ++place) {
    if (stays[place]) continue;
    int depth = LawDepth(params.law, DrivenPlace(params.layer, list.item, place), position, places,
                         candidates);
    while (taken[depth]) depth = (depth + 1) % candidates;
    taken[depth] = true;
  }
  int top = 0, below = places;
  for (int depth = 0; depth < candidates; ++depth) {
    int32_t block = list.budget.init + depth;  // new ones, behind all others
    if (known == 0) {
      block = FirstStackBlock(DrivenPlace(params.layer, list.item, 0), depth, candidates,
                              list.budget.init);
    } else if (depth < known) {
      block = from[kStackHead + depth];
    }
    to[kStackHead + (taken[depth] ? top++ : below++)] = block;
    if (taken[depth]) (*chosen)[block] = true;
  }
  to[0] = position;
  to[1] = candidates;
}

void DriveRow(const DriveChoiceParams& params, int item, int row, std::vector<bool>* chosen) {
  const SelectSegment& segment = params.segments[item / params.num_kv_heads];
  const DrivenList list{item, segment.rows.first_position + row, segment.budget};
  const int blocks = list.blocks();
  AUGUR_CHECK(blocks <= kMaxDrivenBlocks);
  chosen->assign(blocks, list.budget.top_k >= blocks);
  if (list.candidates() > list.places()) {
    params.stacks == nullptr ? ChooseAlike(params, list, chosen)
                             : ChooseByLaw(params, list, chosen);
  }
  const size_t at =
      size_t(segment.rows.first_row + row) * params.num_kv_heads + item % params.num_kv_heads;
  int count = 0;
  for (int block = 0; block < blocks; ++block) {
    const bool free = block >= list.budget.init && block < blocks - list.budget.local;
    if (free && !(*chosen)[block]) continue;
    params.blocks[at * params.selection_stride + count++] = block;
  }
  params.counts[at] = count;
}

}  // namespace

void CpuBackend::DriveChoice(const DriveChoiceParams& params) {
  AUGUR_CHECK(params.stacks == nullptr || params.max_rows == 1);
  std::vector<bool> chosen;
  for (int item = 0; item < params.num_segments * params.num_kv_heads; ++item) {
    const int rows = params.segments[item / params.num_kv_heads].rows.num_rows;
    AUGUR_CHECK(rows <= params.max_rows);
    for (int row = 0; row < rows; ++row) DriveRow(params, item, row, &chosen);
  }
}

}  // namespace augur::kernels
