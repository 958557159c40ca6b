// What the tiers do inside a step: where a layer's new keys and values go, which chosen blocks must
// come from the host, when the layer may read them, and what is written behind. It knows layers,
// kv heads and blocks, not what is computed with them.
//
// The order of a step, for every layer l (engine/attention/layer_worker.h):
//   AppendPage       where k and v of the step's rows are written
//   Request(l + 1)   chosen ahead: plan, then start the copies
//   Request(l)       chosen by the layer itself: likewise, on need
//   WaitForLayer(l)  copies of Request(l) have landed; only now may its pages be read
//   QueueWrites(l), SubmitWrites(l)   finished blocks go to the host behind the compute
//
// A sequence with one row in the step reads and writes slots ("decode"). One with more rows is a
// prefill chunk, begins on a block edge, and works in the staging area, layer by layer: BeginChunk,
// FetchTile as often as its rows need, EndChunk.
//
// Thread: the engine's. Ownership: none; store, stats and clock are the caller's. Pages are
// bounded by ResidencyLimits and allocated at the start; lists of copies keep the capacity that
// they have grown to.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/base/clock.h"
#include "memory/kv_store.h"
#include "memory/residency_stats.h"
#include "memory/sequence_kv.h"

namespace augur::memory {

// What becomes of the values of a block that a sampled token fetched for its keys.
enum class ValueFetch {
  kAuto,   // rows are read from the host page until they have cost what the V half would; then it
           // moves
  kRows,   // rows are read from the host page, always
  kWhole,  // K and V move together
};

// Cost of the link in nanoseconds, by the rates of one H200 (PCIe 5 x16): 51.3 GB/s, and 36 million
// distinct places a second, where the rows of one page count as one place.
inline constexpr double kLinkNsPerByte = 1.0 / 51.3;
inline constexpr double kLinkNsPerPlace = 1e3 / 36.0;
constexpr double LinkNs(double bytes) {
  return bytes * kLinkNsPerByte > kLinkNsPerPlace ? bytes * kLinkNsPerByte : kLinkNsPerPlace;
}

struct ResidencyLimits {
  int max_rows = 0;      // of a step
  int max_segments = 0;  // sequences in a step
  int fetch_blocks = 0;  // of a prefill chunk's working set beside slots and its own blocks
  ValueFetch value_fetch = ValueFetch::kAuto;
};

// Staging pages that LayerResidency needs: two layers' worth of a step's own blocks (one is written
// behind while the next computes), and the working set of one.
int StagingPages(const KvLayout& layout, const ResidencyLimits& limits);

// Blocks that a token attends to whatever the scores say.
struct ForcedBlocks {
  int init = 0;
  int local = 0;  // the token's own among them
};

// One decode row's choice, all kv heads.
struct BlockRequest {
  SequenceKv* kv = nullptr;
  int position = 0;
  ForcedBlocks forced;
  const int32_t* blocks = nullptr;    // [kv heads][stride], ascending
  const int32_t* counts = nullptr;    // [kv heads]
  const std::byte** pages = nullptr;  // [kv heads][stride], filled by Request
  // Likewise where the values lie, in the slot or in the host page. Null: a token that reads all
  // values, whose blocks are whole in their slots.
  const std::byte** values = nullptr;
  int stride = 0;
};

class LayerResidency {
 public:
  LayerResidency(KvStore* store, const ResidencyLimits& limits, ResidencyStats* stats,
                 const Clock* clock);

  // Before a decode row's step: V halves that were on their way have arrived, and its tail block
  // has a slot in every group.
  void PrepareTail(SequenceKv* kv, int position, const ForcedBlocks& forced);

  // Plans all rows of `layer` (>= 1, tiered sequences) and starts the copies. kPrefetch and kFetch
  // once each a layer and step at most, a row in one of them.
  void Request(int layer, TransferKind kind, std::span<const BlockRequest> rows);
  void WaitForLayer(int layer);
  // Rows of values that a sampled token read of each entry ([kv heads][stride]; `blocks` null:
  // entry e is block e): counts those that came from host pages and moves V halves where that pays
  // by now.
  void NoteValueRows(SequenceKv* kv, int layer, const int32_t* blocks, const int32_t* counts,
                     const int32_t* entry_rows, int stride);

