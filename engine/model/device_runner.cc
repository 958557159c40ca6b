#include "engine/model/device_runner.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/attention/segment_blocks.h"
#include "engine/batcher.h"
#include "kernels/check.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

using kernels::Backend;
using kernels::kBlockTokens;
using kernels::Segment;

bool SameDraw(const kernels::SamplingRow& a, const kernels::SamplingRow& b) {
  return a.temperature == b.temperature && a.top_k == b.top_k && a.top_p == b.top_p &&
         a.min_p == b.min_p && a.seed == b.seed && a.choice_index == b.choice_index &&
         a.position == b.position;
}

// One generated token whose successor is wanted.
bool IsDecodeRow(const StepSegment& segment) {
  return segment.rows.num_rows == 1 && segment.wants_token &&
         segment.rows.first_position >= segment.prompt_tokens;
}

// Of the rows of a step, those of generated tokens, which are its last.
int GeneratedRows(const StepSegment& segment) {
  const int end = segment.rows.first_position + segment.rows.num_rows;
  return std::clamp(end - segment.prompt_tokens, 0, segment.rows.num_rows);
}

AttentionPolicy PolicyOf(const StepSegment& segment, int position) {
  return PolicyAt(*segment.attention, position, segment.prompt_tokens);
}

// Whether its rows work in the staging area (engine/attention/device_attention.h).
bool IsStaged(const StepSegment& segment) {
  if (!segment.kv->tiered()) return false;
  const bool one_generated = segment.rows.num_rows == 1 && GeneratedRows(segment) == 1;
  return !one_generated ||
         PolicyOf(segment, segment.rows.first_position) == AttentionPolicy::kDense;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceRunner>> DeviceRunner::Create(
    Backend* backend, const ModelConfig& config, TransformerWeights weights,
    const DeviceRunnerOptions& options, memory::KvMemory* kv, memory::DeviceTransfers* transfers,
    const memory::Clock* clock) {
  std::unique_ptr<DeviceRunner> runner(
      new DeviceRunner(backend, config, options, kv, transfers, clock));
  // q, k, v, then the Forecast for the next layer and, in layer 0, the heads for itself.
  const int kv_widths = options.has_forecast ? 4 : 2;
  AUGUR_ASSIGN_OR_RETURN(
      runner->layers_,
      TransformerLayers::Create(backend, config, std::move(weights),
                                {.max_rows = options.max_rows,
                                 .max_sampled = options.max_segments,
                                 .max_context = options.max_context,
                                 .qkv_stride = config.q_width() + kv_widths * config.kv_width()}));
  AUGUR_ASSIGN_OR_RETURN(runner->rules_state_,
                         LogitState::Create(backend, options.max_segments, config.vocab_size));
  AUGUR_RETURN_IF_ERROR(runner->CreateAttention());
  AUGUR_RETURN_IF_ERROR(runner->Allocate());
  runner->RecordGraphs();
  AUGUR_RETURN_IF_ERROR(runner->CreateGrants(options.copy_ctas));
  return runner;
}

DeviceRunner::DeviceRunner(Backend* backend, const ModelConfig& config,
                           const DeviceRunnerOptions& options, memory::KvMemory* kv,
                           memory::DeviceTransfers* transfers, const memory::Clock* clock)
    : backend_(backend),
      config_(config),
      options_(options),
      store_(kv->store()),
      stats_(kv->stats()),
      transfers_(transfers),
      clock_(clock),
      max_blocks_(BlocksFor(options.max_context)),
      buckets_(DecodeBuckets(options.max_segments)),
      classes_(LengthClasses(max_blocks_)),
      counted_(config.num_layers) {
  AUGUR_CHECK(options.max_segments > 0 && options.max_segments <= options.max_rows);
  AUGUR_CHECK(options.max_slots == 0 || transfers != nullptr);
}

DeviceRunner::~DeviceRunner() {
  backend_->Synchronize();
  graphs_.clear();
  for (void* allocation : host_allocations_) backend_->Free(allocation);
}

const InfinigenBasis* DeviceRunner::infinigen_basis() const {
  const std::optional<InfinigenBasis>& basis = layers_->weights().infinigen;
  return basis ? &*basis : nullptr;
}

absl::Status DeviceRunner::CreateAttention() {
  const bool keeps_state = options_.values.needs_value_sums();
  const int group_heads = config_.num_q_heads / config_.num_kv_heads;
  const int value_state = keeps_state ? kernels::ValueStateFloats(group_heads) : 0;
  AUGUR_ASSIGN_OR_RETURN(tables_, SequenceTables::Create(backend_, store_->pools(),
                                                         {.num_tables = options_.max_segments,
                                                          .max_blocks = max_blocks_,
                                                          .max_slots = options_.max_slots,
                                                          .selects = options_.max_top_k > 0,
                                                          .partial_keys = has_infinigen(),
                                                          .keys_alone = options_.values.offered(),
                                                          .value_state = value_state}));
  std::span<const LayerWeights> head_norms;
  if (config_.has_head_norms) head_norms = layers_->weights().layers;
  std::span<const LayerWeights> eviction_weights;
  if (config_.has_eviction_heads) eviction_weights = layers_->weights().layers;
  AUGUR_ASSIGN_OR_RETURN(
      attention_,
      DeviceAttention::Create(backend_,
                              {.num_layers = config_.num_layers,
                               .num_q_heads = config_.num_q_heads,
                               .num_kv_heads = config_.num_kv_heads,
                               .head_dim = config_.head_dim,
                               .kv_dtype = options_.kv_dtype,
                               .out_dtype = layers_->activation_dtype(),
                               .has_forecast = options_.has_forecast,
                               .max_rows = options_.max_rows,
                               .max_segments = options_.max_segments,
                               .max_top_k = std::min(options_.max_top_k, max_blocks_),
                               .prefetch = options_.prefetch,
                               .copy_ctas = options_.copy_ctas.max_ctas,
                               .driven = options_.driven,
                               .ordering = options_.ordering,
                               .row_stride = layers_->qkv_stride(),
                               .attention_scale = config_.attention_scale(),
                               .rope = layers_->rope(),
                               .head_norms = head_norms,
                               .head_norm_epsilon = static_cast<float>(config_.rms_norm_epsilon),
                               .infinigen_basis = infinigen_basis(),
                               .query_weights = layers_->weights().layers,
                               .hidden_size = config_.hidden_size,
                               .eviction_weights = eviction_weights,
                               .query_top_k = config_.query_top_k_blocks,
                               .values = options_.values},
                              tables_.get(), transfers_));
  if (options_.max_slots == 0) return absl::OkStatus();
  // A chunk's blocks, two that each sequence ends or begins, and some of one that is moved behind.
  constexpr int kMovedBehind = 256;
  const int spilled = options_.max_rows / kBlockTokens + 2 * options_.max_segments + kMovedBehind;
  AUGUR_ASSIGN_OR_RETURN(spills_,
                         SpillQueue::Create(backend_, tables_.get(), store_, transfers_, spilled));
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> DeviceRunner::AllocateHost(size_t bytes) {
  void* const data = backend_->AllocateHost(bytes);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no pinned memory for a step's results: ", bytes, " bytes (batch ",
                     options_.max_segments, ")"));
  }
  host_allocations_.push_back(data);
  return static_cast<std::byte*>(data);
}

