#include "memory/kv_manager.h"

#include <algorithm>

#include "kernels/check.h"

namespace augur::memory {

KvManager::KvManager(int num_blocks) : blocks_(num_blocks) {
  AUGUR_CHECK(num_blocks > 0);
  free_.reserve(num_blocks);
  for (BlockId id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
  counts_ = {.total = num_blocks, .free = num_blocks, .cached = 0, .held = 0};
}

int KvManager::CountCached(std::span<const BlockKey> keys) const {
  const std::lock_guard<std::mutex> lock(index_mutex_);
  int hits = 0;
  for (const BlockKey& key : keys) {
    if (!index_.contains(key)) break;
    ++hits;
  }
  return hits;
}

int KvManager::CostOf(std::span<const BlockKey> keys, int hits, int total_blocks) const {
  AUGUR_CHECK(hits <= static_cast<int>(keys.size()) && hits <= total_blocks);
  int cost = total_blocks - hits;
  for (int i = 0; i < hits; ++i) {
    const auto found = index_.find(keys[i]);
    AUGUR_CHECK(found != index_.end());
    if (blocks_[found->second].references == 0) ++cost;
  }
  return cost;
}

bool KvManager::Open(SequenceId id, std::span<const BlockKey> keys, int hits, int total_blocks) {
  AUGUR_CHECK(!tables_.contains(id));
  if (CostOf(keys, hits, total_blocks) > available()) return false;
  std::vector<BlockId>& table = tables_[id];
  table.reserve(total_blocks);
  // Hits first: while they are referenced, making room for the rest cannot evict them.
  for (int i = 0; i < hits; ++i) {
    const BlockId block = index_.find(keys[i])->second;
    AddReference(block);
    table.push_back(block);
  }
  while (static_cast<int>(table.size()) < total_blocks) table.push_back(Take());
  return true;
}

bool KvManager::Extend(SequenceId id, int total_blocks) {
  std::vector<BlockId>& table = tables_.at(id);
  const int missing = total_blocks - static_cast<int>(table.size());
  if (missing > available()) return false;
  for (int i = 0; i < missing; ++i) table.push_back(Take());
  return true;
}

void KvManager::Release(SequenceId id) {
  const auto found = tables_.find(id);
  AUGUR_CHECK(found != tables_.end());
  // Last block first: the end of a prefix is evicted before its beginning, without which it is no
  // use.
  for (auto block = found->second.rbegin(); block != found->second.rend(); ++block) {
    DropReference(*block);
  }
  tables_.erase(found);
}

void KvManager::Publish(SequenceId id, int block_index, const BlockKey& key) {
  const BlockId block = tables_.at(id).at(block_index);
  AUGUR_CHECK(blocks_[block].references > 0);
  if (blocks_[block].withdrawn) return;
  if (blocks_[block].indexed) {
    AUGUR_CHECK(blocks_[block].key == key);
    return;
  }
  const std::lock_guard<std::mutex> lock(index_mutex_);
  if (!index_.emplace(key, block).second) return;
  blocks_[block].indexed = true;
  blocks_[block].key = key;
}

void KvManager::Withdraw(SequenceId id, int block_index) {
  Block& block = blocks_[tables_.at(id).at(block_index)];
  if (!block.indexed) return;  // private: its key is another block's
  const std::lock_guard<std::mutex> lock(index_mutex_);
  AUGUR_CHECK(index_.erase(block.key) == 1);
  block.indexed = false;
  block.withdrawn = true;
}

std::span<const BlockId> KvManager::table(SequenceId id) const { return tables_.at(id); }

int KvManager::CountUnshared(SequenceId id) const {
  int unshared = 0;
  for (const BlockId block : tables_.at(id)) unshared += blocks_[block].references == 1 ? 1 : 0;
  return unshared;
}

void KvManager::ClearCache() {
  while (!cached_.empty()) {
    free_.push_back(Evict());
    ++counts_.free;
  }
}

BlockId KvManager::Evict() {
  const BlockId id = cached_.front();
  cached_.pop_front();
  --counts_.cached;
  const std::lock_guard<std::mutex> lock(index_mutex_);
  AUGUR_CHECK(index_.erase(blocks_[id].key) == 1);
  blocks_[id].indexed = false;
  return id;
}

BlockId KvManager::Take() {
  AUGUR_CHECK(available() > 0);
  BlockId id;
  if (free_.empty()) {
    id = Evict();
  } else {
    id = free_.back();
    free_.pop_back();
    --counts_.free;
  }
  AUGUR_CHECK(blocks_[id].references == 0 && !blocks_[id].indexed);
  blocks_[id].references = 1;
  blocks_[id].withdrawn = false;
  ++counts_.held;
  return id;
}

void KvManager::AddReference(BlockId id) {
  Block& block = blocks_[id];
  AUGUR_CHECK(block.indexed);
  if (block.references++ == 0) {
    cached_.erase(block.cached_place);
    --counts_.cached;
    ++counts_.held;
  }
}

void KvManager::DropReference(BlockId id) {
  Block& block = blocks_[id];
  AUGUR_CHECK(block.references > 0);
  if (--block.references > 0) return;
  --counts_.held;
  if (block.indexed) {
    block.cached_place = cached_.insert(cached_.end(), id);
    ++counts_.cached;
  } else {
    free_.push_back(id);
    ++counts_.free;
  }
}

void KvManager::CheckInvariants() const {
  std::vector<int> references(blocks_.size(), 0);
  for (const auto& [id, table] : tables_) {
    for (const BlockId block : table) ++references.at(block);
  }
  int held = 0;
  for (size_t id = 0; id < blocks_.size(); ++id) {
    const Block& block = blocks_[id];
    AUGUR_CHECK(block.references == references[id]);
    AUGUR_CHECK(references[id] <= 1 || block.indexed || block.withdrawn);
    if (references[id] > 0) ++held;
    if (block.indexed) {
      const auto found = index_.find(block.key);
      AUGUR_CHECK(found != index_.end() && found->second == static_cast<BlockId>(id));
    }
  }
  for (const BlockId id : free_) AUGUR_CHECK(references[id] == 0 && !blocks_[id].indexed);
  for (const BlockId id : cached_) AUGUR_CHECK(references[id] == 0 && blocks_[id].indexed);
  AUGUR_CHECK(counts_.held == held);
  AUGUR_CHECK(counts_.free == static_cast<int>(free_.size()));
  AUGUR_CHECK(counts_.cached == static_cast<int>(cached_.size()));
  AUGUR_CHECK(counts_.free + counts_.cached + counts_.held == counts_.total);
}

}  // namespace augur::memory
