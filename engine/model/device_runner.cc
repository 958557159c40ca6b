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
using kernels::MappedBlock;
using kernels::Phase;

// Page list entries that one upload carries: a new sequence of 256 Ki tokens, or any decode step.
constexpr int kMappedAtOnce = 4096;

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

}  // namespace

std::vector<int> DecodeBuckets(int max_segments) {
  std::vector<int> buckets;
  for (int size = 1; size < max_segments; size += size < 8 ? size : size < 64 ? 8 : 32) {
    buckets.push_back(size);
  }
  buckets.push_back(max_segments);
  return buckets;
}

std::vector<int> LengthClasses(int max_blocks) {
  std::vector<int> classes;
  for (int blocks = 128; blocks < max_blocks; blocks *= 4) classes.push_back(blocks);
  classes.push_back(max_blocks);
  return classes;
}

absl::StatusOr<std::unique_ptr<DeviceRunner>> DeviceRunner::Create(
    Backend* backend, const ModelConfig& config, TransformerWeights weights,
    const DeviceRunnerOptions& options, memory::KvMemory* kv, const memory::Clock* clock) {
  std::unique_ptr<DeviceRunner> runner(
      new DeviceRunner(backend, config, options, kv->store()->pools(), clock));
  AUGUR_ASSIGN_OR_RETURN(
      runner->layers_,
      TransformerLayers::Create(backend, config, std::move(weights),
                                {.max_rows = options.max_rows,
                                 .max_sampled = options.max_segments,
                                 .max_context = options.max_context,
                                 .qkv_stride = config.q_width() + 2 * config.kv_width()}));
  AUGUR_ASSIGN_OR_RETURN(runner->decode_tables_,
                         StepTables::Create(backend, options.max_segments, options.max_segments));
  AUGUR_ASSIGN_OR_RETURN(runner->mixed_tables_,
                         StepTables::Create(backend, options.max_rows, options.max_segments));
  AUGUR_RETURN_IF_ERROR(runner->Allocate());
  runner->RecordGraphs();
  return runner;
}

DeviceRunner::DeviceRunner(Backend* backend, const ModelConfig& config,
                           const DeviceRunnerOptions& options, const memory::KvPools& pools,
                           const memory::Clock* clock)
    : backend_(backend),
      config_(config),
      options_(options),
      pools_(pools),
      clock_(clock),
      max_blocks_(BlocksFor(options.max_context)),
      buckets_(DecodeBuckets(options.max_segments)),
      classes_(LengthClasses(max_blocks_)),
      page_tables_(options.max_segments) {
  AUGUR_CHECK(options.max_segments > 0 && options.max_segments <= options.max_rows);
  pieces_.reserve(options.max_rows);
}

DeviceRunner::~DeviceRunner() {
  backend_->Synchronize();
  graphs_.clear();
  for (void* allocation : allocations_) backend_->Free(allocation);
}

absl::StatusOr<std::byte*> DeviceRunner::AllocateBytes(bool host, size_t bytes) {
  void* const data = host ? backend_->AllocateHost(bytes) : backend_->Allocate(bytes);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no ", host ? "pinned memory" : "memory", " for page lists and tokens: ", bytes,
        " bytes (batch ", options_.max_segments, ", context ", options_.max_context, ")"));
  }
  allocations_.push_back(data);
  return static_cast<std::byte*>(data);
}

absl::Status DeviceRunner::Allocate() {
  const size_t segments = options_.max_segments;
  const size_t list_bytes = segments * pools_.layout.num_groups() * max_blocks_ * sizeof(void*);
  constexpr size_t kMappedBytes = kMappedAtOnce * sizeof(MappedBlock);
  const size_t token_bytes = segments * sizeof(int32_t);
  AUGUR_ASSIGN_OR_RETURN(std::byte* const lists, AllocateBytes(false, list_bytes));
  page_lists_ = reinterpret_cast<std::byte**>(lists);
  AUGUR_ASSIGN_OR_RETURN(std::byte* const mapped, AllocateBytes(false, kMappedBytes));
  device_mapped_ = reinterpret_cast<MappedBlock*>(mapped);
  AUGUR_ASSIGN_OR_RETURN(std::byte* const mapped_here, AllocateBytes(true, kMappedBytes));
  host_mapped_ = reinterpret_cast<MappedBlock*>(mapped_here);
  AUGUR_ASSIGN_OR_RETURN(std::byte* const tokens, AllocateBytes(false, token_bytes));
  device_tokens_ = reinterpret_cast<int32_t*>(tokens);
  for (int32_t*& tokens_here : host_tokens_) {
    AUGUR_ASSIGN_OR_RETURN(std::byte* const here, AllocateBytes(true, token_bytes));
    tokens_here = reinterpret_cast<int32_t*>(here);
  }
  return absl::OkStatus();
}

