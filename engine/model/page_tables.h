// Which row of the device's page lists (kernels/ops/map_pages.h) belongs to which resident
// sequence, and which of its blocks are listed there already. The host's half: it never sees the
// lists themselves.
//
// Thread: the engine's. Ownership: none. Failure: none; there are at least as many rows as
// sequences in a step, and the row that was not used for longest makes room.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernels/ops/map_pages.h"
#include "memory/sequence_kv.h"

namespace augur::engine {

class PageTables {
 public:
  explicit PageTables(int num_tables);

  // The row of the sequence, for the step numbered `step` (rising). Its blocks [0, blocks) that the
  // row does not list yet are appended to *mapped.
  int TableOf(const memory::SequenceKv& kv, int blocks, int64_t step,
              std::vector<kernels::MappedBlock>* mapped);

 private:
  struct Table {
    memory::SequenceId sequence = 0;
    uint64_t epoch = 0;  // of the sequence's frames; 0: nothing is listed
    int blocks = 0;      // listed
    int64_t last_step = -1;
  };

  int Claim(memory::SequenceId sequence);

  std::vector<Table> tables_;
  std::unordered_map<memory::SequenceId, int> table_of_;
};

}  // namespace augur::engine