absl::Status DeviceRunner::Allocate() {
  const auto bytes_of = [&](int rows) {
    constexpr size_t kAlignments = 8 * 64;
    const size_t sampled =
        options_.max_segments *
        (2 * sizeof(int32_t) + sizeof(kernels::SamplingRow) + sizeof(kernels::LogitRule));
    constexpr size_t kRowArrays = 4;  // ids, and three of tokens that are told
    return rows * kRowArrays * sizeof(int32_t) + sampled + kAlignments +
           attention_->BytesOfStep(rows, options_.max_segments);
  };
  AUGUR_ASSIGN_OR_RETURN(decode_tables_,
                         StepTables::Create(backend_, bytes_of(options_.max_segments)));
  AUGUR_ASSIGN_OR_RETURN(mixed_tables_, StepTables::Create(backend_, bytes_of(options_.max_rows)));
  device_tokens_ = kernels::BackendArray<int32_t>(backend_, options_.max_segments);
  using kernels::TokenLogprobsRow;
  device_logprobs_ = kernels::BackendArray<TokenLogprobsRow>(backend_, options_.max_segments);
  device_told_ = kernels::BackendArray<TokenLogprobsRow>(backend_, options_.max_rows);
  if (!device_tokens_.allocated() || !device_logprobs_.allocated() || !device_told_.allocated()) {
    return absl::ResourceExhaustedError("no memory for tokens and their log probabilities");
  }
  AUGUR_ASSIGN_OR_RETURN(std::byte* const told,
                         AllocateHost(options_.max_rows * sizeof(TokenLogprobsRow)));
  told_ = reinterpret_cast<TokenLogprobsRow*>(told);
  const size_t layers = config_.num_layers;
  for (StepResult& result : results_) {
    AUGUR_ASSIGN_OR_RETURN(std::byte* const tokens,
                           AllocateHost(options_.max_segments * sizeof(int32_t)));
    AUGUR_ASSIGN_OR_RETURN(std::byte* const placement,
                           AllocateHost(layers * sizeof(kernels::PlacementCounts)));
    AUGUR_ASSIGN_OR_RETURN(std::byte* const stamps, AllocateHost(2 * layers * sizeof(int64_t)));
    AUGUR_ASSIGN_OR_RETURN(std::byte* const sampled, AllocateHost(sizeof(SampledTotals)));
    AUGUR_ASSIGN_OR_RETURN(std::byte* const logprobs,
                           AllocateHost(options_.max_segments * sizeof(TokenLogprobsRow)));
    result = {.tokens = reinterpret_cast<int32_t*>(tokens),
              .placement = reinterpret_cast<kernels::PlacementCounts*>(placement),
              .stamps = reinterpret_cast<int64_t*>(stamps),
              .sampled = reinterpret_cast<SampledTotals*>(sampled),
              .logprobs = reinterpret_cast<TokenLogprobsRow*>(logprobs)};
  }
  return absl::OkStatus();
}

