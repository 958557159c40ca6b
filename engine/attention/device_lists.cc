// The writing half of DeviceAttention: a step's rows as arrays of op segments.
#include <algorithm>
#include <utility>

#include "engine/attention/device_attention.h"
#include "engine/attention/segment_blocks.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

using kernels::kBlockTokens;
using kernels::Segment;

}  // namespace

kernels::SelectionBudget DeviceAttention::BudgetOf(const StepSegment& segment) const {
  // One of more blocks than the context has chooses all of them, forced or not.
  const kernels::SelectionBudget& budget = segment.attention->budget;
  if (budget.top_k <= stride_) return budget;
  return {.top_k = stride_, .init = 0, .local = 2};
}

DeviceAttention::Rule DeviceAttention::RuleOf(AttentionPolicy policy) {
  AUGUR_CHECK(policy != AttentionPolicy::kDense);
  if (policy == AttentionPolicy::kInfinigen) return kInfinigenRule;
  return policy == AttentionPolicy::kSparse ? kSparseRule : kForecastRule;
}

bool DeviceAttention::ChoosesInTime(const StepSegment& segment) const {
  const memory::SequenceKv& kv = *segment.kv;
  const int first = segment.rows.first_position;
  return segment.rows.num_rows > 1 || (kv.demand.partial_keys && kv.partial_tokens < first) ||
         (has_biases() && tables_->biased_tokens(kv.id) < first);
}

Segment DeviceAttention::WithMissing(const AttentionPiece& piece, int have) {
  Segment rows = piece.rows;
  if (rows.first_position != piece.segment->rows.first_position) return rows;
  rows.first_position = std::min(rows.first_position, have);
  rows.num_rows += piece.rows.first_position - rows.first_position;
  return rows;
}

void DeviceAttention::Begin() {
  lists_.append.clear();
  lists_.compress.clear();
  lists_.evict.clear();
  lists_.tails.clear();
  for (auto& select : lists_.select) select.clear();
  for (int time = 0; time < kNumTimes; ++time) {
    lists_.place_first[time].clear();
    lists_.place[time].clear();
  }
  lists_.dense.clear();
  for (int parity = 0; parity < 2; ++parity) {
    lists_.chosen[parity].clear();
    lists_.choosing[parity].clear();
  }
  lists_.histories.clear();
  lists_.spills.clear();
  lists_.ends.clear();
  lists_.end_blocks.clear();
  lists_.end_counts.clear();
  lists_.sums.clear();
  lists_.channels.clear();
  lists_.project.clear();
  lists_.queries.clear();
  lists_.select_first.clear();
  lists_.value_sums.clear();
  lists_.own_sums.clear();
  lists_.sampled_dense.clear();
  for (auto& sampled : lists_.sampled) sampled.clear();
  lists_.reads.clear();
  main_ = {};
  staged_.clear();
  decode_rows_ = 0;
  generated_rows_ = 0;
  in_time_ = false;
  staged_infinigen_ = false;
  chained_values_ = false;
  num_staged_tails_ = 0;
}

kernels::AppendSegment DeviceAttention::AppendOf(const AttentionPiece& piece) {
  return {.rows = piece.rows,
          .pages = tables_->lists(piece.table) + FirstBlock(piece.rows),
          .block_stride = 1,
          .head_stride = tables_->options().max_blocks,
          .first_angle = options_.rope.first[piece.segment->rope_variant]};
}

// Windows that end in the rows; and in the blocks before them whose keys a prefix hit on resident
// blocks did not bring.
kernels::CompressSegment DeviceAttention::CompressOf(const AttentionPiece& piece) {
  Segment rows = piece.rows;
  const memory::SequenceKv& kv = *piece.segment->kv;
  if (!kv.tiered() && kv.keyed_blocks < FirstBlock(rows)) {
    rows.first_position = kv.keyed_blocks * kBlockTokens;
    rows.num_rows += piece.rows.first_position - rows.first_position;
  }
  return {.rows = rows,
          .pages = tables_->lists(piece.table) + FirstBlock(rows) - 1,
          .block_stride = 1,
          .head_stride = tables_->options().max_blocks,
          .key_pages = tables_->key_lists(piece.table),
          .key_page_stride = tables_->max_key_pages()};
}

