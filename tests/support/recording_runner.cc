#include "tests/support/recording_runner.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"

namespace augur::tests {
namespace {

using engine::AttentionPolicy;
using engine::StepSegment;
using kernels::kBlockTokens;
using kernels::kBlockWindows;
using kernels::kWindowStride;
using kernels::kWindowTokens;
using memory::SequenceKv;
using memory::TransferKind;

constexpr int kReaderStride = 8;  // rows of a chunk for one that reads
constexpr size_t kMostChains = 64;

Record* RecordsOf(std::byte* page) { return reinterpret_cast<Record*>(page); }
const Record* RecordsOf(const std::byte* page) { return reinterpret_cast<const Record*>(page); }

}  // namespace

RecordingRunner::RecordingRunner(const RecordingOptions& options, memory::KvStore* store,
                                 memory::FakeClock* clock, int64_t ns_per_row)
    : store_(store),
      pools_(store->pools()),
      options_(options),
      clock_(clock != nullptr ? clock : &own_clock_),
      ns_per_row_(ns_per_row),
      stats_(pools_.layout.num_layers),
      residency_(store, options.limits, &stats_, clock_) {
  const size_t lists = size_t(options.limits.max_segments) * pools_.layout.num_kv_heads;
  for (Selection& selection : selections_) {
    selection.blocks.resize(lists * options.max_top_k);
    selection.counts.resize(lists);
    selection.pages.resize(lists * options.max_top_k);
    selection.values.resize(lists * options.max_top_k);
  }
  for (auto* lists_of_heads : {&tile_, &grown_, &last_}) {
    lists_of_heads->resize(pools_.layout.num_kv_heads);
  }
  sums_.resize(pools_.layout.num_kv_heads);
}

RecordShape RecordingRunner::shape() const {
  return {pools_.layout.num_layers, pools_.layout.num_kv_heads};
}

void RecordingRunner::Fault(const std::string& what) {
  if (fault_.empty()) fault_ = what;
}

void RecordingRunner::Run(const engine::StepInputs& inputs, engine::StepOutputs* outputs) {
  BeginStep(inputs);
  for (int layer = 0; layer < pools_.layout.num_layers; ++layer) {
    RunLayer(layer);
    clock_->Advance(ns_per_row_ * rows_ / pools_.layout.num_layers);
  }
  outputs->tokens.assign(inputs.segments.size(), 0);
  for (size_t i = 0; i < works_.size(); ++i) {
    const Work& work = works_[i];
    SequenceKv* kv = work.segment->kv;
    if (kv->demand.selects) {
      kv->keyed_blocks = std::max(kv->keyed_blocks, work.end_position() / kBlockTokens);
    }
    if (!work.segment->wants_token) continue;
    outputs->tokens[i] =
        TokenOf(work.hash, work.chain->poisoned(), work.segment->sampling.choice_index);
  }
  rows_run_ += rows_;
}

void RecordingRunner::BeginStep(const engine::StepInputs& inputs) {
  ForgetEnded();
  rows_ = static_cast<int>(inputs.token_ids.size());
  works_.clear();
  pieces_.clear();
  staged_places_ = 0;
  for (const StepSegment& segment : inputs.segments) {
    Work work;
    work.segment = &segment;
    work.chain = ChainOf(segment, inputs.token_ids.data() + segment.rows.first_row);
    work.hash = work.chain->value(work.end_position() - 1);
    work.chunk = segment.kv->tiered() && segment.rows.num_rows > 1;
    if (work.chunk) {
      AUGUR_CHECK(segment.rows.first_position % kBlockTokens == 0);
      work.first_place = staged_places_;
      staged_places_ += work.end_block() - work.first_block();
    }
    RestoreKeys(&work);
    if (segment.kv->tiered() && !work.chunk) {
      memory::ForcedBlocks forced;
      if (segment.attention->selects()) {
        forced = {segment.attention->budget.init, segment.attention->budget.local};
      }
      PrepareTail(segment.kv, segment.rows.first_position, forced);
    }
    works_.push_back(work);
    AddPieces(static_cast<int>(works_.size()) - 1);
  }
}

// A new tail block takes an empty slot, or that of a block which is on the host and not forced.
void RecordingRunner::PrepareTail(SequenceKv* kv, int position,
                                  const memory::ForcedBlocks& forced) {
  const std::vector<int32_t> before =
      position % kBlockTokens == 0 ? kv->slot_blocks : std::vector<int32_t>();
  residency_.PrepareTail(kv, position, forced);
  const int tail = position / kBlockTokens;
  for (size_t slot = 0; slot < before.size(); ++slot) {
    const int32_t gone = before[slot];
    if (gone == memory::kNoBlock || gone == kv->slot_blocks[slot]) continue;
    const size_t layer = slot / (size_t(kv->num_slots) * pools_.layout.num_kv_heads);
    if (gone < forced.init || gone > tail - std::max(forced.local, 1)) {
      Fault(absl::StrCat("tail ", tail, " took the slot of block ", gone, ", which is forced"));
    }
    if (gone >= kv->landed_blocks[layer]) {
      Fault(absl::StrCat("tail ", tail, " took the slot of block ", gone, " before its write"));
    }
  }
}

void RecordingRunner::AddPieces(int index) {
  const Work& work = works_[index];
  const StepSegment& segment = *work.segment;
  for (int position = segment.rows.first_position; position < work.end_position();) {
    const int next =
        std::min(work.end_position(),
                 engine::NextPolicyChange(*segment.attention, position, segment.prompt_tokens));
    const AttentionPolicy policy =
        engine::PolicyAt(*segment.attention, position, segment.prompt_tokens);
    const int row = segment.rows.first_row + position - segment.rows.first_position;
    pieces_.push_back(
        {.segment = index,
         .rows = {row, next - position, position},
         .selects = policy != AttentionPolicy::kDense,
         .ahead = policy == AttentionPolicy::kForecast && segment.kv->tiered() && !work.chunk,
         .ends_segment = next == work.end_position()});
    position = next;
  }
}

// Records up to the segment's end. What this runner has not computed itself came with a prefix hit,
// and is believed as layer 0 has it: a wrong block gives a wrong transcript.
RecordChain* RecordingRunner::ChainOf(const StepSegment& segment, const int32_t* tokens) {
  RecordChain& chain =
      chains_.try_emplace(segment.kv->id, segment.sampling.seed, *segment.attention).first->second;
  while (chain.size() < segment.rows.first_position) {
    const int position = chain.size();
    const std::byte* page = segment.kv->resident_page(pools_, 0, 0, position / kBlockTokens);
    chain.AppendRead(RecordsOf(page)[position % kBlockTokens]);
  }
  for (int row = 0; row < segment.rows.num_rows; ++row) {
    const int position = segment.rows.first_position + row;
    if (position == chain.size()) {
      chain.Append(tokens[row]);
    } else if (chain.ValueOf(tokens[row], position) != chain.value(position)) {
      Fault(absl::StrCat("sequence ", segment.kv->id, ": another token at position ", position,
                         " than the first time"));
    }
  }
  return &chain;
}

void RecordingRunner::ForgetEnded() {
  if (chains_.size() < kMostChains) return;
  std::erase_if(chains_, [this](const auto& entry) {
    return !store_->is_open(entry.first) && !store_->is_saved(entry.first);
  });
}

int RecordingRunner::PlaceOf(const Work& work, int block) const {
  return work.chunk ? work.first_place + block - work.first_block() : -1;
}

void RecordingRunner::RunLayer(int layer) {
  residency_.BeginLayer(layer, layer == 0 ? 0 : staged_places_);
  for (const Work& work : works_) Append(work, layer);
  for (const Work& work : works_) CompressAppended(work, layer);
  const int next = layer + 1;
  if (options_.prefetch && next < pools_.layout.num_layers) Request(next, TransferKind::kPrefetch);
  if (layer > 0) Request(layer, TransferKind::kFetch);
  residency_.WaitForLayer(layer);
  for (const Piece& piece : pieces_) Attend(piece, layer);
  WriteBehind(layer);
}

void RecordingRunner::Append(const Work& work, int layer) {
  const kernels::Segment& rows = work.segment->rows;
  for (int block = work.first_block(); block < work.end_block(); ++block) {
    const int first = std::max(rows.first_position, block * kBlockTokens);
    const int end = std::min(work.end_position(), (block + 1) * kBlockTokens);
    for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
      const Record salt = GroupSalt(layer, head);
      Record* records = RecordsOf(
          residency_.AppendPage(work.segment->kv, layer, head, block, PlaceOf(work, block)));
      for (int position = first; position < end; ++position) {
        records[position % kBlockTokens] = work.chain->value(position) + salt;
      }
    }
  }
}

