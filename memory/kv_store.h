// Which sequence holds what: frames of the device pool and blocks of the host pool, all or nothing,
// with a prefix cache over each. Moves whole sequences between the tiers; what moves inside a step
// is layer_residency.h's.
//
// A sequence is
//   open     has frames: its KV can be computed on. Under `tiered` it has host blocks for its whole
//            life as well
//   saved    no frames; everything computed is in its host blocks (preempted)
//   closing  released while copies of its bytes were under way: frames and blocks stay taken until
//            the last one has ended
//
// Thread: the engine's, but for CountCached. Ownership: owns every SequenceKv; pools and transfer
// engine are the caller's. Failure: Open, Resume and Extend answer false and change nothing; our
// own mistakes are CHECKs.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/kv_manager.h"
#include "memory/kv_pools.h"
#include "memory/page_check.h"
#include "memory/sequence_kv.h"
#include "memory/transfer_engine.h"

namespace augur::memory {

struct KvAdmission {
  SequenceId id = 0;
  KvDemand demand;
  std::span<const BlockKey> keys;  // of the prefix hit, as many as `hits`
  int hits = 0;
  int blocks = 0;       // to hold now
  int most_blocks = 0;  // in its life: what a tiered sequence reserves
};

// What admission would take.
struct KvCost {
  int frames = 0;
  int host_blocks = 0;
};

class KvStore {
 public:
  // `transfers` may be null when the host pool has no blocks. page_check: one spilled page in that
  // many is hashed and compared when it comes back; 0: none.
  KvStore(const KvPools& pools, TransferEngine* transfers, int page_check = 0);

  const KvPools& pools() const { return pools_; }
  TransferEngine* transfers() const { return transfers_; }
  // Self-test: that `page`, the host page itself or a copy of it on the device, has the bytes that
  // were spilled; CHECKs. False: not one of the sampled ones.
  bool CheckPage(const std::byte* host_page, const std::byte* page);
  // Likewise of the K half alone, if it has been fetched: that the device has what the host has.
  void CheckHalf(const std::byte* host_page, const std::byte* half);
  int available_frames() const { return device_.available(); }
  int available_host_blocks() const { return host_ ? host_->available() : 0; }
  KvCounts frame_counts() const { return device_.counts(); }
  KvCounts host_counts() const { return host_ ? host_->counts() : KvCounts{}; }

  // How many of `keys`, from the first on, are cached in the pool that is the truth under
  // `residency`. Any thread.
  int CountCached(Residency residency, std::span<const BlockKey> keys) const;
  KvCost CostOf(const KvAdmission& admission) const;
  // With hits it is cold: see WarmUp.
  bool Open(const KvAdmission& admission);
  // kDevice: makes the table at least `blocks` long.
  bool Extend(SequenceId id, int blocks);
  int MissingFrames(SequenceId id, int blocks) const;
  // Frames that Release, or Save, would give back at once.
  int ReclaimableFrames(SequenceId id) const;

  // A sequence with a prefix hit, or a resumed one, is cold: what it needs on the device (layer 0,
  // compressed keys and the like, its slots) is handed to the link in pieces, as many as the caller
  // says, and never waits for room there, so that the steps of others do not. Not Ready before all
  // of it has arrived; until then nothing of it may be read or written.
  bool Ready(SequenceId id);
  // Something is still to be handed over.
  bool IsCold(SequenceId id) const { return open_.at(id)->warm_up.lacks(); }
  int64_t BytesOnTheirWay(SequenceId id) const { return open_.at(id)->warm_up.bytes_on_their_way; }
  // The next pieces, up to the first that makes `most_bytes` full; fewer where the queue of the
  // link has no more room beside a step's own copies. The bytes.
  int64_t WarmUp(SequenceId id, int64_t most_bytes);
  // Everything at once, and waits for it: where nobody else is to be served.
  void FinishWarmUp(SequenceId id);

  // Ends an open or saved sequence. `late_keys` name blocks from late_first on that are completely
  // computed and not published: they will be when their writes have landed.
  void Release(SequenceId id, int late_first = 0, std::span<const BlockKey> late_keys = {});

  // Puts a full, completely computed block of an open sequence into the index. Under kTiered only
  // when all layers have landed: false until then.
  bool Publish(SequenceId id, int block, const BlockKey& key);

  // The first `blocks` blocks of an open sequence leave the index, hits among them: nobody takes
  // them from the cache again.
  void Withdraw(SequenceId id, int blocks);

  // Host blocks for an open kDevice sequence, so that it can be saved; its finished blocks are
  // written behind from now on. False: the host pool has no room.
  bool BeginMirror(SequenceId id, int most_blocks);
  // Writes what is not on the host yet, the tail of `num_tokens` tokens included, waits, and gives
  // the frames back. The sequence must be tiered or mirrored. Partial keys are not kept: who reads
  // them makes them again (SequenceKv::partial_tokens).
  void Save(SequenceId id, int num_tokens);
  KvCost ResumeCost(SequenceId id, int num_slots) const;
  // A saved sequence comes back, tiered.
  bool Resume(SequenceId id, int num_slots);

