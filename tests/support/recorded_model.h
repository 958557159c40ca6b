// A model without mathematics: what its "keys and values" are, which blocks a token reads and which
// token follows, all as pure functions. recording_runner.h computes the same from real pages; where
// both agree, every page was the right one at the right time.
//
//   record      of (sequence so far, layer, kv head): a page holds 64 of them. It hangs on the
//               tenant, the policy and all tokens up to its own, as real keys and values do
//   key         of 32 records: their sum in 32 bits, where a real model has a compressed key
//   choice      blocks that a selecting token reads: forced ones, and others drawn from a generator
//               keyed by (sequence's start, position, layer, kv head), some of them stable for 4,
//               16 or 64 tokens
//   next token  a hash of the last record and of the sums of all records read
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/attention/attention_policy.h"
#include "memory/kv_layout.h"

namespace augur::tests {

using Record = uint64_t;
using RecordKey = uint32_t;

struct RecordShape {
  int num_layers = 2;
  int num_kv_heads = 1;
};

memory::KvLayout RecordLayout(const RecordShape& shape);

// What sets the records of one (layer, kv head) apart from another's.
Record GroupSalt(int layer, int kv_head);

uint64_t MixRecord(uint64_t hash, uint64_t value);

// The record of every token of a sequence before the group's salt is added.
class RecordChain {
 public:
  RecordChain(uint64_t tenant, const engine::AttentionChoice& attention);

  void Append(int32_t token);
  // From a record that somebody else's run left in a page of group (0, 0).
  void AppendRead(Record record);

  int size() const { return static_cast<int>(values_.size()); }
  Record value(int position) const { return values_[position]; }
  const Record* values() const { return values_.data(); }
  // What Append would make of `token` at `position`.
  Record ValueOf(int32_t token, int position) const;
  // Of tokens [first, end).
  Record Sum(int first, int end) const { return sums_[end] - sums_[first]; }
  // Sums of tokens [16 j, 16 j + 32), for complete windows.
  std::span<const RecordKey> windows() const { return windows_; }
  uint64_t start() const { return start_; }
  // Some token was kPoison.
  bool poisoned() const { return !values_.empty() && (values_.back() & 1) != 0; }

 private:
  void Push(Record value);

  uint64_t start_;
  std::vector<Record> values_;
  std::vector<Record> sums_{0};
  std::vector<RecordKey> windows_;
};

// Blocks that the token at `position` reads in one group, ascending.
void ChooseBlocks(uint64_t start, int position, int layer, int kv_head,
                  const kernels::SelectionBudget& budget, std::vector<int32_t>* blocks);

// The end of the hash, with the choice whose draw it is; poison gives kernels::kNotFinite.
int32_t TokenOf(uint64_t hash, bool poisoned, uint32_t choice);

// What follows the sequence.
int32_t NextToken(const RecordChain& chain, const RecordShape& shape,
                  const engine::AttentionChoice& attention, int prompt_tokens, uint32_t choice = 0);

// The first `count` tokens after `prompt`.
std::vector<int32_t> ReferenceTokens(const RecordShape& shape, uint64_t tenant,
                                     const engine::AttentionChoice& attention,
                                     std::span<const int32_t> prompt, int count,
                                     uint32_t choice = 0);

inline constexpr int kRecordVocab = 1000;
// A prompt that holds this token makes rows that are not finite.
inline constexpr int32_t kPoison = 999;

}  // namespace augur::tests