// Keys of the windows that end in [first, end), from the records that page_of(block) has.
template <class PageOf>
void CompressWindows(const memory::KvPools& pools, const SequenceKv& kv, int layer, int head,
                     int first, int end, const PageOf& page_of) {
  // The window that ends at or behind `first`.
  int window_end = std::max(kWindowTokens, (first / kWindowStride + 1) * kWindowStride);
  for (; window_end <= end; window_end += kWindowStride) {
    Record sum = 0;
    for (int position = window_end - kWindowTokens; position < window_end;) {
      const Record* records = RecordsOf(page_of(position / kBlockTokens));
      for (int half = 0; half < kWindowStride; ++half, ++position) {
        sum += records[position % kBlockTokens];
      }
    }
    const int window = window_end / kWindowStride - 2;
    auto* keys = reinterpret_cast<RecordKey*>(
        kv.block_keys(pools, layer, head, (window + 1) / kBlockWindows));
    keys[(window + 1) % kBlockWindows] = static_cast<RecordKey>(sum);
  }
}

// As LayerWorker::RestoreKeys: a hit on resident blocks brings no compressed keys.
void RecordingRunner::RestoreKeys(Work* work) {
  SequenceKv* kv = work->segment->kv;
  if (!kv->demand.selects || kv->keyed_blocks >= work->first_block()) return;
  AUGUR_CHECK(!kv->tiered());
  for (int layer = 0; layer < pools_.layout.num_layers; ++layer) {
    for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
      CompressWindows(pools_, *kv, layer, head, kv->keyed_blocks * kBlockTokens,
                      work->first_block() * kBlockTokens, [&](int block) -> const std::byte* {
                        return kv->resident_page(pools_, layer, head, block);
                      });
    }
  }
  kv->keyed_blocks = work->first_block();
}