  SequenceKv& sequence(SequenceId id) { return *open_.at(id); }
  bool is_open(SequenceId id) const { return open_.contains(id); }
  bool is_saved(SequenceId id) const { return saved_.contains(id); }
  bool is_closing(SequenceId id) const { return closing_.contains(id); }
  int num_open() const { return static_cast<int>(open_.size()); }
  int num_saved() const { return static_cast<int>(saved_.size()); }
  int num_closing() const { return static_cast<int>(closing_.size()); }

  // Once a step: sees which writes have landed, frees what was closing.
  void Poll();
  // A ticket to wait for when nothing else can be done: a restore, whatever keeps a cold sequence
  // from the link's queue, or a closing sequence's copy.
  Ticket OldestPending() const;
  void WaitForClosing();
  void ClearCache();

  // Writes what blocks [first, end) of `layer` have on the host behind. `page` gives the
  // page of (kv head, block).
  template <class PageOf>
  void AppendWrites(const SequenceKv& kv, int layer, int first, int end, const PageOf& page,
                    std::vector<PageCopy>* copies);
  // Submits the copies, in several tickets where there are many, waiting for older work
  // where the queue has no room.
  void Submit(TransferKind kind, std::span<const PageCopy> copies, std::vector<Ticket>* tickets);
  // Blocks of `layer` below end_block are on their way under `tickets`.
  void NoteWrite(SequenceKv* kv, std::span<const Ticket> tickets, int layer, int end_block);
  void PollWrites(SequenceKv* kv);

  void CheckInvariants() const;

 private:
  using Sequences = std::map<SequenceId, std::unique_ptr<SequenceKv>>;

  bool OpenHost(const KvAdmission& admission, SequenceKv* kv);
  bool TakeFrames(const KvFootprint& footprint, SequenceKv* kv);
  // Copies of a block's eviction biases, between their device frame and the host pool.
  void AppendBiasCopies(const SequenceKv& kv, int layer, int kv_head, int block, bool to_host,
                        std::vector<PageCopy>* copies) const;
  // Pieces of SequenceKv::warm_up: layer 0, compressed keys, eviction biases and sums of values of
  // a block; the slots of a group.
  void AppendAlwaysResident(const SequenceKv& kv, int block, std::vector<PageCopy>* copies) const;
  void AppendSlots(SequenceKv* kv, int group, std::vector<PageCopy>* copies) const;
  void FillSlots(SequenceKv* kv, int blocks) const;
  bool HasRoomFor(size_t num_copies);
  void CheckSources(std::span<const PageCopy> copies);
  void RecordSpill(size_t host_page, const std::byte* page);
  // A device page, or half of one, as the host has it: itself, or packed in a buffer of the
  // store's.
  std::span<const std::byte> HostForm(const std::byte* page, size_t host_bytes);
  bool Quiet(SequenceKv* kv);
  void PublishLate(SequenceKv* kv);
  void CheckSequence(const SequenceKv& kv) const;

  const KvPools pools_;
  TransferEngine* const transfers_;
  KvManager device_;               // frames; tables: 2 id shared blocks, 2 id + 1 private frames
  std::optional<KvManager> host_;  // host blocks; tables: id
  PageCheck page_check_;
  std::vector<std::byte> packed_;  // a host page, where those are in fp8
  std::vector<PageCopy> warm_copies_, piece_copies_;
  Sequences open_;
  Sequences saved_;
  Sequences closing_;
  std::map<SequenceId, int> computed_tokens_;  // of saved sequences
  std::deque<Ticket> in_flight_;               // oldest first; some may be done
  uint64_t last_epoch_ = 0;                    // of SequenceKv::frames_epoch
};

template <class PageOf>
void KvStore::AppendWrites(const SequenceKv& kv, int layer, int first, int end, const PageOf& page,
                           std::vector<PageCopy>* copies) {
  const KvLayout& layout = pools_.layout;
  for (int block = first; block < end; ++block) {
    const int target = kv.host_blocks[block];
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      const std::byte* source = page(head, block);
      RecordSpill(pools_.group_index(target, layer, head), source);
      copies->push_back(
          {source, pools_.host_page(target, layer, head), layout.host_page_bytes(), pools_.fp8});
      if (layout.has_biases()) {
        AppendBiasCopies(kv, layer, head, block, /*to_host=*/true, copies);
      }
      if (layout.has_value_sums()) {
        copies->push_back(
            {reinterpret_cast<const std::byte*>(kv.block_value_sum(pools_, layer, head, block)),
             pools_.host_sum(target, layer, head), layout.sum_bytes});
      }
      if (!kv.demand.selects) continue;
      copies->push_back({kv.block_keys(pools_, layer, head, block),
                         pools_.host_key(target, layer, head), layout.key_bytes});
    }
  }
}

}  // namespace augur::memory
