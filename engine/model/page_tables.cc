#include "engine/model/page_tables.h"

#include <algorithm>

#include "kernels/check.h"

namespace augur::engine {

PageTables::PageTables(int num_tables) : tables_(num_tables) { table_of_.reserve(num_tables); }

int PageTables::TableOf(const memory::SequenceKv& kv, int blocks, int64_t step,
                        std::vector<kernels::MappedBlock>* mapped) {
  AUGUR_CHECK(!kv.tiered() && blocks <= static_cast<int>(kv.frames.size()));
  const auto found = table_of_.find(kv.id);
  const int index = found != table_of_.end() ? found->second : Claim(kv.id);
  Table& table = tables_[index];
  AUGUR_CHECK(table.last_step <= step);
  table.last_step = step;
  if (table.epoch != kv.frames_epoch) {
    table.epoch = kv.frames_epoch;
    table.blocks = 0;
  }
  for (; table.blocks < blocks; ++table.blocks) {
    mapped->push_back({.table = index, .block = table.blocks, .frame = kv.frames[table.blocks]});
  }
  return index;
}

int PageTables::Claim(memory::SequenceId sequence) {
  const auto oldest =
      std::min_element(tables_.begin(), tables_.end(),
                       [](const Table& a, const Table& b) { return a.last_step < b.last_step; });
  if (oldest->epoch != 0) table_of_.erase(oldest->sequence);
  const int index = static_cast<int>(oldest - tables_.begin());
  *oldest = {.sequence = sequence};
  table_of_[sequence] = index;
  return index;
}

}  // namespace augur::engine