void DeviceRunner::Run(const StepInputs& inputs, StepOutputs* outputs) {
  const int rows = static_cast<int>(inputs.token_ids.size());
  AUGUR_CHECK(rows > 0 && rows <= options_.max_rows);
  AUGUR_CHECK(static_cast<int>(inputs.segments.size()) <= options_.max_segments);
  MatchAhead(inputs);
  const InFlight foreseen = ahead_;
  const int answered = static_cast<int>(
      std::count_if(answered_.begin(), answered_.end(), [](int row) { return row >= 0; }));
  rows_foreseen_ += answered;
  InFlight rest;
  if (answered < static_cast<int>(inputs.segments.size())) rest = LaunchRest(inputs);
  NoteComputed(inputs);
  // Before the wait: so the device goes on while the host learns what this step drew.
  has_ahead_ = options_.run_ahead && GatherGraphRows(inputs);
  if (has_ahead_) LaunchAhead();
  if (answered > 0) WaitFor(foreseen);
  if (rest.mark != 0) WaitFor(rest);
  if (has_ahead_) {
    const int32_t* tokens = answered > 0 ? foreseen.result.tokens : rest.result.tokens;
    last_tokens_.assign(tokens, tokens + ahead_rows_.size());
  }
  FillOutputs(inputs, foreseen, rest, outputs);
}

void DeviceRunner::FillOutputs(const StepInputs& inputs, const InFlight& foreseen,
                               const InFlight& rest, StepOutputs* outputs) const {
  const size_t segments = inputs.segments.size();
  const bool told = std::any_of(inputs.segments.begin(), inputs.segments.end(),
                                [](const StepSegment& one) { return one.logprobs >= 0; });
  outputs->tokens.assign(segments, 0);
  outputs->logprobs.clear();
  if (told) outputs->logprobs.resize(segments);
  int next = 0, num_told = 0;
  for (size_t i = 0; i < segments; ++i) {
    const StepSegment& segment = inputs.segments[i];
    num_told += ToldRowsOf(segment).count;
    if (answered_[i] < 0 && !segment.wants_token) continue;
    const StepResult& result = answered_[i] >= 0 ? foreseen.result : rest.result;
    const int at = answered_[i] >= 0 ? answered_[i] : next++;
    outputs->tokens[i] = result.tokens[at];
    if (segment.logprobs >= 0) outputs->logprobs[i] = result.logprobs[at];
  }
  outputs->prompt_logprobs.assign(told_, told_ + num_told);
}

// What the step's rows complete is on the device, or will be in the order of ops.
void DeviceRunner::NoteComputed(const StepInputs& inputs) {
  for (const StepSegment& segment : inputs.segments) {
    memory::SequenceKv* const kv = segment.kv;
    kv->keyed_blocks = std::max(kv->keyed_blocks, CompleteBlocks(segment.rows));
    const int end = segment.rows.first_position + segment.rows.num_rows;
    kv->summed_blocks = std::max(kv->summed_blocks, CompleteBlocks(segment.rows));
    if (config_.has_eviction_heads) tables_->NoteBiased(kv->id, end);
    if (segment.attention->values.sampled && end > segment.prompt_tokens) {
      tables_->NoteValueState(kv->id, end - 1);
    }
    if (!kv->demand.partial_keys) continue;
    kv->summed_tokens = std::max(kv->summed_tokens, std::min(end, segment.prompt_tokens));
    if (end >= segment.prompt_tokens) kv->partial_tokens = std::max(kv->partial_tokens, end);
  }
  if (spills_ == nullptr) return;
  // A chunk on a block's edge has sent its pages; a block begun before lies in its slot.
  const auto has_sent = [](const StepSegment& segment) {
    return IsStaged(segment) && segment.rows.first_position % kBlockTokens == 0;
  };
  const auto add = [&](bool tiered, bool sent) {
    for (const StepSegment& segment : inputs.segments) {
      if (segment.kv->tiered() != tiered || has_sent(segment) != sent) continue;
      spills_->Add(segment.kv, tables_->TableOf(segment.kv->id), CompleteBlocks(segment.rows),
                   sent);
    }
  };
  // The queue has room for all of the tiered ones; what is moved behind takes the rest.
  add(/*tiered=*/true, /*sent=*/true);
  add(/*tiered=*/true, /*sent=*/false);
  add(/*tiered=*/false, /*sent=*/false);
  spills_->Flush();
}

