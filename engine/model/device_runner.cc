#include "engine/model/device_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
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

int BlocksOf(int tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

// Lays out arrays behind each other, each on a 64-byte edge.
class Layout {
 public:
  template <class T>
  size_t Add(size_t count) {
    const size_t at = (bytes_ + 63) / 64 * 64;
    bytes_ = at + count * sizeof(T);
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

template <class T>
T* At(std::byte* base, size_t offset) {
  return reinterpret_cast<T*>(base + offset);
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
    const DeviceRunnerOptions& options, memory::KvMemory* kv) {
  std::unique_ptr<DeviceRunner> runner(
      new DeviceRunner(backend, config, options, kv->store()->pools()));
  AUGUR_ASSIGN_OR_RETURN(
      runner->layers_,
      TransformerLayers::Create(backend, config, std::move(weights),
                                {.max_rows = options.max_rows,
                                 .max_sampled = options.max_segments,
                                 .max_context = options.max_context,
                                 .qkv_stride = config.q_width() + 2 * config.kv_width()}));
  AUGUR_RETURN_IF_ERROR(runner->Allocate());
  runner->RecordGraphs();
  return runner;
}

DeviceRunner::DeviceRunner(Backend* backend, const ModelConfig& config,
                           const DeviceRunnerOptions& options, const memory::KvPools& pools)
    : backend_(backend),
      config_(config),
      options_(options),
      pools_(pools),
      max_blocks_(BlocksOf(options.max_context)),
      page_tables_(options.max_segments) {
  AUGUR_CHECK(options.max_segments > 0 && options.max_segments <= options.max_rows);
  pieces_.reserve(options.max_rows);
}

DeviceRunner::~DeviceRunner() {
  backend_->Synchronize();
  graphs_.clear();
  for (void* allocation : allocations_) backend_->Free(allocation);
}

absl::Status DeviceRunner::Allocate() {
  const size_t rows = options_.max_rows, segments = options_.max_segments;
  Layout layout;
  const size_t ids = layout.Add<int32_t>(rows);
  const size_t append = layout.Add<kernels::AppendSegment>(rows);
  const size_t attend = layout.Add<kernels::AttentionSegment>(rows);
  const size_t sampled_rows = layout.Add<int32_t>(segments);
  const size_t sampling = layout.Add<kernels::SamplingRow>(segments);
  table_bytes_ = layout.bytes();
  const size_t list_bytes = segments * pools_.layout.num_groups() * max_blocks_ * sizeof(void*);
  const auto allocate = [&](bool host, size_t bytes) -> absl::StatusOr<std::byte*> {
    void* const data = host ? backend_->AllocateHost(bytes) : backend_->Allocate(bytes);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for ", host ? "pinned step tables" : "step tables and page lists",
                       ": ", bytes, " bytes (batch ", segments, ", batched_tokens ", rows,
                       ", context ", options_.max_context, ")"));
    }
    allocations_.push_back(data);
    return static_cast<std::byte*>(data);
  };
  const auto tables_in = [&](std::byte* base) {
    return StepTables{.token_ids = At<int32_t>(base, ids),
                      .append = At<kernels::AppendSegment>(base, append),
                      .attend = At<kernels::AttentionSegment>(base, attend),
                      .sampled_rows = At<int32_t>(base, sampled_rows),
                      .sampling = At<kernels::SamplingRow>(base, sampling)};
  };
  AUGUR_ASSIGN_OR_RETURN(std::byte* const lists, allocate(false, list_bytes));
  page_lists_ = At<std::byte*>(lists, 0);
  AUGUR_ASSIGN_OR_RETURN(std::byte* const on_device, allocate(false, table_bytes_));
  device_ = tables_in(on_device);
  AUGUR_ASSIGN_OR_RETURN(std::byte* const on_host, allocate(true, table_bytes_));
  host_ = tables_in(on_host);
  std::memset(on_host, 0, table_bytes_);
  AUGUR_ASSIGN_OR_RETURN(std::byte* const mapped,
                         allocate(false, kMappedAtOnce * sizeof(MappedBlock)));
  device_mapped_ = At<MappedBlock>(mapped, 0);
  AUGUR_ASSIGN_OR_RETURN(std::byte* const mapped_here,
                         allocate(true, kMappedAtOnce * sizeof(MappedBlock)));
  host_mapped_ = At<MappedBlock>(mapped_here, 0);
  AUGUR_ASSIGN_OR_RETURN(std::byte* const tokens, allocate(false, segments * sizeof(int32_t)));
  device_tokens_ = At<int32_t>(tokens, 0);
  AUGUR_ASSIGN_OR_RETURN(std::byte* const tokens_here, allocate(true, segments * sizeof(int32_t)));
  host_tokens_ = At<int32_t>(tokens_here, 0);
  return absl::OkStatus();
}

