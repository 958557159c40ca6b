// Attention of neighbouring tokens with a list each (a prefill chunk with chosen blocks): their
// lists are walked together by rising block, so that a block that many of them hold is transposed
// once. Each token counts its own groups of entries, and a row's arithmetic is that of
// attention_body.h, so it has the bits that it has alone.
#pragma once

#include "kernels/cpu/isa/attention_body.h"

namespace augur::kernels::AUGUR_ISA {
namespace {

// How far each token of a span is on its list.
struct ListCursor {
  int next[kAttentionMaxRows];         // entry
  bool takes_part[kAttentionMaxRows];  // in the current step
};

// Where the list's pages and biases have the entry.
AUGUR_INLINE int PlaceOf(const AttentionTokenList& list, int entry) {
  return list.by_block ? list.blocks[entry] : entry;
}

AUGUR_INLINE const std::byte* PageOf(const AttentionTokenList& list, int entry) {
  return list.pages[PlaceOf(list, entry)];
}

AUGUR_INLINE const float* BiasOf(const AttentionTokenList& list, int entry) {
  return list.biases == nullptr ? nullptr : list.biases[PlaceOf(list, entry)];
}

// Finds the lowest block that is next for any token, and who takes part: tokens for whom it is next
// on the same page. Gives the first of them, or -1 when all lists are through.
int NextStep(const AttentionSpan& span, int num_tokens, ListCursor& cursor) {
  int first = -1, lowest = 0;
  for (int token = 0; token < num_tokens; ++token) {
    const AttentionTokenList& list = span.lists[token];
    if (cursor.next[token] == list.num_entries) continue;
    const int block = list.blocks[cursor.next[token]];
    if (first >= 0 && block >= lowest) continue;
    first = token;
    lowest = block;
  }
  if (first < 0) return -1;
  const std::byte* page = PageOf(span.lists[first], cursor.next[first]);
  for (int token = 0; token < num_tokens; ++token) {
    const AttentionTokenList& list = span.lists[token];
    const int next = cursor.next[token];
    cursor.takes_part[token] =
        next < list.num_entries && list.blocks[next] == lowest && PageOf(list, next) == page;
  }
  return first;
}

// The tokens that take part through the block of the step, in runs of neighbours.
void AttendStep(const AttentionSpan& span, const AttentionScratch& scratch, int num_tokens,
                int first, const ListCursor& cursor) {
  int last = first, count = 0;
  for (int token = first; token < num_tokens; ++token) {
    if (!cursor.takes_part[token]) continue;
    last = token;
    ++count;
  }
  const AttentionTokenList& list = span.lists[first];
  const int entry = cursor.next[first];
  const int block = list.blocks[entry];
  const std::byte* page = PageOf(list, entry);
  const std::byte* next_page = entry + 1 < list.num_entries ? PageOf(list, entry + 1) : page;
  BlockView view =
      OpenBlock(span, scratch, block, page, next_page,
                VisibleTokens(span.first_position + last, block), count * span.group_heads);
  for (int token = first, end; token <= last; token = end) {
    end = token + 1;
    if (!cursor.takes_part[token]) continue;
    view.bias = BiasOf(span.lists[token], cursor.next[token]);
    while (end <= last && cursor.takes_part[end] &&
           BiasOf(span.lists[end], cursor.next[end]) == view.bias) {
      ++end;
    }
    AttendOpenBlock(span, scratch, view, token * span.group_heads, end * span.group_heads);
  }
}

// A token's group is full or its list is through: into its total, and a fresh group.
void CloseGroup(const AttentionSpan& span, const AttentionScratch& scratch, int token,
                bool is_first) {
  const int padded = PaddedHeadDim(span.head_dim);
  const size_t state_floats = AttentionStateFloats(span.head_dim);
  for (int row = token * span.group_heads; row < (token + 1) * span.group_heads; ++row) {
    float* group = scratch.group + row * state_floats;
    float* total = scratch.total + row * state_floats;
    if (is_first) {
      memcpy(total, group, sizeof(float) * state_floats);
    } else {
      MergeState(total, group, padded);
    }
    ResetState(group, span.head_dim);
  }
}

void AttendLists(const AttentionSpan& span) {
  const AttentionScratch scratch = Carve(span);
  const int num_tokens = span.row_end / span.group_heads;
  ListCursor cursor = {};
  LoadQueries(span, scratch);
  ResetStates(span, scratch.group);
  for (;;) {
    const int first = NextStep(span, num_tokens, cursor);
    if (first < 0) break;
    AttendStep(span, scratch, num_tokens, first, cursor);
    for (int token = first; token < num_tokens; ++token) {
      if (!cursor.takes_part[token]) continue;
      const int done = ++cursor.next[token];
      if (done % kGroupBlocks == 0 || done == span.lists[token].num_entries) {
        CloseGroup(span, scratch, token, done <= kGroupBlocks);
      }
    }
  }
  for (int row = 0; row < span.row_end; ++row) {
    EndRow(span, row, scratch.total + size_t(row) * AttentionStateFloats(span.head_dim));
  }
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