void DeviceRunner::MatchAhead(const StepInputs& inputs) {
  answered_.assign(inputs.segments.size(), -1);
  if (!has_ahead_) return;
  const int rows = static_cast<int>(ahead_rows_.size());
  int at = 0;  // sequences mostly come in the same order
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    const StepSegment& segment = inputs.segments[i];
    if (!IsDecodeRow(segment)) continue;
    for (int tried = 0; tried < rows; ++tried, at = (at + 1) % rows) {
      const GraphRow& row = ahead_rows_[at];
      if (row.epoch != segment.kv->frames_epoch || row.sequence != segment.kv->id) continue;
      const bool went_on = row.position == segment.rows.first_position &&
                           last_tokens_[at] == inputs.token_ids[segment.rows.first_row] &&
                           SameDraw(row.sampling, segment.sampling) &&
                           (row.rule.slot >= 0) == (segment.rules != nullptr);
      if (went_on) answered_[i] = at;
      break;
    }
  }
}

DeviceRunner::InFlight DeviceRunner::LaunchRest(const StepInputs& inputs) {
  StepShape shape = PlanPieces(inputs);
  sampled_ = shape.sampled;
  const bool in_time = std::any_of(
      pieces_.decode.begin(), pieces_.decode.end(),
      [&](const Piece& piece) { return attention_->ChoosesInTime(*piece.attention.segment); });
  const bool as_graph = pieces_.decode.size() == static_cast<size_t>(shape.phases.rows) &&
                        shape.phases.rows <= options_.max_segments && !in_time;
  // What staged rows will read has been written, and lists of earlier steps have been read.
  const bool staged = !pieces_.staged_generated.empty() || !pieces_.staged_prompt.empty();
  if (staged) backend_->Follow(backend_->OnLane(kernels::Lane::kSpill));
  attention_->Begin();
  FillRows(inputs);
  StepTables* const tables = as_graph ? decode_tables_.get() : mixed_tables_.get();
  GraphKey graph;
  if (as_graph) {
    graph = KeyOf(shape);
    PadToGraph(std::get<1>(graph));
    shape.calls = std::get<0>(graph);
  }
  tables->Begin();
  const StepArrays arrays = Put(tables);
  attention_->Finish(tables, shape.calls, as_graph ? std::get<1>(graph) : shape.phases.rows,
                     as_graph ? std::get<2>(graph) : shape.max_blocks);
  const StepOptions step_options = PutOptions(tables);
  tables_->Upload();
  tables->Upload();
  QuotaPlan quota;
  if (as_graph) {
    quota = LaunchGraph(graph);
  } else {
    RunOps(backend_, shape, arrays, step_options.told);
  }
  RunOptions(arrays, step_options, shape.sampled);
  InFlight step = CopyResult(shape.sampled, shape.calls, step_options);
  step.quota = quota;
  return step;
}

DeviceRunner::StepShape DeviceRunner::PlanPieces(const StepInputs& inputs) {
  StepShape shape;
  for (std::vector<Piece>* pieces :
       {&pieces_.decode, &pieces_.staged_generated, &pieces_.prompt, &pieces_.staged_prompt}) {
    pieces->clear();
  }
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    if (answered_[i] < 0) PlanSegment(inputs.segments[i], &shape);
  }
  return shape;
}

// Cut where the token's phase or policy changes.
void DeviceRunner::PlanSegment(const StepSegment& segment, StepShape* shape) {
  const Segment& rows = segment.rows;
  const int end = rows.first_position + rows.num_rows;
  AUGUR_CHECK(rows.num_rows > 0 && end <= layers_->rope().covers[segment.rope_variant]);
  const bool staged = IsStaged(segment);
  const int table = Prepare(segment, rows, staged);
  const int first_generated = end - GeneratedRows(segment);
  for (int position = rows.first_position; position < end;) {
    const bool generated = position >= first_generated;
    const int next =
        generated ? position + 1
                  : std::min(first_generated,
                             NextPolicyChange(*segment.attention, position, segment.prompt_tokens));
    Piece piece{.attention = {.segment = &segment,
                              .rows = {.num_rows = next - position, .first_position = position},
                              .table = table,
                              .policy = PolicyOf(segment, position)},
                .first_token = position - rows.first_position};
    if (generated) {
      (staged ? pieces_.staged_generated : pieces_.decode).push_back(piece);
      if (!staged) AddCalls(piece.attention, shape);
    } else {
      (staged ? pieces_.staged_prompt : pieces_.prompt).push_back(piece);
    }
    position = next;
  }
  shape->phases.decode_rows += GeneratedRows(segment);
  shape->phases.rows += rows.num_rows;
  shape->sampled += segment.wants_token ? 1 : 0;
  shape->max_blocks = std::max(shape->max_blocks, EndBlock(rows));
}