void DeviceRunner::RecordGraphs() {
  for (const int bucket : DecodeBuckets(options_.max_segments)) {
    for (const int blocks : LengthClasses(max_blocks_)) {
      const StepShape shape{.phases = {.decode_rows = bucket, .rows = bucket},
                            .decode_segments = bucket,
                            .segments = bucket,
                            .sampled = bucket,
                            .max_blocks = blocks};
      graphs_[{bucket, blocks}] =
          backend_->Record([&](Backend* recorder) { RunOps(recorder, shape); });
    }
  }
}

// Decode rows first, in order of segments, then the prompts' pieces.
DeviceRunner::StepShape DeviceRunner::PlanPieces(const StepInputs& inputs) {
  StepShape shape;
  pieces_.clear();
  const auto generated_of = [](const StepSegment& segment) {
    const int end = segment.rows.first_position + segment.rows.num_rows;
    return std::clamp(end - segment.prompt_tokens, 0, segment.rows.num_rows);
  };
  for (const StepSegment& segment : inputs.segments) {
    const int generated = generated_of(segment);
    const int end_block = BlocksOf(segment.rows.first_position + segment.rows.num_rows);
    const int table = page_tables_.TableOf(*segment.kv, end_block, step_, &mapped_);
    shape.max_blocks = std::max(shape.max_blocks, end_block);
    for (int i = segment.rows.num_rows - generated; i < segment.rows.num_rows; ++i) {
      pieces_.push_back({&segment, i, 1, table});
    }
    shape.sampled += segment.wants_token ? 1 : 0;
  }
  shape.decode_segments = static_cast<int>(pieces_.size());
  shape.phases.decode_rows = shape.decode_segments;
  for (const StepSegment& segment : inputs.segments) {
    const int prompt_rows = segment.rows.num_rows - generated_of(segment);
    if (prompt_rows == 0) continue;
    const int table = page_tables_.TableOf(*segment.kv, 0, step_, &mapped_);
    pieces_.push_back({&segment, 0, prompt_rows, table});
  }
  shape.segments = static_cast<int>(pieces_.size());
  shape.phases.rows = static_cast<int>(inputs.token_ids.size());
  return shape;
}

void DeviceRunner::PutPiece(const Piece& piece, int index, int first_row,
                            const StepInputs& inputs) {
  const kernels::Segment& from = piece.segment->rows;
  const kernels::Segment rows{.first_row = first_row,
                              .num_rows = piece.num_rows,
                              .first_position = from.first_position + piece.first_token};
  std::copy_n(inputs.token_ids.data() + from.first_row + piece.first_token, piece.num_rows,
              host_.token_ids + first_row);
  std::byte** const lists =
      page_lists_ + size_t(piece.table) * pools_.layout.num_groups() * max_blocks_;
  host_.append[index] = {.rows = rows,
                         .pages = lists + rows.first_position / kBlockTokens,
                         .block_stride = 1,
                         .head_stride = max_blocks_};
  host_.attend[index] = {.rows = rows, .pages = lists, .list_stride = max_blocks_};
}

void DeviceRunner::FillTables(const StepInputs& inputs, StepShape* shape) {
  int row = 0;
  for (int i = 0; i < shape->segments; ++i) {
    PutPiece(pieces_[i], i, row, inputs);
    row += pieces_[i].num_rows;
  }
  AUGUR_CHECK(row == shape->phases.rows);
  // A segment's last token is the last row of its last piece.
  last_rows_.assign(inputs.segments.size(), 0);
  row = 0;
  for (int i = 0; i < shape->segments; ++i) {
    const Piece& piece = pieces_[i];
    row += piece.num_rows;
    if (piece.first_token + piece.num_rows == piece.segment->rows.num_rows) {
      last_rows_[piece.segment - inputs.segments.data()] = row - 1;
    }
  }
  int sampled = 0;
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    if (!inputs.segments[i].wants_token) continue;
    host_.sampled_rows[sampled] = last_rows_[i];
    host_.sampling[sampled] = inputs.segments[i].sampling;
    ++sampled;
  }
}