  // Page that the rows of an open block are written to, and that holds a resident one.
  // `chunk_place`: where the block stands among the step's staged blocks (see BeginChunk), or -1.
  std::byte* AppendPage(SequenceKv* kv, int layer, int kv_head, int block, int chunk_place);
  // Page of a complete block that may be read now: a resident one, else the host's, after waiting
  // for its write.
  const std::byte* ReadablePage(SequenceKv* kv, int layer, int kv_head, int block);

  // A layer's staged blocks of this step: `places` of them, waits for the writes that used the
  // same pages two layers before.
  void BeginLayer(int layer, int places);
  // A chunk of blocks [first_block, end_block) whose first block has `first_place`; empty for a
  // single row, whose open block lies in a slot like the others.
  void BeginChunk(SequenceKv* kv, int layer, int first_block, int end_block, int first_place);
  // Most blocks a kv head may ask for in one FetchTile beside resident ones.
  int fetch_blocks() const { return limits_.fetch_blocks; }
  // How many of `blocks` (ascending) lie neither in the chunk nor in a slot.
  int CountMissing(int kv_head, std::span<const int32_t> blocks) const;
  // Makes `blocks` of each kv head readable and waits. Earlier tiles' pages may be lost. keys_only:
  // their K halves, all tiles of the chunk alike.
  void FetchTile(std::span<const std::vector<int32_t>> blocks, bool keys_only = false);
  const std::byte* TilePage(int kv_head, int32_t block);
  // Values of any block of the sequence, on the device or in its host page.
  const std::byte* TileValues(int kv_head, int32_t block);
  // The working set of the chunk's last token moves into the slots. working_set: [kv heads]
  // ascending blocks, at most as many as slots, the last block among them.
  void EndChunk(std::span<const std::vector<int32_t>> working_set, int last_position);

  // Blocks below end_block of `layer` are complete.
  void QueueWrites(SequenceKv* kv, int layer, int end_block, int first_block_in_chunk,
                   int first_place);
  void SubmitWrites(int layer);

 private:
  struct LayerTickets {
    std::vector<Ticket> tickets;
    std::vector<PageCopy> copies;  // that the tickets make; kept for the page check
  };
  struct QueuedWrite {
    SequenceKv* kv;
    int end_block;
    size_t first_copy;  // of write_copies_
  };

  std::byte* StagedPage(int layer, int place, int kv_head) const;
  std::byte* FetchPage(int kv_head, int slot) const;
  SlotGroup FetchGroup(int kv_head);
  void CountChoice(const BlockRequest& row, int layer, const SlotGroup& group,
                   std::span<const int32_t> wanted);
  // A plan for the group in plan_, after waiting for writes where it needs them.
  void PlanOrWait(SequenceKv* kv, int layer, const SlotGroup& group,
                  std::span<const int32_t> wanted);
  void WaitForWrite(SequenceKv* kv, int layer);
  void CopyBlock(const BlockRequest& row, int layer, int kv_head, const SlotFetch& fetch,
                 std::vector<PageCopy>* copies);
  const std::byte* ValuesOf(SequenceKv* kv, int layer, int kv_head, int slot, int block);
  bool IsArriving(const std::byte* page, int layer) const;
  void VerifyPages(std::span<const PageCopy> copies);
  void WaitForRequest(int layer, TransferKind kind);
  // Waits on tickets, timed as `cause`.
  void WaitTimed(std::span<const Ticket> tickets, int layer, WaitCause cause);

  KvStore* const store_;
  const KvPools& pools_;
  const ResidencyLimits limits_;
  ResidencyStats* const stats_;
  const Clock* const clock_;
  const int staged_places_;  // of one layer

  std::array<std::vector<LayerTickets>, 2> requests_;  // [kFetch, kPrefetch][layers]
  std::array<std::vector<Ticket>, 2> staged_writes_;   // of the two halves of the staging area
  SlotPlan plan_;
  std::vector<PageCopy> copies_;
  std::vector<PageCopy> write_copies_;
  std::vector<QueuedWrite> queued_writes_;
  bool staged_queued_ = false;  // some queued write reads a staged page

  // The chunk under way.
  SequenceKv* chunk_ = nullptr;
  int chunk_layer_ = 0;
  int chunk_first_ = 0;
  int chunk_end_ = 0;
  int chunk_place_ = 0;
  std::vector<int32_t> fetch_held_;    // [kv heads][fetch_blocks]
  std::vector<int32_t> fetch_stamps_;  // likewise
  int32_t tile_ = 0;
  bool tile_keys_only_ = false;
  std::vector<int32_t> tile_wanted_;
};

}  // namespace augur::memory