kernels::AttentionSegment DeviceAttention::WholeOf(const AttentionPiece& piece) {
  return {.rows = piece.rows,
          .pages = tables_->lists(piece.table),
          .biases = has_biases() ? BiasesOf(piece.table) : nullptr,
          .list_stride = tables_->options().max_blocks};
}

kernels::SelectSegment DeviceAttention::SelectOf(const AttentionPiece& piece, Rule rule) {
  kernels::SelectSegment select{.rows = piece.rows, .budget = BudgetOf(*piece.segment)};
  if (rule == kInfinigenRule) {
    select.key_pages = tables_->partial_lists(piece.table);
    select.key_page_stride = tables_->max_partial_pages();
  } else {
    select.key_pages = tables_->key_lists(piece.table);
    select.key_page_stride = tables_->max_key_pages();
  }
  if (has_biases()) {
    AUGUR_CHECK(rule != kInfinigenRule);
    const kernels::SelectionBudget& budget = select.budget;
    select.eviction_pages = reinterpret_cast<const float* const*>(tables_->mean_lists(piece.table));
    select.query_top_k = std::clamp(options_.query_top_k, budget.init + budget.local, budget.top_k);
  }
  return select;
}

kernels::PlaceSegment DeviceAttention::PlaceOf(const AttentionPiece& piece, bool in_slots) {
  kernels::PlaceSegment place{.rows = piece.rows,
                              .sources = tables_->lists(piece.table),
                              .source_stride = tables_->options().max_blocks};
  if (!in_slots) return place;
  const kernels::SelectionBudget& budget = piece.segment->attention->budget;
  place.slot_blocks = tables_->slot_blocks(piece.table);
  place.slot_stamps = tables_->slot_stamps(piece.table);
  place.slot_pages = tables_->slot_pages(piece.table);
  place.slot_costs = tables_->slot_costs(piece.table);
  place.num_slots = piece.segment->kv->num_slots;
  place.slot_stride = tables_->options().max_slots;
  place.init = budget.init;
  place.local = budget.local;
  return place;
}

kernels::AttentionSegment DeviceAttention::ChosenOf(const AttentionPiece& piece, int parity) {
  Selection& selection = SelectionOf(parity);
  const size_t at = list_at(piece.rows.first_row);
  return {.rows = piece.rows,
          .pages = selection.pages.data() + at,
          .blocks = selection.blocks.data() + at,
          .counts = selection.counts.data() + size_t(piece.rows.first_row) * options_.num_kv_heads,
          .biases = has_biases()
                        ? reinterpret_cast<const float* const*>(selection.biases.data() + at)
                        : nullptr,
          .list_stride = stride_};
}

kernels::TailSegment DeviceAttention::TailOf(const AttentionPiece& piece) {
  const kernels::SelectionBudget& budget = piece.segment->attention->budget;
  return {.rows = piece.rows,
          .sources = tables_->lists(piece.table),
          .source_stride = tables_->options().max_blocks,
          .slot_blocks = tables_->slot_blocks(piece.table),
          .slot_stamps = tables_->slot_stamps(piece.table),
          .slot_pages = tables_->slot_pages(piece.table),
          .slot_costs = tables_->slot_costs(piece.table),
          .num_slots = piece.segment->kv->num_slots,
          .slot_stride = tables_->options().max_slots,
          .init = budget.init,
          .local = std::max(budget.local, 1)};
}