int DeviceRunner::Prepare(const StepSegment& segment, const Segment& rows, bool staged) {
  memory::SequenceKv* const kv = segment.kv;
  const int first = FirstBlock(rows);
  if (!kv->tiered()) return tables_->Prepare(*kv, EndBlock(rows), 0);
  if (staged) {
    const bool on_edge = rows.first_position % kBlockTokens == 0;
    return tables_->Prepare(*kv, EndBlock(rows), on_edge ? CompleteBlocks(rows) : first);
  }
  const bool in_order = options_.ordering.missing != OrderingEdge::kWriteBeforeFetch;
  if (in_order) WaitForWrites(kv, first, segment.attention->budget.local);
  // The window that crosses into this block reads the one before, which its prompt's last chunk may
  // still be writing to the host page that the lists lead to.
  if (in_order && tables_->OnHost(kv->id) > kv->landed_everywhere()) {
    backend_->Follow(backend_->OnLane(kernels::Lane::kSpill));
  }
  return tables_->Prepare(*kv, EndBlock(rows), kv->landed_everywhere());
}

// Slots of all blocks outside the local window of `block` may be victims: they must have landed.
void DeviceRunner::WaitForWrites(memory::SequenceKv* kv, int block, int local) {
  while (kv->landed_everywhere() < block - local + 1) {
    AUGUR_CHECK(!kv->writes.empty());
    transfers_->Wait(kv->writes.front().ticket);
    store_->PollWrites(kv);
  }
}

void DeviceRunner::AddCalls(const AttentionPiece& piece, StepShape* shape) const {
  shape->calls.dense |= piece.policy == AttentionPolicy::kDense;
  shape->calls.sparse |= piece.policy == AttentionPolicy::kSparse;
  shape->calls.forecast |= piece.policy == AttentionPolicy::kForecast;
  // Short ones that still read everything make partial keys as well.
  shape->calls.infinigen |= piece.segment->kv->demand.partial_keys;
  shape->calls.tiered |= piece.segment->kv->tiered();
  const bool sampled = piece.segment->attention->values.sampled;
  shape->calls.sampled |= sampled;
  shape->calls.exact |= !sampled;
}

void DeviceRunner::FillRows(const StepInputs& inputs) {
  host_.token_ids.clear();
  host_.sampled_rows.clear();
  host_.sampling.clear();
  host_.rules.clear();
  host_.top.clear();
  host_.told.Clear();
  last_rows_.assign(inputs.segments.size(), 0);
  for (std::vector<Piece>* pieces :
       {&pieces_.decode, &pieces_.staged_generated, &pieces_.prompt, &pieces_.staged_prompt}) {
    for (Piece& piece : *pieces) FillPiece(inputs, &piece);
  }
  for (const Piece& piece : pieces_.decode) attention_->AddDecodeRow(piece.attention);
  for (const Piece& piece : pieces_.prompt) attention_->AddPrompt(piece.attention);
  AddStaged();
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    if (answered_[i] >= 0 || !inputs.segments[i].wants_token) continue;
    host_.sampled_rows.push_back(last_rows_[i]);
    host_.sampling.push_back(inputs.segments[i].sampling);
    host_.rules.push_back(rules_state_->Prepare(inputs.segments[i]));
    host_.top.push_back(inputs.segments[i].logprobs);
  }
  AddTold(inputs);
}

// In the order of segments, as the engine reads them; a prompt's rows stand in several pieces.
void DeviceRunner::AddTold(const StepInputs& inputs) {
  for (const StepSegment& segment : inputs.segments) {
    const ToldRows told = ToldRowsOf(segment);
    for (int position = told.first; position < told.first + told.count; ++position) {
      const int row = RowOf(segment, position);
      host_.told.Add(row, segment.tokens[position + 1], segment.prompt_logprobs);
    }
  }
}

int DeviceRunner::RowOf(const StepSegment& segment, int position) const {
  for (const std::vector<Piece>* pieces : {&pieces_.prompt, &pieces_.staged_prompt}) {
    for (const Piece& piece : *pieces) {
      const Segment& rows = piece.attention.rows;
      const int place = position - rows.first_position;
      if (piece.attention.segment == &segment && place >= 0 && place < rows.num_rows) {
        return rows.first_row + place;
      }
    }
  }
  AUGUR_CHECK(!"a position of the prompt in this step");
  return -1;
}

void DeviceRunner::FillPiece(const StepInputs& inputs, Piece* piece) {
  Segment& rows = piece->attention.rows;
  const StepSegment& segment = *piece->attention.segment;
  rows.first_row = static_cast<int>(host_.token_ids.size());
  const auto first = inputs.token_ids.begin() + segment.rows.first_row + piece->first_token;
  host_.token_ids.insert(host_.token_ids.end(), first, first + rows.num_rows);
  // A segment's last token is the last row of its last piece.
  if (piece->first_token + rows.num_rows == segment.rows.num_rows) {
    last_rows_[&segment - inputs.segments.data()] = rows.first_row + rows.num_rows - 1;
  }
}