void DeviceRunner::RecordGraphs() {
  for (const int bucket : buckets_) {
    for (const int blocks : classes_) {
      const StepShape shape{.phases = {.decode_rows = bucket, .rows = bucket},
                            .decode_segments = bucket,
                            .segments = bucket,
                            .sampled = bucket,
                            .max_blocks = blocks};
      graphs_[{bucket, blocks}] = backend_->Record(
          [&](Backend* recorder) { RunOps(recorder, shape, decode_tables_->device()); });
    }
  }
}

void DeviceRunner::Run(const StepInputs& inputs, StepOutputs* outputs) {
  const int rows = static_cast<int>(inputs.token_ids.size());
  AUGUR_CHECK(rows > 0 && rows <= options_.max_rows);
  AUGUR_CHECK(static_cast<int>(inputs.segments.size()) <= options_.max_segments);
  ++step_;
  MatchAhead(inputs);
  const InFlight foreseen = ahead_;
  const int answered = static_cast<int>(
      std::count_if(answered_.begin(), answered_.end(), [](int row) { return row >= 0; }));
  rows_foreseen_ += answered;
  InFlight rest;
  if (answered < static_cast<int>(inputs.segments.size())) rest = LaunchRest(inputs);
  // Before the wait: so the device goes on while the host learns what this step drew.
  has_ahead_ = options_.run_ahead && GatherGraphRows(inputs);
  if (has_ahead_) LaunchAhead();
  if (answered > 0) WaitFor(foreseen);
  if (rest.tokens != nullptr) WaitFor(rest);
  if (has_ahead_) {
    const int32_t* tokens = answered > 0 ? foreseen.tokens : rest.tokens;
    last_tokens_.assign(tokens, tokens + ahead_rows_.size());
  }
  outputs->tokens.assign(inputs.segments.size(), 0);
  int next = 0;
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    if (answered_[i] >= 0) {
      outputs->tokens[i] = foreseen.tokens[answered_[i]];
    } else if (inputs.segments[i].wants_token) {
      outputs->tokens[i] = rest.tokens[next++];
    }
  }
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
                           SameDraw(row.sampling, segment.sampling);
      if (went_on) answered_[i] = at;
      break;
    }
  }
}

DeviceRunner::InFlight DeviceRunner::LaunchRest(const StepInputs& inputs) {
  StepShape shape = PlanPieces(inputs);
  sampled_ = shape.sampled;
  const bool as_graph =
      shape.phases.decode_rows == shape.phases.rows && shape.phases.rows <= options_.max_segments;
  StepTables* const tables = as_graph ? decode_tables_.get() : mixed_tables_.get();
  const StepArrays& host = tables->BeginHost();
  FillTables(inputs, shape, host);
  std::pair<int, int> graph;
  if (as_graph) graph = PadToGraph(host, shape);
  UploadMapped();
  tables->Upload();
  if (as_graph) {
    backend_->Launch(*graphs_.at(graph));
  } else {
    RunOps(backend_, shape, tables->device());
  }
  return CopyTokens(shape.sampled);
}

// Decode rows first, in order of segments, then the prompts' pieces.
DeviceRunner::StepShape DeviceRunner::PlanPieces(const StepInputs& inputs) {
  StepShape shape;
  pieces_.clear();
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    const StepSegment& segment = inputs.segments[i];
    if (answered_[i] >= 0) continue;
    const int end = segment.rows.first_position + segment.rows.num_rows;
    AUGUR_CHECK(segment.rows.num_rows > 0 && end <= options_.max_context);
    const int table = page_tables_.TableOf(*segment.kv, EndBlock(segment.rows), step_, &mapped_);
    shape.max_blocks = std::max(shape.max_blocks, EndBlock(segment.rows));
    for (int row = segment.rows.num_rows - GeneratedRows(segment); row < segment.rows.num_rows;
         ++row) {
      pieces_.push_back({&segment, row, 1, table});
    }
    shape.phases.rows += segment.rows.num_rows;
    shape.sampled += segment.wants_token ? 1 : 0;
  }
  shape.decode_segments = static_cast<int>(pieces_.size());
  shape.phases.decode_rows = shape.decode_segments;
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    const StepSegment& segment = inputs.segments[i];
    const int prompt_rows = segment.rows.num_rows - GeneratedRows(segment);
    if (answered_[i] >= 0 || prompt_rows == 0) continue;
    const int table = page_tables_.TableOf(*segment.kv, 0, step_, &mapped_);
    pieces_.push_back({&segment, 0, prompt_rows, table});
  }
  shape.segments = static_cast<int>(pieces_.size());
  return shape;
}