// Every array has an entry for every decode row, so that a recorded step finds them by row.
void DeviceAttention::AddPadding(int row) {
  AUGUR_CHECK(row == decode_rows_);
  ++decode_rows_;
  ++generated_rows_;
  const Segment none{.first_row = row};
  lists_.append.push_back({.rows = none});
  lists_.compress.push_back({.rows = none});
  if (has_biases()) lists_.evict.push_back({.rows = none});
  lists_.tails.push_back({.rows = none});
  for (auto& select : lists_.select) select.emplace_back().rows = none;
  for (int time = 0; time < kNumTimes; ++time) {
    lists_.place_first[time].push_back({.rows = none});
    lists_.place[time].push_back({.rows = none});
  }
  lists_.project.push_back({.rows = none});
  lists_.queries.push_back({.rows = none});
  lists_.select_first.emplace_back().rows = none;
  lists_.dense.push_back({.rows = none});
  for (auto& chosen : lists_.chosen) chosen.push_back({.rows = none});
  if (has_value_sums()) lists_.value_sums.push_back({.rows = none});
  if (!draws_values()) return;
  if (keeps_state()) lists_.own_sums.emplace_back();
  lists_.sampled_dense.emplace_back();
  for (auto& sampled : lists_.sampled) sampled.emplace_back();
  lists_.reads.emplace_back();
}

void DeviceAttention::AddDecodeRow(const AttentionPiece& piece) {
  AddPadding(piece.rows.first_row);
  const memory::SequenceKv& kv = *piece.segment->kv;
  in_time_ = in_time_ || ChoosesInTime(*piece.segment);
  lists_.append.back() = AppendOf(piece);
  if (kv.demand.selects) lists_.compress.back() = CompressOf(piece);
  if (has_biases()) lists_.evict.back() = EvictionOf(piece);
  if (kv.demand.partial_keys) lists_.project.back() = ProjectOf(piece);
  if (has_value_sums()) lists_.value_sums.back() = ValueSumsOf(piece);
  if (kv.tiered()) lists_.tails.back() = TailOf(piece);
  const bool samples = Samples(piece);
  if (samples) AddSampledRow(piece);
  if (piece.policy == AttentionPolicy::kDense) {
    AUGUR_CHECK(!kv.tiered());
    if (!samples) lists_.dense.back() = WholeOf(piece);
    return;
  }
  const Rule rule = RuleOf(piece.policy);
  lists_.select[rule].back() = SelectOf(piece, rule);
  if (rule == kInfinigenRule) {
    lists_.queries.back() = QueryOf(piece);
    lists_.select_first.back() = SelectOf(piece, kSparseRule);
  }
  lists_.place_first[TimeOf(rule)].back() = PlaceOf(piece, /*in_slots=*/false);
  lists_.place[TimeOf(rule)].back() = PlaceOf(piece, kv.tiered());
  const bool keeps_values = options_.values.fetch == memory::ValueFetch::kWhole;
  lists_.place[TimeOf(rule)].back().keys_only = samples && !keeps_values;
  for (int parity = 0; parity < 2 && !samples; ++parity) {
    lists_.chosen[parity].back() = ChosenOf(piece, parity);
  }
}

void DeviceAttention::AddAppended(const AttentionPiece& piece) {
  lists_.append.push_back(AppendOf(piece));
  if (piece.segment->kv->demand.selects) lists_.compress.push_back(CompressOf(piece));
  if (has_biases()) lists_.evict.push_back(EvictionOf(piece));
  if (has_value_sums()) lists_.value_sums.push_back(ValueSumsOf(piece));
}

void DeviceAttention::AddPromptPiece(const AttentionPiece& piece) {
  AddAppended(piece);
  if (piece.segment->kv->demand.partial_keys) AddSums(piece);
  kernels::AttentionSegment attend = WholeOf(piece);
  if (piece.policy == AttentionPolicy::kDense) {
    lists_.dense.push_back(attend);
    return;
  }
  const Rule rule = RuleOf(piece.policy);
  AUGUR_CHECK(rule != kInfinigenRule);
  lists_.select[rule].push_back(SelectOf(piece, rule));
  for (int parity = 0; parity < 2; ++parity) {
    attend.choices = SelectionOf(parity).blocks.data();
    attend.choice_counts = SelectionOf(parity).counts.data();
    attend.choice_stride = stride_;
    lists_.choosing[parity].push_back(attend);
  }
}