void DeviceRunner::AddStaged() {
  size_t generated = 0, prompt = 0;
  const auto take = [](const std::vector<Piece>& from, size_t* at, const StepSegment* segment,
                       std::vector<AttentionPiece>* to) {
    to->clear();
    while (*at < from.size() && from[*at].attention.segment == segment) {
      to->push_back(from[(*at)++].attention);
    }
  };
  const auto segment_at = [](const std::vector<Piece>& from, size_t at) {
    return at < from.size() ? from[at].attention.segment : nullptr;
  };
  while (true) {
    // Both lists are in the order of segments.
    const StepSegment* next = segment_at(pieces_.staged_generated, generated);
    const StepSegment* other = segment_at(pieces_.staged_prompt, prompt);
    if (next == nullptr || (other != nullptr && other < next)) next = other;
    if (next == nullptr) return;
    take(pieces_.staged_generated, &generated, next, &staged_generated_);
    take(pieces_.staged_prompt, &prompt, next, &staged_prompt_);
    attention_->AddStaged(staged_generated_, staged_prompt_);
  }
}

// Rows that belong to nobody: they embed token 0, attend to nothing, and what is drawn for them is
// not read.
void DeviceRunner::PadToGraph(int bucket) {
  for (int row = static_cast<int>(host_.token_ids.size()); row < bucket; ++row) {
    host_.token_ids.push_back(0);
    attention_->AddPadding(row);
  }
  while (static_cast<int>(host_.sampled_rows.size()) < bucket) {
    host_.sampled_rows.push_back(0);
    host_.sampling.push_back({.temperature = 0.0f});
  }
}

DeviceRunner::StepArrays DeviceRunner::Put(StepTables* tables) {
  return {.token_ids = tables->Put(host_.token_ids),
          .sampled_rows = tables->Put(host_.sampled_rows),
          .sampling = tables->Put(host_.sampling)};
}

DeviceRunner::StepOptions DeviceRunner::PutOptions(StepTables* tables) {
  StepOptions options;
  if (HasRules(host_.rules)) options.rules = tables->Put(host_.rules);
  if (WantsLogprobs(host_.top)) options.top = tables->Put(host_.top);
  if (!host_.told.row_ids.empty()) {
    options.told = {.row_ids = tables->Put(host_.told.row_ids),
                    .tokens = tables->Put(host_.told.tokens),
                    .top = tables->Put(host_.told.top),
                    .out = device_told_.data(),
                    .rows = static_cast<int>(host_.told.row_ids.size())};
  }
  return options;
}

// The step's own draw, of logits as they are, is not worth a second recording of every step.
void DeviceRunner::RunOptions(const StepArrays& arrays, const StepOptions& options, int sampled) {
  if (options.rules != nullptr) {
    layers_->SampleByRules(backend_, {options.rules, rules_state_.get()}, arrays.sampled_rows,
                           arrays.token_ids, arrays.sampling, sampled, device_tokens_.data());
  }
  if (options.top != nullptr) {
    layers_->TopLogprobs(backend_, device_tokens_.data(), options.top, sampled,
                         device_logprobs_.data());
  }
}

// Only where all tokens of this step lie in one order on the device: that of the graph which it
// launched, or of the one which had been run ahead.
bool DeviceRunner::GatherGraphRows(const StepInputs& inputs) {
  const bool by_ahead = answered_[0] >= 0;
  const int segments = static_cast<int>(inputs.segments.size());
  graph_rows_.assign(by_ahead ? ahead_rows_.size() : segments, {});
  int going_on = 0;
  for (int i = 0; i < segments; ++i) {
    const StepSegment& segment = inputs.segments[i];
    if ((answered_[i] >= 0) != by_ahead || !IsDecodeRow(segment)) return false;
    const int position = segment.rows.first_position + 1;
    if (!MayRunAhead(segment, position)) continue;
    GraphRow& row = graph_rows_[by_ahead ? answered_[i] : i];
    row = {&segment,        segment.kv->id,   segment.kv->frames_epoch,
           position,        segment.sampling, rules_state_->Next(segment),
           segment.logprobs};
    row.sampling.position += 1;
    ++going_on;
  }
  // Where many rows have gone the next step had better be packed anew.
  return going_on > 0 && 4 * going_on >= 3 * static_cast<int>(graph_rows_.size());
}

