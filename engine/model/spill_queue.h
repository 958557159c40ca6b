// Finished blocks on their way from the device to the host, behind the compute: each step's become
// one list, one copy on the spill lane and one ticket.
//
// Thread: the engine's. Ownership: lists in pinned memory; everything else is the caller's.
// Failure: Create names the bytes.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/sequence_tables.h"
#include "kernels/backend.h"
#include "kernels/backend_array.h"
#include "memory/device_transfers.h"
#include "memory/kv_store.h"

namespace augur::engine {

class SpillQueue {
 public:
  // max_blocks: of one step, at most; what is more waits for the next.
  static absl::StatusOr<std::unique_ptr<SpillQueue>> Create(kernels::Backend* backend,
                                                            SequenceTables* tables,
                                                            memory::KvStore* store,
                                                            memory::DeviceTransfers* transfers,
                                                            int max_blocks);
  ~SpillQueue();
  SpillQueue(const SpillQueue&) = delete;
  SpillQueue& operator=(const SpillQueue&) = delete;

  // Blocks of the sequence in row `table` below end_block are complete once the main order has done
  // what it has been asked to. `staged`: pages of layers above the first go to the host otherwise,
  // layer by layer.
  void Add(memory::SequenceKv* kv, int table, int end_block, bool staged);
  // Starts to write what has been added since the last Flush.
  void Flush();

 private:
  static constexpr int kRing = 8;  // flushes whose lists may be under way

  struct Write {
    memory::SequenceKv* kv = nullptr;
    int end_block = 0;
  };

  SpillQueue(kernels::Backend* backend, SequenceTables* tables, memory::KvStore* store,
             memory::DeviceTransfers* transfers, int max_blocks);
  void Copy(const std::vector<kernels::SpilledBlock>& blocks, int first, bool staged,
            bool has_keys);
  // Copies of one flush, of either kind.
  size_t list_room() const { return size_t(max_blocks_) * tables_->pools().layout.num_groups(); }

  kernels::Backend* const backend_;
  kernels::Backend* const lane_;
  SequenceTables* const tables_;
  memory::KvStore* const store_;
  memory::DeviceTransfers* const transfers_;
  const int max_blocks_;

  // [whole, staged][without, with keys]
  std::array<std::array<std::vector<kernels::SpilledBlock>, 2>, 2> blocks_;
  int num_blocks_ = 0;
  std::vector<Write> writes_;
  kernels::SpilledBlock* rings_ = nullptr;  // [kRing][max_blocks]
  std::array<memory::Ticket, kRing> tickets_{};
  int next_ = 0;
  kernels::BackendArray<kernels::PageCopy> pages_;  // [kRing][max_blocks][layers][kv heads]
  kernels::BackendArray<kernels::PageCopy> keys_;   // likewise
  kernels::BackendArray<kernels::PageCopy> sums_;   // likewise; empty: none are kept
};

}  // namespace augur::engine