// A generated row that works in the staging area: it reads its blocks where the lists lead, as a
// resident one does.
void DeviceAttention::AddStagedRow(const AttentionPiece& piece) {
  AddAppended(piece);
  ++generated_rows_;
  if (piece.segment->kv->demand.partial_keys) lists_.project.push_back(ProjectOf(piece));
  const bool samples = Samples(piece);
  if (samples) AddStagedSampledRow(piece);
  if (piece.policy == AttentionPolicy::kDense) {
    if (!samples) lists_.dense.push_back(WholeOf(piece));
    return;
  }
  const Rule rule = RuleOf(piece.policy);
  lists_.select[rule].push_back(SelectOf(piece, rule));
  if (rule == kInfinigenRule) {
    staged_infinigen_ = true;
    lists_.queries.push_back(QueryOf(piece));
    lists_.select_first.push_back(SelectOf(piece, kSparseRule));
  }
  lists_.place_first[TimeOf(rule)].push_back(PlaceOf(piece, /*in_slots=*/false));
  lists_.place[TimeOf(rule)].push_back({.rows = {.first_row = piece.rows.first_row}});
  for (int parity = 0; parity < 2 && !samples; ++parity) {
    lists_.chosen[parity].push_back(ChosenOf(piece, parity));
  }
}

// Adds pieces that all are generated rows, or all prompts, as the next of every array; widens the
// group's ranges by them.
void DeviceAttention::AddPieces(std::span<const AttentionPiece> pieces, PhaseIndex phase,
                                Group* group) {
  const auto count_of = [](const auto& list) { return static_cast<int>(list.size()); };
  const auto open = [&](const auto& list, Range* range) {
    if (range->count == 0) range->first = count_of(list);
  };
  const auto close = [&](const auto& list, Range* range) {
    range->count = count_of(list) - range->first;
  };
  const auto each = [&](const auto& act) {
    act(lists_.append, &group->append);
    act(lists_.compress, &group->compress);
    act(lists_.evict, &group->evict);
    act(lists_.value_sums, &group->value_sums);
    act(lists_.dense, &group->dense[phase]);
    act(lists_.project, &group->project);
    for (int rule = 0; rule < kNumRules; ++rule) {
      act(lists_.select[rule], &group->select[rule][phase]);
    }
    if (phase == kDecodeRows) {
      for (int time = 0; time < kNumTimes; ++time) act(lists_.place[time], &group->place[time]);
      act(lists_.chosen[0], &group->chosen);
      act(lists_.queries, &group->queries);
      act(lists_.select_first, &group->select_first);
      act(lists_.own_sums, &group->own_sums);
      act(lists_.sampled_dense, &group->sampled_dense);
      act(lists_.sampled[0], &group->sampled);
    } else {
      act(lists_.choosing[0], &group->choosing);
      act(lists_.sums, &group->sums);
      act(lists_.channels, &group->channels);
    }
  };
  each(open);
  for (const AttentionPiece& piece : pieces) {
    phase == kDecodeRows ? AddStagedRow(piece) : AddPromptPiece(piece);
  }
  each(close);
}

void DeviceAttention::AddPrompt(const AttentionPiece& piece) {
  AUGUR_CHECK(staged_.empty());
  if (main_.append.count == 0) main_.append.count = decode_rows_;
  if (main_.compress.count == 0) main_.compress.count = decode_rows_;
  if (has_biases() && main_.evict.count == 0) main_.evict.count = decode_rows_;
  if (has_value_sums() && main_.value_sums.count == 0) main_.value_sums.count = decode_rows_;
  if (main_.project.count == 0) main_.project.count = decode_rows_;
  AddPieces({&piece, 1}, kPromptRows, &main_);
}