// The engine may have no block for it, and a sequence at its end needs none; nothing is waited for.
bool DeviceRunner::MayRunAhead(const StepSegment& segment, int position) const {
  const memory::SequenceKv& kv = *segment.kv;
  const size_t blocks = kv.tiered() ? kv.host_blocks.size() : kv.frames.size();
  const int block = position / kBlockTokens;
  if (block >= static_cast<int>(blocks)) return false;
  if (position >= layers_->rope().covers[segment.rope_variant]) return false;
  if (!kv.tiered()) return true;
  return PolicyOf(segment, position) != AttentionPolicy::kDense &&
         kv.landed_everywhere() >= block - segment.attention->budget.local + 1;
}

void DeviceRunner::LaunchAhead() {
  ahead_rows_.swap(graph_rows_);
  const int rows = static_cast<int>(ahead_rows_.size());
  StepShape shape;
  shape.phases = {.decode_rows = rows, .rows = rows};
  shape.sampled = rows;
  attention_->Begin();
  host_.token_ids.assign(rows, 0);  // the device has them
  host_.sampled_rows.clear();
  host_.sampling.clear();
  host_.rules.clear();
  host_.top.clear();
  host_.told.Clear();
  for (int i = 0; i < rows; ++i) {
    GraphRow& row = ahead_rows_[i];
    host_.sampled_rows.push_back(i);
    host_.sampling.push_back(row.sampling);
    host_.rules.push_back(row.rule);
    host_.top.push_back(row.logprobs);
    if (row.segment == nullptr) {
      attention_->AddPadding(i);
      host_.sampling.back().temperature = 0.0f;
      continue;
    }
    const Segment one{.first_row = i, .num_rows = 1, .first_position = row.position};
    const AttentionPiece piece{.segment = row.segment,
                               .rows = one,
                               .table = Prepare(*row.segment, one, /*staged=*/false),
                               .policy = PolicyOf(*row.segment, row.position)};
    attention_->AddDecodeRow(piece);
    AddCalls(piece, &shape);
    row.segment = nullptr;
    shape.max_blocks = std::max(shape.max_blocks, EndBlock(one));
  }
  const GraphKey graph = KeyOf(shape);
  const auto& [calls, bucket, blocks] = graph;
  PadToGraph(bucket);
  decode_tables_->Begin();
  const StepArrays arrays = Put(decode_tables_.get());
  attention_->Finish(decode_tables_.get(), calls, bucket, blocks);
  const StepOptions step_options = PutOptions(decode_tables_.get());
  tables_->Upload();
  decode_tables_->Upload();
  backend_->Copy(arrays.token_ids, device_tokens_.data(), rows * sizeof(int32_t));
  const QuotaPlan quota = LaunchGraph(graph);
  RunOptions(arrays, step_options, rows);
  ahead_ = CopyResult(rows, calls, step_options);
  ahead_.quota = quota;
}

// A ring of three: the step that is answered, the rest that runs beside it, and the one ahead.
DeviceRunner::InFlight DeviceRunner::CopyResult(int count, const AttentionCalls& calls,
                                                const StepOptions& options) {
  next_result_ = (next_result_ + 1) % static_cast<int>(results_.size());
  const StepResult& result = results_[next_result_];
  if (count > 0) backend_->Copy(result.tokens, device_tokens_.data(), count * sizeof(int32_t));
  constexpr size_t kToldBytes = sizeof(kernels::TokenLogprobsRow);
  if (options.top != nullptr) {
    backend_->Copy(result.logprobs, device_logprobs_.data(), count * kToldBytes);
  }
  if (options.told.rows > 0) {
    backend_->Copy(told_, device_told_.data(), options.told.rows * kToldBytes);
  }
  if (calls.tiered) {
    const size_t layers = config_.num_layers;
    backend_->Copy(result.placement, attention_->placement(),
                   layers * sizeof(kernels::PlacementCounts));
    backend_->Copy(result.stamps, attention_->stamps(), 2 * layers * sizeof(int64_t));
  }
  if (options_.values.offered()) {
    backend_->Copy(result.sampled, attention_->sampled_totals(), sizeof(SampledTotals));
  }
  return {.mark = backend_->Mark(), .result = result, .calls = calls};
}

void DeviceRunner::WaitFor(const InFlight& step) {
  const int64_t start_ns = clock_->NowNs();
  backend_->Wait(step.mark);
  waited_ns_ += clock_->NowNs() - start_ns;
  if (step.calls.tiered) CountTransfers(step);
  if (options_.values.offered()) CountSampled(*step.result.sampled);
}

void DeviceRunner::CountSampled(const SampledTotals& now) {
  const SampledTotals& before = counted_sampled_;
  stats_->sampled_draws += now.counts.draws - before.counts.draws;
  stats_->sampled_rows += now.counts.rows - before.counts.rows;
  stats_->sampled_distinct_rows += now.counts.distinct - before.counts.distinct;
  const uint64_t host_rows = now.host_rows - before.host_rows;
  stats_->host_rows += host_rows;
  stats_->row_bytes += host_rows * store_->pools().layout.host_row_bytes();
  counted_sampled_ = now;
}