void RecordingRunner::CompressAppended(const Work& work, int layer) {
  SequenceKv* kv = work.segment->kv;
  if (!kv->demand.selects) return;
  const int first = work.segment->rows.first_position, end = work.end_position();
  if (end / kWindowStride == first / kWindowStride) return;  // no window ends here
  for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
    CompressWindows(pools_, *kv, layer, head, first, end, [&](int block) -> const std::byte* {
      if (block < work.first_block()) return WholePage(kv, layer, head, block);
      return residency_.AppendPage(kv, layer, head, block, PlaceOf(work, block));
    });
  }
}

// A page all of whose records may be read: they stand for keys, of which a page has as many as
// tokens, but half of them lie where values do, and a slot may hold keys alone.
const std::byte* RecordingRunner::WholePage(SequenceKv* kv, int layer, int head, int block) {
  const std::byte* page = residency_.ReadablePage(kv, layer, head, block);
  if (!kv->tiered() || layer == 0) return page;
  const int slot = memory::FindSlot(kv->group(pools_.layout, layer, head), block);
  if (slot < 0 || kv->slot_has_values[kv->slot_index(pools_.layout, layer, head, slot)] != 0) {
    return page;
  }
  return pools_.host_page(kv->host_blocks[block], layer, head);
}

// Choices of slot rows, as LayerWorker::Request: kPrefetch of those that choose ahead, kFetch of
// the others.
void RecordingRunner::Request(int layer, TransferKind kind) {
  const int heads = pools_.layout.num_kv_heads, stride = options_.max_top_k;
  Selection& selection = selections_[layer % 2];
  requests_.clear();
  for (const Piece& piece : pieces_) {
    const Work& work = works_[piece.segment];
    SequenceKv* kv = work.segment->kv;
    if (!kv->tiered() || work.chunk || !piece.selects) continue;
    if ((options_.prefetch && piece.ahead) != (kind == TransferKind::kPrefetch)) continue;
    // Who chooses ahead sees the keys of the tokens before its own.
    const int position = piece.rows.first_position;
    ReadKeys(work, layer, piece.ahead ? position : position + 1);
    const size_t list = size_t(piece.segment) * heads;
    for (int head = 0; head < heads; ++head) {
      ChooseBlocks(work.chain->start(), position, layer, head, work.segment->attention->budget,
                   &choice_);
      AUGUR_CHECK(static_cast<int>(choice_.size()) <= stride);
      selection.counts[list + head] = static_cast<int32_t>(choice_.size());
      std::copy(choice_.begin(), choice_.end(), selection.blocks.begin() + (list + head) * stride);
    }
    const kernels::SelectionBudget& budget = work.segment->attention->budget;
    requests_.push_back(
        {.kv = kv,
         .position = position,
         .forced = {budget.init, budget.local},
         .blocks = selection.blocks.data() + list * stride,
         .counts = selection.counts.data() + list,
         .pages = selection.pages.data() + list * stride,
         .values = Samples(work) ? selection.values.data() + list * stride : nullptr,
         .stride = stride});
  }
  if (requests_.empty()) return;
  group_plans_ += static_cast<int64_t>(requests_.size()) * heads;
  residency_.Request(layer, kind, requests_);
}

