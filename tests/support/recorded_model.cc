#include "tests/support/recorded_model.h"

#include <algorithm>
#include <numeric>

#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"
#include "kernels/ops/sample_tokens.h"

namespace augur::tests {
namespace {

using kernels::kBlockTokens;
using kernels::kWindowStride;
using kernels::kWindowTokens;

}  // namespace

memory::KvLayout RecordLayout(const RecordShape& shape) {
  return {.num_layers = shape.num_layers,
          .num_kv_heads = shape.num_kv_heads,
          .page_bytes = kBlockTokens * sizeof(Record),
          .key_bytes = kernels::kBlockWindows * sizeof(RecordKey)};
}

uint64_t MixRecord(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ull;
  hash *= 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 32);
}

Record GroupSalt(int layer, int kv_head) {
  return MixRecord(0x5a17, static_cast<uint64_t>(layer) * 64 + kv_head);
}

RecordChain::RecordChain(uint64_t tenant, const engine::AttentionChoice& attention) {
  start_ = MixRecord(0, tenant);
  for (const int part : {static_cast<int>(attention.prefill), static_cast<int>(attention.decode),
                         attention.budget.top_k, attention.budget.init, attention.budget.local,
                         attention.dense_len}) {
    start_ = MixRecord(start_, static_cast<uint64_t>(part));
  }
  start_ &= ~uint64_t{1};
}

// The lowest bit is set from the first poison on.
Record RecordChain::ValueOf(int32_t token, int position) const {
  const Record before = position == 0 ? start_ : values_[position - 1];
  const Record value = MixRecord(before, static_cast<uint64_t>(token)) & ~uint64_t{1};
  return value | (before & 1) | (token == kPoison ? 1 : 0);
}

void RecordChain::Append(int32_t token) { Push(ValueOf(token, size())); }

void RecordChain::AppendRead(Record record) { Push(record - GroupSalt(0, 0)); }

void RecordChain::Push(Record value) {
  values_.push_back(value);
  sums_.push_back(sums_.back() + value);
  if (size() >= kWindowTokens && size() % kWindowStride == 0) {
    windows_.push_back(static_cast<RecordKey>(Sum(size() - kWindowTokens, size())));
  }
}

void ChooseBlocks(uint64_t start, int position, int layer, int kv_head,
                  const kernels::SelectionBudget& budget, std::vector<int32_t>* blocks) {
  const int end = position / kBlockTokens + 1;
  blocks->clear();
  if (budget.top_k >= end) {
    blocks->resize(end);
    std::iota(blocks->begin(), blocks->end(), 0);
    return;
  }
  const int local_begin = end - budget.local;
  for (int block = 0; block < budget.init; ++block) blocks->push_back(block);
  const uint64_t group = MixRecord(start, static_cast<uint64_t>(layer) * 64 + kv_head);
  for (int pick = 0; pick < budget.top_k - budget.init - budget.local; ++pick) {
    const int stable = 2 * (pick % 4);  // binary digits of the position that do not count
    const uint64_t drawn = MixRecord(group + pick, static_cast<uint64_t>(position >> stable));
    blocks->push_back(budget.init +
                      static_cast<int32_t>((drawn >> 24) % (local_begin - budget.init)));
  }
  std::sort(blocks->begin() + budget.init, blocks->end());
  blocks->erase(std::unique(blocks->begin(), blocks->end()), blocks->end());
  for (int block = local_begin; block < end; ++block) blocks->push_back(block);
}

int32_t TokenOf(uint64_t hash, bool poisoned, uint32_t choice) {
  if (poisoned) return kernels::kNotFinite;
  if (choice > 0) hash = MixRecord(hash, choice);
  return static_cast<int32_t>((hash >> 20) % (kPoison - 1));
}

int32_t NextToken(const RecordChain& chain, const RecordShape& shape,
                  const engine::AttentionChoice& attention, int prompt_tokens, uint32_t choice) {
  const int tokens = chain.size();
  const bool dense =
      engine::PolicyAt(attention, tokens - 1, prompt_tokens) == engine::AttentionPolicy::kDense;
  uint64_t hash = chain.value(tokens - 1);
  std::vector<int32_t> blocks;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      Record sum = 0;
      int records = 0;
      if (dense) {
        sum = chain.Sum(0, tokens);
        records = tokens;
      } else {
        ChooseBlocks(chain.start(), tokens - 1, layer, head, attention.budget, &blocks);
        for (const int32_t block : blocks) {
          const int first = block * kBlockTokens;
          const int end = std::min(tokens, first + kBlockTokens);
          sum += chain.Sum(first, end);
          records += end - first;
        }
      }
      hash = MixRecord(hash, sum + records * GroupSalt(layer, head));
    }
  }
  return TokenOf(hash, chain.poisoned(), choice);
}

std::vector<int32_t> ReferenceTokens(const RecordShape& shape, uint64_t tenant,
                                     const engine::AttentionChoice& attention,
                                     std::span<const int32_t> prompt, int count, uint32_t choice) {
  RecordChain chain(tenant, attention);
  for (const int32_t token : prompt) chain.Append(token);
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(NextToken(chain, shape, attention, static_cast<int>(prompt.size()), choice));
    chain.Append(tokens.back());
  }
  return tokens;
}

}  // namespace augur::tests