void DeviceAttention::AddStaged(std::span<const AttentionPiece> generated,
                                std::span<const AttentionPiece> prompt) {
  const AttentionPiece& first = prompt.empty() ? generated.front() : prompt.front();
  const AttentionPiece& last = generated.empty() ? prompt.back() : generated.back();
  Group group;
  group.segment = first.segment;
  group.table = first.table;
  AddPieces(generated, kDecodeRows, &group);
  AddPieces(prompt, kPromptRows, &group);

  const Segment& rows = first.segment->rows;
  const int first_block = FirstBlock(rows);
  const bool on_edge = rows.first_position % kBlockTokens == 0;
  AUGUR_CHECK(on_edge || rows.num_rows == 1);
  group.history_blocks = on_edge ? first_block : first_block + 1;
  group.num_spilled = on_edge ? CompleteBlocks(rows) - first_block : 0;
  if (!on_edge) {
    // A block that was begun before goes back to its slot, and from there to the host.
    group.returns_tail = true;
    lists_.tails.push_back(TailOf(first));
    ++num_staged_tails_;
  }
  std::byte** const lists = tables_->lists(group.table);
  std::byte** const staging = tables_->lists(tables_->options().num_tables);
  const int stride = tables_->options().max_blocks;
  lists_.histories.push_back({.from = lists,
                              .to = staging,
                              .from_stride = stride,
                              .to_stride = stride,
                              .num_blocks = group.history_blocks});
  lists_.spills.push_back({.from = staging + first_block,
                           .to = lists + first_block,
                           .from_stride = stride,
                           .to_stride = stride,
                           .num_blocks = on_edge ? group.num_spilled : 1});
  if (on_edge && rows.first_position + rows.num_rows >= first.segment->prompt_tokens) {
    AddEnd(last, &group);
  }
  staged_.push_back(group);
}

// What the segment's last row read goes into the slots, so that decoding starts warm; where it read
// all, its last blocks, the open one among them.
void DeviceAttention::AddEnd(const AttentionPiece& last, Group* group) {
  kernels::PlaceSegment end = PlaceOf(last, /*in_slots=*/true);
  end.rows = {.first_row = last.rows.first_row + last.rows.num_rows - 1,
              .num_rows = 1,
              .first_position = last.rows.first_position + last.rows.num_rows - 1};
  group->end = {static_cast<int>(lists_.ends.size()), 1};
  if (last.policy == AttentionPolicy::kDense) {
    const Segment& rows = group->segment->rows;
    const int end_block = EndBlock(rows);
    const int first = std::max(FirstBlock(rows), end_block - group->segment->kv->num_slots);
    group->end_list = static_cast<int>(lists_.end_counts.size()) / options_.num_kv_heads;
    end.rows.first_row = 0;
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      const size_t at = lists_.end_blocks.size();
      lists_.end_blocks.resize(at + end_stride());
      for (int block = first; block < end_block; ++block) {
        lists_.end_blocks[at + block - first] = block;
      }
      lists_.end_counts.push_back(end_block - first);
    }
  }
  lists_.ends.push_back(end);
}

void DeviceAttention::Finish(StepTables* tables, const AttentionCalls& calls, int rows,
                             int max_blocks) {
  calls_ = calls;
  rows_ = rows;
  max_blocks_ = max_blocks;
  if (main_.append.count == 0) main_.append.count = decode_rows_;
  if (selects() && main_.compress.count == 0) main_.compress.count = decode_rows_;
  if (has_biases() && main_.evict.count == 0) main_.evict.count = decode_rows_;
  if (has_value_sums() && main_.value_sums.count == 0) main_.value_sums.count = decode_rows_;
  const Range decode{0, decode_rows_};
  main_.dense[kDecodeRows] = calls.dense && calls.exact ? decode : Range{};
  main_.sampled_dense = calls.dense && calls.sampled ? decode : Range{};
  main_.select[kSparseRule][kDecodeRows] = calls.sparse ? decode : Range{};
  main_.select[kForecastRule][kDecodeRows] = calls.forecast ? decode : Range{};
  main_.select[kInfinigenRule][kDecodeRows] = calls.infinigen ? decode : Range{};
  main_.select_first = main_.queries = main_.select[kInfinigenRule][kDecodeRows];
  if (calls.infinigen && main_.project.count == 0) main_.project = decode;
  main_.place[kInTime] = calls.sparse ? decode : Range{};
  main_.place[kAhead] = calls.foretells() ? decode : Range{};
  main_.chosen = calls.selects() && calls.exact ? decode : Range{};
  main_.sampled = calls.selects() && calls.sampled ? decode : Range{};
  Pack(tables);
}