void RecordingRunner::Attend(const Piece& piece, int layer) {
  Work& work = works_[piece.segment];
  std::fill(sums_.begin(), sums_.end(), 0);
  if (!work.segment->kv->tiered() || layer == 0) {
    AttendResident(piece, layer);
  } else if (!piece.selects) {
    AttendStream(piece, layer);
  } else if (work.chunk) {
    AttendChunk(piece, layer);
  } else {
    AttendSlots(piece, layer);
  }
  if (!piece.ends_segment) return;
  for (const Record sum : sums_) work.hash = MixRecord(work.hash, sum);
}

int RecordingRunner::NextReader(const Piece& piece, int row) {
  const int last = piece.rows.num_rows - 1;
  if (row >= last) return piece.rows.num_rows;
  const int position = piece.rows.first_position + row + 1;
  return std::min(last, row + 1 + (kReaderStride - 1 - position % kReaderStride));
}

void RecordingRunner::AttendResident(const Piece& piece, int layer) {
  const Work& work = works_[piece.segment];
  const SequenceKv& kv = *work.segment->kv;
  const int end = piece.rows.first_position + piece.rows.num_rows;
  if (piece.selects) ReadKeys(work, layer, end);
  for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
    const auto read = [&](int block) {
      return ReadPage(*work.chain, kv.resident_page(pools_, layer, head, block), layer, head, block,
                      end);
    };
    if (!piece.selects) {
      for (int block = 0; block * kBlockTokens < end; ++block) sums_[head] += read(block);
      continue;
    }
    for (int row = NextReader(piece, -1); row < piece.rows.num_rows; row = NextReader(piece, row)) {
      ChooseBlocks(work.chain->start(), piece.rows.first_position + row, layer, head,
                   work.segment->attention->budget, &choice_);
      sums_[head] = 0;
      for (const int32_t block : choice_) sums_[head] += read(block);
    }
  }
}