void DeviceRunner::FillTables(const StepInputs& inputs, const StepShape& shape,
                              const StepArrays& host) {
  last_rows_.assign(inputs.segments.size(), 0);
  int row = 0;
  for (int i = 0; i < shape.segments; ++i) {
    const Piece& piece = pieces_[i];
    const kernels::Segment& from = piece.segment->rows;
    const kernels::Segment rows{.first_row = row,
                                .num_rows = piece.num_rows,
                                .first_position = from.first_position + piece.first_token};
    std::copy_n(inputs.token_ids.data() + from.first_row + piece.first_token, piece.num_rows,
                host.token_ids + row);
    PutRows(host, i, rows, piece.table);
    row += piece.num_rows;
    // A segment's last token is the last row of its last piece.
    if (piece.first_token + piece.num_rows == from.num_rows) {
      last_rows_[piece.segment - inputs.segments.data()] = row - 1;
    }
  }
  int sampled = 0;
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    if (answered_[i] >= 0 || !inputs.segments[i].wants_token) continue;
    host.sampled_rows[sampled] = last_rows_[i];
    host.sampling[sampled] = inputs.segments[i].sampling;
    ++sampled;
  }
}

void DeviceRunner::PutRows(const StepArrays& host, int index, const kernels::Segment& rows,
                           int table) const {
  std::byte** const lists = page_lists_ + size_t(table) * pools_.layout.num_groups() * max_blocks_;
  host.append[index] = {.rows = rows,
                        .pages = lists + FirstBlock(rows),
                        .block_stride = 1,
                        .head_stride = max_blocks_};
  host.attend[index] = {.rows = rows, .pages = lists, .list_stride = max_blocks_};
}

// A row that belongs to nobody: it embeds token 0, attends to nothing, and what is drawn for it is
// not read.
void DeviceRunner::PutPadding(const StepArrays& host, int row) const {
  host.token_ids[row] = 0;
  host.append[row] = {.rows = {.first_row = row}};
  host.attend[row] = {.rows = {.first_row = row}};
  host.sampled_rows[row] = row;
  host.sampling[row] = {.temperature = 0.0f};
}

std::pair<int, int> DeviceRunner::PadToGraph(const StepArrays& host, const StepShape& shape) const {
  const int bucket = *std::lower_bound(buckets_.begin(), buckets_.end(), shape.phases.rows);
  for (int row = shape.phases.rows; row < bucket; ++row) PutPadding(host, row);
  for (int i = shape.sampled; i < shape.phases.rows; ++i) {
    host.sampled_rows[i] = 0;
    host.sampling[i] = {.temperature = 0.0f};
  }
  return {bucket, *std::lower_bound(classes_.begin(), classes_.end(), shape.max_blocks)};
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
    // The engine may have no block for it, and a sequence at its end needs none.
    if (position / kBlockTokens >= static_cast<int>(segment.kv->frames.size()) ||
        position >= options_.max_context) {
      continue;
    }
    GraphRow& row = graph_rows_[by_ahead ? answered_[i] : i];
    row = {segment.kv, segment.kv->id, segment.kv->frames_epoch, position, segment.sampling};
    row.sampling.position += 1;
    ++going_on;
  }
  // Where many rows have gone the next step had better be packed anew.
  return going_on > 0 && 4 * going_on >= 3 * static_cast<int>(graph_rows_.size());
}

void DeviceRunner::LaunchAhead() {
  ahead_rows_.swap(graph_rows_);
  const int rows = static_cast<int>(ahead_rows_.size());
  StepShape shape{.phases = {.decode_rows = rows, .rows = rows},
                  .decode_segments = rows,
                  .segments = rows,
                  .sampled = rows};
  const StepArrays& host = decode_tables_->BeginHost();
  for (int i = 0; i < rows; ++i) {
    GraphRow& row = ahead_rows_[i];
    PutPadding(host, i);
    if (row.kv == nullptr) continue;
    const kernels::Segment one{.first_row = i, .num_rows = 1, .first_position = row.position};
    const int blocks = EndBlock(one);
    PutRows(host, i, one, page_tables_.TableOf(*row.kv, blocks, step_, &mapped_));
    host.sampling[i] = row.sampling;
    row.kv = nullptr;
    shape.max_blocks = std::max(shape.max_blocks, blocks);
  }
  const std::pair<int, int> graph = PadToGraph(host, shape);
  UploadMapped();
  decode_tables_->Upload();
  backend_->Copy(decode_tables_->device().token_ids, device_tokens_, rows * sizeof(int32_t));
  backend_->Launch(*graphs_.at(graph));
  ahead_ = CopyTokens(rows);
}

