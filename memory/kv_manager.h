// Which sequence holds which KV blocks: reference counts, the prefix cache and its eviction.
// Bookkeeping only, of one pool: frames of the device or blocks of the host (kv_store.h has both).
//
// A block is in exactly one state:
//   free    in no table, no content worth keeping
//   held    in at least one sequence's table; its reference count is the number of tables
//           (one that was withdrawn while shared is shared to the end)
//   cached  in no table, but its content is in the prefix index: handed out again on a hit, evicted
//           (least recently released first) when free blocks run out
// A block in the index is full and never written again.
//
// Thread: the engine's alone, but for CountCached, which any thread may call (the index has a lock
// of its own). Ownership: sequences are named by id; the manager owns tables. Failure: Open and
// Extend answer false and change nothing; everything that would be our own mistake is a CHECK.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory/block_key.h"

namespace augur::memory {

using BlockId = int32_t;
using SequenceId = uint64_t;

struct KvCounts {
  int total = 0;
  int free = 0;
  int cached = 0;
  int held = 0;
};

class KvManager {
 public:
  explicit KvManager(int num_blocks);

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  // Blocks that Open could still hand out: free and cached.
  int available() const { return counts_.free + counts_.cached; }
  KvCounts counts() const { return counts_; }

  // How many of `keys`, from the first on without a gap, are in the index now. Any thread.
  int CountCached(std::span<const BlockKey> keys) const;

  // What admitting a sequence of `total_blocks` would take from available(), its first `hits`
  // blocks coming from the index: new blocks, and hits that no table holds at present.
  int CostOf(std::span<const BlockKey> keys, int hits, int total_blocks) const;

  // Opens a table for `id`: the first `hits` blocks from the index, the rest new. All or nothing.
  bool Open(SequenceId id, std::span<const BlockKey> keys, int hits, int total_blocks);
  // Makes the table of `id` at least `total_blocks` long. All or nothing.
  bool Extend(SequenceId id, int total_blocks);
  // Closes the table. Blocks in the index become cached, the others free.
  void Release(SequenceId id);

  // Puts a full, completely written block into the index. A key that is there already stays with
  // its first block; this one remains private to the sequence. One that was withdrawn stays out.
  void Publish(SequenceId id, int block_index, const BlockKey& key);

  // Takes the block out of the index, whoever else holds it: from now on nobody hits it.
  void Withdraw(SequenceId id, int block_index);

  std::span<const BlockId> table(SequenceId id) const;
  // Blocks of `id` that no other table holds: what Release would give back.
  int CountUnshared(SequenceId id) const;
  int num_tables() const { return static_cast<int>(tables_.size()); }

  // Drops every cached block from the index.
  void ClearCache();

  // Recounts everything from the tables and CHECKs reference counts,
  // conservation, no block in two tables unless it is in the index. O(blocks + table entries):
  // tests, the simulation, idle moments.
  void CheckInvariants() const;

 private:
  struct Block {
    int references = 0;
    bool indexed = false;
    bool withdrawn = false;                     // was indexed, may be in several tables
    BlockKey key;                               // valid when indexed
    std::list<BlockId>::iterator cached_place;  // valid when cached (indexed and no references)
  };

  BlockId Take();   // a free block, else the eviction victim, now held; available() > 0
  BlockId Evict();  // the block released longest ago leaves the index; it is in no state yet
  void AddReference(BlockId id);
  void DropReference(BlockId id);

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;
  std::list<BlockId> cached_;  // front: released longest ago
  KvCounts counts_;
  std::unordered_map<SequenceId, std::vector<BlockId>> tables_;

  mutable std::mutex index_mutex_;  // for CountCached against the engine thread's changes
  std::unordered_map<BlockKey, BlockId, BlockKeyHash> index_;
};

}  // namespace augur::memory