void RecordingRunner::AttendSlots(const Piece& piece, int layer) {
  const Work& work = works_[piece.segment];
  const Selection& selection = selections_[layer % 2];
  const int heads = pools_.layout.num_kv_heads;
  for (int head = 0; head < heads; ++head) {
    const size_t list = size_t(piece.segment) * heads + head;
    for (int entry = 0; entry < selection.counts[list]; ++entry) {
      const size_t at = list * options_.max_top_k + entry;
      sums_[head] += ReadPage(*work.chain, selection.pages[at], layer, head, selection.blocks[at],
                              work.end_position(), Samples(work) ? selection.values[at] : nullptr);
    }
  }
  if (!Samples(work)) return;
  const size_t list = size_t(piece.segment) * heads;
  NoteRows(work, layer, selection.blocks.data() + list * options_.max_top_k,
           selection.counts.data() + list, options_.max_top_k);
}

bool RecordingRunner::Samples(const Work& work) {
  const engine::StepSegment& segment = *work.segment;
  return segment.attention->values.sampled && segment.rows.num_rows == 1 &&
         segment.rows.first_position >= segment.prompt_tokens;
}

void RecordingRunner::NoteRows(const Work& work, int layer, const int32_t* blocks,
                               const int32_t* counts, int stride) {
  std::vector<int32_t> rows(size_t(stride) * pools_.layout.num_kv_heads);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<int32_t>(MixRecord(work.end_position(), i + layer) % 4);
  }
  residency_.NoteValueRows(work.segment->kv, layer, blocks, counts, rows.data(), stride);
}

void RecordingRunner::BeginChunk(const Piece& piece, int layer) {
  const Work& work = works_[piece.segment];
  if (work.chunk) {
    residency_.BeginChunk(work.segment->kv, layer, work.first_block(), work.end_block(),
                          work.first_place);
  } else {
    residency_.BeginChunk(work.segment->kv, layer, work.end_block(), work.end_block(), 0);
  }
}

void RecordingRunner::AttendStream(const Piece& piece, int layer) {
  const Work& work = works_[piece.segment];
  BeginChunk(piece, layer);
  const int end = piece.rows.first_position + piece.rows.num_rows;
  const int blocks = (end + kBlockTokens - 1) / kBlockTokens;
  const int window = residency_.fetch_blocks();
  for (int first = 0; first < blocks; first += window) {
    const int tile_end = std::min(blocks, first + window);
    for (std::vector<int32_t>& wanted : tile_) {
      wanted.resize(tile_end - first);
      std::iota(wanted.begin(), wanted.end(), first);
    }
    residency_.FetchTile(tile_, Samples(work));
    group_plans_ += pools_.layout.num_kv_heads;
    for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
      for (const int32_t block : tile_[head]) {
        sums_[head] += ReadPage(*work.chain, residency_.TilePage(head, block), layer, head, block,
                                end, Samples(work) ? residency_.TileValues(head, block) : nullptr);
      }
    }
  }
  if (Samples(work)) {
    const std::vector<int32_t> counts(pools_.layout.num_kv_heads, blocks);
    NoteRows(work, layer, nullptr, counts.data(), blocks);
  }
  if (work.chunk) EndChunk(piece);
}

void RecordingRunner::AttendChunk(const Piece& piece, int layer) {
  const Work& work = works_[piece.segment];
  BeginChunk(piece, layer);
  const int end = piece.rows.first_position + piece.rows.num_rows;
  const int heads = pools_.layout.num_kv_heads;
  ReadKeys(work, layer, end);
  for (int row = NextReader(piece, -1); row < piece.rows.num_rows;) {
    for (std::vector<int32_t>& wanted : tile_) wanted.clear();
    for (; row < piece.rows.num_rows; row = NextReader(piece, row)) {
      bool fits = true;
      for (int head = 0; head < heads && fits; ++head) {
        ChooseBlocks(work.chain->start(), piece.rows.first_position + row, layer, head,
                     work.segment->attention->budget, &last_[head]);
        grown_[head].clear();
        std::set_union(tile_[head].begin(), tile_[head].end(), last_[head].begin(),
                       last_[head].end(), std::back_inserter(grown_[head]));
        fits = residency_.CountMissing(head, grown_[head]) <= residency_.fetch_blocks();
      }
      if (!fits) break;
      tile_.swap(grown_);
    }
    residency_.FetchTile(tile_);
    group_plans_ += heads;
    for (int head = 0; head < heads; ++head) {
      for (const int32_t block : tile_[head]) {
        ReadPage(*work.chain, residency_.TilePage(head, block), layer, head, block, end);
      }
    }
  }
  for (int head = 0; head < heads; ++head) {
    for (const int32_t block : last_[head]) {
      sums_[head] +=
          ReadPage(*work.chain, residency_.TilePage(head, block), layer, head, block, end);
    }
  }
  EndChunk(piece);
}