void DeviceRunner::UploadMapped() {
  for (size_t first = 0; first < mapped_.size(); first += kMappedAtOnce) {
    backend_->Wait(mapped_mark_);  // host_mapped_ may still be being read
    const size_t count = std::min<size_t>(kMappedAtOnce, mapped_.size() - first);
    std::copy_n(mapped_.data() + first, count, host_mapped_);
    backend_->Copy(device_mapped_, host_mapped_, count * sizeof(MappedBlock));
    mapped_mark_ = backend_->Mark();
    backend_->MapPages({.mapped = device_mapped_,
                        .num_mapped = static_cast<int>(count),
                        .pool = pools_.device,
                        .lists = page_lists_,
                        .page_bytes = pools_.layout.page_bytes,
                        .num_layers = config_.num_layers,
                        .end_layer = config_.num_layers,
                        .num_kv_heads = config_.num_kv_heads,
                        .max_blocks = max_blocks_});
  }
  mapped_.clear();
}

// A ring of three: the step that is answered, the rest that runs beside it, and the one ahead.
DeviceRunner::InFlight DeviceRunner::CopyTokens(int count) {
  next_tokens_ = (next_tokens_ + 1) % static_cast<int>(host_tokens_.size());
  int32_t* const tokens = host_tokens_[next_tokens_];
  if (count > 0) backend_->Copy(tokens, device_tokens_, count * sizeof(int32_t));
  return {.mark = backend_->Mark(), .tokens = tokens};
}

void DeviceRunner::WaitFor(const InFlight& step) {
  const int64_t start_ns = clock_->NowNs();
  backend_->Wait(step.mark);
  waited_ns_ += clock_->NowNs() - start_ns;
}

void DeviceRunner::RunOps(Backend* backend, const StepShape& shape, const StepArrays& device) {
  layers_->Embed(backend, device.token_ids, shape.phases.rows);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    layers_->ProjectQkv(backend, layer, shape.phases);
    RunAttention(backend, layer, shape, device);
    layers_->AddAttended(backend, layer, shape.phases);
    layers_->AddMlp(backend, layer, shape.phases);
  }
  if (shape.sampled == 0) return;
  layers_->SampleHead(backend, device.sampled_rows, device.sampling, shape.sampled, device_tokens_);
}

void DeviceRunner::RunAttention(Backend* backend, int layer, const StepShape& shape,
                                const StepArrays& device) {
  const int64_t offset = int64_t{layer} * config_.num_kv_heads * max_blocks_;
  const int stride = layers_->qkv_stride();
  backend->RopeAppend({.qkv = layers_->qkv(),
                       .segments = device.append,
                       .num_segments = shape.segments,
                       .rows = shape.phases.rows,
                       .row_stride = stride,
                       .num_q_heads = config_.num_q_heads,
                       .num_kv_heads = config_.num_kv_heads,
                       .head_dim = config_.head_dim,
                       .dtype = options_.kv_dtype,
                       .cos = layers_->cos(),
                       .sin = layers_->sin(),
                       .pages_offset = offset});
  kernels::PagedAttentionParams params{
      .q = layers_->qkv(),
      .out = layers_->attended(),
      .rows = shape.phases.rows,
      .q_stride = stride,
      .num_q_heads = config_.num_q_heads,
      .num_kv_heads = config_.num_kv_heads,
      .head_dim = config_.head_dim,
      .dtype = options_.kv_dtype,
      .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
      .out_dtype = layers_->activation_dtype(),
      .max_entries = shape.max_blocks,
      .pages_offset = offset};
  const auto attend = [&](int first, int count, Phase phase) {
    if (count == 0) return;
    params.segments = device.attend + first;
    params.num_segments = count;
    params.phase = phase;
    backend->PagedAttention(params);
  };
  attend(0, shape.decode_segments, Phase::kDecode);
  attend(shape.decode_segments, shape.segments - shape.decode_segments, Phase::kPrefill);
}

std::vector<float> DeviceRunner::CopyLogits() {
  AUGUR_CHECK(!options_.run_ahead);
  std::vector<float> logits(size_t(sampled_) * config_.vocab_size);
  backend_->Copy(logits.data(), layers_->logits(), logits.size() * sizeof(float));
  backend_->Synchronize();
  return logits;
}

}  // namespace augur::engine