// A recorded step's arrays lie where those of the same calls and number of rows do.
void DeviceAttention::Pack(StepTables* tables) {
  const bool whole = main_.append.count > decode_rows_ || !staged_.empty();
  arrays_ = {};
  arrays_.append = tables->Put(lists_.append);
  if (selects()) arrays_.compress = tables->Put(lists_.compress);
  if (has_biases()) arrays_.evict = tables->Put(lists_.evict);
  if (whole || calls_.tiered) arrays_.tails = tables->Put(lists_.tails);
  const std::array<bool, kNumRules> called = {calls_.sparse, calls_.forecast, calls_.infinigen};
  for (int rule = 0; rule < kNumRules; ++rule) {
    if (whole || called[rule]) arrays_.select[rule] = tables->Put(lists_.select[rule]);
  }
  for (const Time time : {kInTime, kAhead}) {
    if (!whole && !(time == kInTime ? calls_.sparse : calls_.foretells())) continue;
    arrays_.place_first[time] = tables->Put(lists_.place_first[time]);
    arrays_.place[time] = tables->Put(lists_.place[time]);
  }
  if (has_infinigen() && (whole || calls_.infinigen)) {
    arrays_.project = tables->Put(lists_.project);
    arrays_.queries = tables->Put(lists_.queries);
    arrays_.select_first = tables->Put(lists_.select_first);
    if (whole) arrays_.sums = tables->Put(lists_.sums);
    if (whole) arrays_.channels = tables->Put(lists_.channels);
  }
  if (whole || (calls_.dense && calls_.exact)) arrays_.dense = tables->Put(lists_.dense);
  PackSampled(tables, whole);
  for (int parity = 0; parity < 2; ++parity) {
    if (whole || (calls_.selects() && calls_.exact)) {
      arrays_.chosen[parity] = tables->Put(lists_.chosen[parity]);
    }
    if (whole) arrays_.choosing[parity] = tables->Put(lists_.choosing[parity]);
  }
  if (staged_.empty()) return;
  arrays_.histories = tables->Put(lists_.histories);
  arrays_.spills = tables->Put(lists_.spills);
  arrays_.ends = tables->Put(lists_.ends);
  arrays_.end_blocks = tables->Put(lists_.end_blocks);
  arrays_.end_counts = tables->Put(lists_.end_counts);
}

size_t DeviceAttention::BytesOfStep(int rows, int segments) const {
  const size_t row_bytes =
      sizeof(kernels::AppendSegment) + sizeof(kernels::CompressSegment) +
      sizeof(kernels::TailSegment) + (has_biases() ? sizeof(kernels::EvictionSegment) : 0) +
      (kNumRules + 1) * sizeof(kernels::SelectSegment) +
      2 * kNumTimes * sizeof(kernels::PlaceSegment) + 5 * sizeof(kernels::AttentionSegment) +
      (has_infinigen()
           ? sizeof(kernels::ProjectSegment) + sizeof(kernels::QuerySegment) +
                 sizeof(kernels::ChannelSegment) + sizeof(kernels::ChooseChannelsSegment)
           : 0) +
      SampledBytesOfRow();
  const size_t segment_bytes =
      2 * sizeof(kernels::PageRange) + sizeof(kernels::PlaceSegment) +
      sizeof(int32_t) * options_.num_kv_heads * (size_t(is_tiered() ? end_stride() : 0) + 1);
  constexpr size_t kArrays = 40, kAlignment = 64;
  return rows * row_bytes + segments * segment_bytes + kArrays * kAlignment;
}

}  // namespace augur::engine