// As LayerWorker::EndChunk: the last row's blocks stay in the slots, or the chunk's last ones.
void RecordingRunner::EndChunk(const Piece& piece) {
  const SequenceKv& kv = *works_[piece.segment].segment->kv;
  const int last_position = piece.rows.first_position + piece.rows.num_rows - 1;
  const int end = last_position / kBlockTokens + 1;
  for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
    if (piece.selects && static_cast<int>(last_[head].size()) <= kv.num_slots) {
      tile_[head] = last_[head];
      continue;
    }
    const int first = std::max(piece.rows.first_position / kBlockTokens, end - kv.num_slots);
    tile_[head].resize(end - first);
    std::iota(tile_[head].begin(), tile_[head].end(), first);
  }
  group_plans_ += pools_.layout.num_kv_heads;
  residency_.EndChunk(tile_, last_position);
}

void RecordingRunner::WriteBehind(int layer) {
  for (const Work& work : works_) {
    residency_.QueueWrites(work.segment->kv, layer, work.end_position() / kBlockTokens,
                           work.first_block(), layer == 0 ? -1 : work.first_place);
  }
  residency_.SubmitWrites(layer);
}

Record RecordingRunner::ReadPage(const RecordChain& chain, const std::byte* page, int layer,
                                 int head, int block, int end_position, const std::byte* values) {
  const Record salt = GroupSalt(layer, head);
  const Record* records = RecordsOf(page);
  const int first = block * kBlockTokens;
  const int count = std::min(kBlockTokens, end_position - first);
  const Record* expected = chain.values() + first;
  Record sum = 0, different = 0;
  const Record* half = values == nullptr ? records : RecordsOf(values) - kBlockTokens / 2;
  for (int i = 0; i < count; ++i) {
    const Record found = i < kBlockTokens / 2 ? records[i] : half[i];
    sum += found;
    different |= found ^ (expected[i] + salt);
  }
  if (different != 0) {
    Fault(absl::StrCat("layer ", layer, ", head ", head, ", block ", block, " of a sequence of ",
                       end_position, " tokens: the page that was read has other records"));
  }
  return sum;
}

void RecordingRunner::ReadKeys(const Work& work, int layer, int end_position) {
  const std::span<const RecordKey> windows = work.chain->windows();
  const int complete = std::min<int>(windows.size(), kernels::CompleteWindows(end_position - 1));
  const SequenceKv& kv = *work.segment->kv;
  constexpr int kPagePlaces = memory::kKeyFrameBlocks * kBlockWindows;
  for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
    const auto salt = static_cast<RecordKey>(kWindowTokens * GroupSalt(layer, head));
    for (int first = 0; first < complete + 1; first += kPagePlaces) {
      const auto* keys = reinterpret_cast<const RecordKey*>(
          pools_.device_page(kv.key_frames[first / kPagePlaces], layer, head));
      const int end = std::min(complete + 1, first + kPagePlaces);
      RecordKey different = 0;
      for (int place = std::max(first, 1); place < end; ++place) {
        different |= keys[place - first] ^ (windows[place - 1] + salt);
      }
      if (different == 0) continue;
      Fault(absl::StrCat("layer ", layer, ", head ", head, ", a sequence of ", end_position,
                         " tokens: a compressed key is not that of its window"));
    }
  }
}

}  // namespace augur::tests