uint64_t DeviceRunner::CountBytes(const kernels::PlacementCounts& now,
                                  const kernels::PlacementCounts& before) {
  const memory::KvLayout& layout = store_->pools().layout;
  const uint64_t keys_only = now.keys_only - before.keys_only;
  const uint64_t pages = (now.fetched - before.fetched - keys_only) * layout.host_page_bytes();
  const uint64_t keys = keys_only * layout.half_host_page_bytes();
  const uint64_t values = (now.moved - before.moved) * layout.half_host_page_bytes();
  stats_->page_bytes += pages;
  stats_->key_bytes += keys;
  stats_->value_bytes += values;
  return pages + keys + values;
}

void DeviceRunner::CountTransfers(const InFlight& step) {
  using memory::WaitCause;
  const bool ahead = options_.prefetch && step.calls.foretells();
  uint64_t copies = 0, bytes = 0;
  CopyMeasurement measured{.step_ns =
                               static_cast<double>(step.result.stamps[1] - step.result.stamps[0])};
  for (int layer = 1; layer < config_.num_layers; ++layer) {
    const kernels::PlacementCounts& now = step.result.placement[layer];
    kernels::PlacementCounts& before = counted_[layer];
    memory::ResidencyStats::Layer& counts = stats_->layers[layer];
    const uint64_t fetched = now.fetched - before.fetched;
    counts.chosen_blocks += now.chosen - before.chosen;
    counts.reused_blocks += now.reused - before.reused;
    counts.fetched_blocks += fetched;
    stats_->resident_last += now.reused - before.reused;
    stats_->resident_spare += now.spare - before.spare;
    const uint64_t moved = now.moved - before.moved;
    bytes += CountBytes(now, before);
    before = now;
    if (fetched + moved == 0) continue;
    copies += fetched + moved;
    const int64_t asked_ns = step.result.stamps[2 * layer];
    const int64_t waited_ns = std::max<int64_t>(0, step.result.stamps[2 * layer + 1] - asked_ns);
    const WaitCause cause = !ahead       ? WaitCause::kFetch
                            : layer == 1 ? WaitCause::kFirstLayer
                                         : WaitCause::kPrefetchLate;
    (!ahead           ? stats_->prefetch_miss
     : waited_ns == 0 ? stats_->prefetch_hit
                      : stats_->prefetch_late) += fetched;
    counts.wait_ns += waited_ns;
    measured.wait_ns += static_cast<double>(waited_ns);
    stats_->wait_seconds[static_cast<size_t>(cause)].Observe(static_cast<double>(waited_ns) /
                                                             memory::kNsPerSecond);
  }
  const size_t page_bytes = store_->pools().layout.host_page_bytes();
  measured.pages = static_cast<double>(bytes) / static_cast<double>(page_bytes);
  grants_->Observe(step.quota, measured);
  transfers_->Count(ahead ? memory::TransferKind::kPrefetch : memory::TransferKind::kFetch, copies,
                    bytes);
}

void DeviceRunner::RunOps(Backend* backend, const StepShape& shape, const StepArrays& device,
                          const ToldTokens& told) {
  attention_->BeginStep(backend);
  layers_->Embed(backend, device.token_ids, shape.phases.rows);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    layers_->ProjectQkv(backend, layer, shape.phases);
    // Whose rows go nowhere: nobody samples or tells a token.
    const bool is_unread = observer_ != nullptr && layer + 1 == config_.num_layers &&
                           shape.sampled == 0 && told.rows == 0;
    if (is_unread) {
      attention_->AppendLayer(backend, layer, layers_->qkv());
    } else {
      attention_->RunLayer(backend, layer, layers_->qkv(), layers_->attended(), layers_->normed());
    }
    if (observer_ != nullptr) {
      observer_->ObserveOnDevice(layer, shape.phases.rows, layers_->qkv(), layers_->qkv_stride(),
                                 layers_->normed(), layers_->activation_dtype());
    }
    if (is_unread) break;
    layers_->AddAttended(backend, layer, shape.phases);
    layers_->AddMlp(backend, layer, shape.phases);
  }
  layers_->TellRows(backend, told);
  if (shape.sampled > 0) {
    layers_->RunHead(backend, device.sampled_rows, shape.sampled);
    layers_->Sample(backend, device.sampling, shape.sampled, device_tokens_.data());
  }
  attention_->EndStep(backend);
}

std::vector<float> DeviceRunner::CopyRows(const float* rows) {
  AUGUR_CHECK(!options_.run_ahead);
  std::vector<float> logits(size_t(sampled_) * config_.vocab_size);
  backend_->Copy(logits.data(), rows, logits.size() * sizeof(float));
  backend_->Synchronize();
  return logits;
}

}  // namespace augur::engine