// Rows that belong to nobody, up to a bucket of `segments`: they embed token 0, attend to nothing
// and what is drawn for them is not read.
void DeviceRunner::PadTables(int segments, StepShape* shape) {
  for (int i = shape->segments; i < segments; ++i) {
    host_.token_ids[i] = 0;
    host_.append[i] = {.rows = {.first_row = i}};
    host_.attend[i] = {.rows = {.first_row = i}};
  }
  for (int i = shape->sampled; i < segments; ++i) {
    host_.sampled_rows[i] = 0;
    host_.sampling[i] = {.temperature = 0.0f};
  }
  shape->phases = {.decode_rows = segments, .rows = segments};
  shape->decode_segments = shape->segments = shape->sampled = segments;
}

void DeviceRunner::UploadMapped() {
  for (size_t first = 0; first < mapped_.size(); first += kMappedAtOnce) {
    if (first > 0) backend_->Synchronize();  // host_mapped_ is still being read
    const size_t count = std::min<size_t>(kMappedAtOnce, mapped_.size() - first);
    std::copy_n(mapped_.data() + first, count, host_mapped_);
    backend_->Copy(device_mapped_, host_mapped_, count * sizeof(MappedBlock));
    backend_->MapPages({.mapped = device_mapped_,
                        .num_mapped = static_cast<int>(count),
                        .pool = pools_.device,
                        .lists = page_lists_,
                        .page_bytes = pools_.layout.page_bytes,
                        .num_layers = config_.num_layers,
                        .num_kv_heads = config_.num_kv_heads,
                        .max_blocks = max_blocks_});
  }
  mapped_.clear();
}

void DeviceRunner::Run(const StepInputs& inputs, StepOutputs* outputs) {
  const int rows = static_cast<int>(inputs.token_ids.size());
  AUGUR_CHECK(rows > 0 && rows <= options_.max_rows);
  AUGUR_CHECK(static_cast<int>(inputs.segments.size()) <= options_.max_segments);
  ++step_;
  StepShape shape = PlanPieces(inputs);
  sampled_ = shape.sampled;
  FillTables(inputs, &shape);
  const bool as_graph = shape.phases.decode_rows == rows && rows <= options_.max_segments;
  std::pair<int, int> key;
  if (as_graph) {
    const std::vector<int> buckets = DecodeBuckets(options_.max_segments);
    const std::vector<int> classes = LengthClasses(max_blocks_);
    key = {*std::lower_bound(buckets.begin(), buckets.end(), rows),
           *std::lower_bound(classes.begin(), classes.end(), shape.max_blocks)};
    PadTables(key.first, &shape);
  }
  UploadMapped();
  backend_->Copy(device_.token_ids, host_.token_ids, table_bytes_);
  if (as_graph) {
    backend_->Launch(*graphs_.at(key));
  } else {
    RunOps(backend_, shape);
  }
  backend_->Synchronize();
  outputs->tokens.assign(inputs.segments.size(), 0);
  int next = 0;
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    if (inputs.segments[i].wants_token) outputs->tokens[i] = host_tokens_[next++];
  }
}

void DeviceRunner::RunOps(Backend* backend, const StepShape& shape) {
  layers_->Embed(backend, device_.token_ids, shape.phases.rows);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    layers_->ProjectQkv(backend, layer, shape.phases);
    RunAttention(backend, layer, shape);
    layers_->AddAttended(backend, layer, shape.phases);
    layers_->AddMlp(backend, layer, shape.phases);
  }
  if (shape.sampled == 0) return;
  layers_->SampleHead(backend, device_.sampled_rows, device_.sampling, shape.sampled,
                      device_tokens_);
  backend->Copy(host_tokens_, device_tokens_, shape.sampled * sizeof(int32_t));
}

void DeviceRunner::RunAttention(Backend* backend, int layer, const StepShape& shape) {
  const int64_t offset = int64_t{layer} * config_.num_kv_heads * max_blocks_;
  const int stride = config_.q_width() + 2 * config_.kv_width();
  backend->RopeAppend({.qkv = layers_->qkv(),
                       .segments = device_.append,
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
    params.segments = device_.attend + first;
    params.num_segments = count;
    params.phase = phase;
    backend->PagedAttention(params);
  };
  attend(0, shape.decode_segments, Phase::kDecode);
  attend(shape.decode_segments, shape.segments - shape.decode_segments, Phase::kPrefill);
}

std::vector<float> DeviceRunner::CopyLogits() {
  std::vector<float> logits(size_t(sampled_) * config_.vocab_size);
  backend_->Copy(logits.data(), layers_->logits(), logits.size() * sizeof(float));
  backend_->Synchronize();
  return logits;
}

}  // namespace augur::engine
