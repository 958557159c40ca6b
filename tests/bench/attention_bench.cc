#include "tests/bench/attention_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <set>

#include "engine/attention/value_sampling.h"
#include "kernels/check.h"
#include "kernels/kv_page.h"
#include "tests/bench/bench_memory.h"

namespace augur::bench {
namespace {

using kernels::AttentionSegment;
using kernels::Backend;
using kernels::kBlockTokens;
using kernels::PagedAttentionParams;
using kernels::SampledAttentionParams;
using kernels::SampledSegment;

struct HeadShape {
  int num_q_heads;
  int num_kv_heads;
  int head_dim;
};

// Models of MiniCPM4's and of Llama 3's 8B.
constexpr HeadShape kHeadShapes[] = {{32, 2, 128}, {32, 8, 128}};
constexpr kernels::DType kPageType = kernels::DType::kBF16;

// Repeats pass over copies of the KV of this size together: far more than the 60 MB of an H200's
// L2.
constexpr size_t kRotatedBytes = size_t{400} << 20;
// Of one recorded graph: the launch and the wait for it, about 10 us, must not show.
constexpr double kGraphSeconds = 10e-3;
constexpr int kMaxGraphOps = 400;

void Upload(Backend* backend, void* to, const void* from, size_t bytes) {
  backend->Copy(to, from, bytes);
  backend->Synchronize();
}

struct SampledRows {
  kernels::BackendArray<std::byte> segments, states;
};

// `copies` times a batch of sequences of `tokens`, each with pages of its own.
class Batch {
 public:
  Batch(Backend* backend, const HeadShape& shape, int sequences, int tokens, int copies)
      : backend_(backend),
        shape_(shape),
        sequences_(sequences),
        copies_(copies),
        blocks_((tokens + kBlockTokens - 1) / kBlockTokens),
        pages_(MakeMemory(backend, kv_bytes() * copies)),
        page_lists_(MakeMemory(backend, num_pages() * sizeof(std::byte*))),
        segments_(MakeMemory(backend, size_t(copies) * sequences * sizeof(AttentionSegment))) {
    FillWithRandom(backend, pages_.data(), kv_bytes() * copies, kPageType);
    // Neighbours in a list lie apart, as pages of a pool that has been in use do.
    std::vector<const std::byte*> pages(num_pages());
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = pages_.data() + i * page_bytes();
    std::shuffle(pages.begin(), pages.end(), std::mt19937(2));
    Upload(backend, page_lists_.data(), pages.data(), pages.size() * sizeof(std::byte*));
  }

  // KV of one copy.
  size_t kv_bytes() const {
    return size_t(sequences_) * shape_.num_kv_heads * blocks_ * page_bytes();
  }
  int blocks() const { return blocks_; }

  // Row r of copy c is row r % rows_a_sequence of its sequence, from first_position on.
  void SetRows(int rows_a_sequence, int first_position) {
    std::vector<AttentionSegment> segments(size_t(copies_) * sequences_);
    for (size_t s = 0; s < segments.size(); ++s) {
      segments[s].rows = {static_cast<int>(s % sequences_) * rows_a_sequence, rows_a_sequence,
                          first_position};
      segments[s].pages = reinterpret_cast<const std::byte* const*>(page_lists_.data()) +
                          s * shape_.num_kv_heads * blocks_;
      segments[s].list_stride = blocks_;
    }
    Upload(backend_, segments_.data(), segments.data(), segments.size() * sizeof(segments[0]));
  }

  // SetRows for one sequence whose rows choose: choices [rows][kv heads][stride], all of it used.
  void SetChoosingRows(int rows, int first_position, const std::byte* choices,
                       const std::byte* counts, int stride) {
    SetRows(rows, first_position);
    AttentionSegment segment;
    backend_->Copy(&segment, segments_.data(), sizeof(segment));
    backend_->Synchronize();
    segment.choices = reinterpret_cast<const int32_t*>(choices);
    segment.choice_counts = reinterpret_cast<const int32_t*>(counts);
    segment.choice_stride = stride;
    Upload(backend_, segments_.data(), &segment, sizeof(segment));
  }

  // Segments of Params' rows that read some of their values, and states of kShared for them.
  SampledRows MakeSampledRows(int samples, int position) const {
    const size_t count = size_t(copies_) * sequences_;
    const size_t state_floats =
        shape_.num_kv_heads *
        size_t(kernels::ValueStateFloats(shape_.num_q_heads / shape_.num_kv_heads));
    SampledRows rows{MakeMemory(backend_, count * sizeof(SampledSegment)),
                     MakeMemory(backend_, count * state_floats * sizeof(float))};
    const std::vector<float> states(count * state_floats, 0.0f);
    Upload(backend_, rows.states.data(), states.data(), states.size() * sizeof(float));
    std::vector<SampledSegment> segments(count);
    for (size_t s = 0; s < segments.size(); ++s) {
      segments[s] = {.row = static_cast<int>(s) % sequences_,
                     .position = position,
                     .keys = reinterpret_cast<const std::byte* const*>(page_lists_.data()) +
                             s * shape_.num_kv_heads * blocks_,
                     .state = reinterpret_cast<float*>(rows.states.data()) + s * state_floats,
                     .list_stride = blocks_,
                     .samples = samples,
                     .seed = s};
    }
    Upload(backend_, rows.segments.data(), segments.data(), segments.size() * sizeof(segments[0]));
    return rows;
  }
  int sequences() const { return sequences_; }
  int copies() const { return copies_; }

  PagedAttentionParams Params(int copy) const {
    PagedAttentionParams params;
    params.segments =
        reinterpret_cast<const AttentionSegment*>(segments_.data()) + size_t(copy) * sequences_;
    params.num_segments = sequences_;
    params.q_stride = shape_.num_q_heads * shape_.head_dim;
    params.num_q_heads = shape_.num_q_heads;
    params.num_kv_heads = shape_.num_kv_heads;
    params.head_dim = shape_.head_dim;
    params.dtype = kPageType;
    params.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    params.max_entries = blocks_;
    return params;
  }

 private:
  size_t page_bytes() const {
    return 2 * size_t{kBlockTokens} * shape_.head_dim * kernels::BytesOf(kPageType);
  }
  size_t num_pages() const { return size_t(copies_) * sequences_ * shape_.num_kv_heads * blocks_; }

  Backend* backend_;
  HeadShape shape_;
  int sequences_, copies_, blocks_;
  kernels::BackendArray<std::byte> pages_, page_lists_, segments_;
};

double SecondsOf(Backend* backend, const kernels::StepGraph& graph) {
  const auto start = std::chrono::steady_clock::now();
  backend->Launch(graph);
  backend->Synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Of one op; call(recorder, i) is the i-th.
template <class Call>
double MedianCallSeconds(Backend* backend, int repeats, Call call) {
  const auto record = [&](int count) {
    return backend->Record([&](Backend* recorder) {
      for (int i = 0; i < count; ++i) call(recorder, i);
    });
  };
  const auto first = record(1);
  SecondsOf(backend, *first);  // the first run loads the kernel
  const double guess = SecondsOf(backend, *first);
  const int count = std::clamp(static_cast<int>(kGraphSeconds / guess), 1, kMaxGraphOps);
  const auto graph = record(count);
  SecondsOf(backend, *graph);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) seconds.push_back(SecondsOf(backend, *graph) / count);
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[repeats / 2];
}

template <class Params>
double MedianOpSeconds(Backend* backend, int repeats, Params params) {
  return MedianCallSeconds(backend, repeats,
                           [&](Backend* recorder, int i) { recorder->PagedAttention(params(i)); });
}

int CopiesFor(const HeadShape& shape, int sequences, int tokens) {
  const size_t bytes = 2 * size_t(sequences) * tokens * shape.num_kv_heads * shape.head_dim *
                       kernels::BytesOf(kPageType);
  return static_cast<int>(std::clamp<size_t>((kRotatedBytes + bytes - 1) / bytes, 2, 64));
}

BenchRecord Describe(const BenchContext& context, const std::string& bench,
                     const HeadShape& shape) {
  BenchRecord record(context, bench);
  record.Add("dtype", std::string(kernels::NameOf(kPageType)))
      .Add("q_heads", int64_t{shape.num_q_heads})
      .Add("kv_heads", int64_t{shape.num_kv_heads})
      .Add("head_dim", int64_t{shape.head_dim});
  return record;
}

// What sampled rows stand beside.
struct ExactRows {
  const float* q;
  std::byte* out;
  double seconds;
  double read_bytes_per_second;  // 0: not known
};

// |sampled - exact| / |exact| over all rows of the batch's first copy.
double RelativeError(Backend* backend, const HeadShape& shape, const Batch& batch,
                     const ExactRows& exact, float scale, const std::byte* sampled) {
  const size_t floats = size_t(batch.sequences()) * shape.num_q_heads * shape.head_dim;
  PagedAttentionParams params = batch.Params(0);
  params.q = exact.q;
  params.out = exact.out;
  params.rows = batch.sequences();
  params.phase = kernels::Phase::kDecode;
  params.scale = scale;
  std::vector<float> found(floats), expected(floats);
  backend->Copy(found.data(), sampled, floats * sizeof(float));
  backend->PagedAttention(params);
  backend->Copy(expected.data(), exact.out, floats * sizeof(float));
  backend->Synchronize();
  double error = 0, norm = 0;
  for (size_t i = 0; i < floats; ++i) {
    error += (found[i] - expected[i]) * double{found[i] - expected[i]};
    norm += expected[i] * double{expected[i]};
  }
  return std::sqrt(error / norm);
}

// The same rows with sampled values, beside their time with exact ones. The floor: all of K and the
// rows that were drawn, at the bandwidth of a read.
void RunSampledCase(Backend* backend, const BenchContext& context, const HeadShape& shape,
                    const Batch& batch, const ExactRows& exact, const std::string& name,
                    int samples, float spread) {
  const auto estimator = engine::ValueEstimatorNamed(name);
  AUGUR_CHECK(estimator.has_value());
  const int rows = batch.sequences(), tokens = batch.blocks() * kBlockTokens;
  const SampledRows sampled = batch.MakeSampledRows(samples, tokens - 1);
  const float scale = spread / std::sqrt(static_cast<float>(shape.head_dim));
  auto totals = MakeMemory(backend, sizeof(kernels::SampledCounts));
  auto out = MakeMemory(backend, size_t(rows) * shape.num_q_heads * shape.head_dim * sizeof(float));
  const auto call = [&](Backend* recorder, int i) {
    const auto* of_copy = reinterpret_cast<const SampledSegment*>(sampled.segments.data()) +
                          size_t(i % batch.copies()) * rows;
    recorder->SampledAttention({.q = exact.q,
                                .out = out.data(),
                                .segments = of_copy,
                                .totals = reinterpret_cast<kernels::SampledCounts*>(totals.data()),
                                .num_segments = rows,
                                .rows = rows,
                                .q_stride = shape.num_q_heads * shape.head_dim,
                                .num_q_heads = shape.num_q_heads,
                                .num_kv_heads = shape.num_kv_heads,
                                .head_dim = shape.head_dim,
                                .dtype = kPageType,
                                .scale = scale,
                                .estimator = static_cast<kernels::ValueEstimator>(*estimator),
                                .max_entries = batch.blocks()});
  };
  // Copies have states of their own: their first two steps settle how many rows kShared draws.
  for (int i = 0; i < 2 * batch.copies(); ++i) call(backend, i);
  kernels::SampledCounts counts;
  Upload(backend, totals.data(), &counts, sizeof(counts));
  call(backend, 0);
  backend->Copy(&counts, totals.data(), sizeof(counts));
  backend->Synchronize();
  const double error = RelativeError(backend, shape, batch, exact, scale, out.data());
  const double seconds = MedianCallSeconds(backend, context.repeats, call);
  const double row_bytes = static_cast<double>(shape.head_dim) * kernels::BytesOf(kPageType);
  const double bytes = batch.kv_bytes() / 2.0 + static_cast<double>(counts.distinct) * row_bytes;
  BenchRecord record = Describe(context, "attention_sampled", shape);
  record.Add("estimator", name)
      .Add("batch", int64_t{rows})
      .Add("tokens", int64_t{tokens})
      .Add("samples", int64_t{samples})
      .Add("spread", double{spread})
      .Add("rows_a_kv_head", static_cast<double>(counts.distinct) / (rows * shape.num_kv_heads))
      .Add("relative_error", error)
      .Add("k_mb", batch.kv_bytes() / 2e6)
      .Add("us", seconds * 1e6)
      .Add("exact_us", exact.seconds * 1e6)
      .Add("exact_over_sampled", exact.seconds / seconds);
  if (exact.read_bytes_per_second > 0) {
    record.Add("floor_over_sampled", bytes / exact.read_bytes_per_second / seconds);
  }
  record.Print();
}

void RunDecodeCase(Backend* backend, const BenchContext& context, const HeadShape& shape, int rows,
                   int tokens, const AttentionBenchOptions& options, double read_bytes_per_second) {
  const int copies = CopiesFor(shape, rows, tokens);
  Batch batch(backend, shape, rows, tokens, copies);
  batch.SetRows(1, tokens - 1);
  const size_t row_bytes = size_t(shape.num_q_heads) * shape.head_dim * sizeof(float);
  auto q = MakeMemory(backend, rows * row_bytes), out = MakeMemory(backend, rows * row_bytes);
  FillWithRandom(backend, q.data(), rows * row_bytes, kernels::DType::kF32);
  const auto* queries = reinterpret_cast<const float*>(q.data());
  const double seconds = MedianOpSeconds(backend, context.repeats, [&](int i) {
    PagedAttentionParams params = batch.Params(i % copies);
    params.q = queries;
    params.out = out.data();
    params.rows = rows;
    params.phase = kernels::Phase::kDecode;
    return params;
  });
  const double rate = static_cast<double>(batch.kv_bytes()) / seconds;
  BenchRecord record = Describe(context, "attention_decode", shape);
  record.Add("batch", int64_t{rows})
      .Add("tokens", int64_t{tokens})
      .Add("us", seconds * 1e6)
      .Add("kv_gb_per_s", rate / 1e9);
  if (read_bytes_per_second > 0) record.Add("of_read_bandwidth", rate / read_bytes_per_second);
  record.Print();
  const ExactRows exact{queries, out.data(), seconds, read_bytes_per_second};
  for (const std::string& estimator : options.estimators) {
    for (const int samples : options.samples) {
      for (const float spread : options.spreads) {
        RunSampledCase(backend, context, shape, batch, exact, estimator, samples, spread);
      }
    }
  }
}

void RunPrefillCase(Backend* backend, const BenchContext& context, const HeadShape& shape,
                    int tokens, int chunk) {
  Batch batch(backend, shape, 1, tokens, 1);
  const size_t row_bytes = size_t(shape.num_q_heads) * shape.head_dim * sizeof(float);
  const size_t rows_bytes = std::min(chunk, tokens) * row_bytes;
  auto q = MakeMemory(backend, rows_bytes), out = MakeMemory(backend, rows_bytes);
  FillWithRandom(backend, q.data(), rows_bytes, kernels::DType::kF32);
  double seconds = 0;
  for (int first = 0; first < tokens; first += chunk) {
    const int rows = std::min(chunk, tokens - first);
    batch.SetRows(rows, first);
    seconds += MedianOpSeconds(backend, context.repeats, [&](int) {
      PagedAttentionParams params = batch.Params(0);
      params.q = reinterpret_cast<const float*>(q.data());
      params.out = out.data();
      params.rows = rows;
      params.phase = kernels::Phase::kPrefill;
      return params;
    });
  }
  const double pairs = 0.5 * tokens * (tokens + 1.0);  // of a query and a key that it attends to
  Describe(context, "attention_prefill", shape)
      .Add("tokens", int64_t{tokens})
      .Add("chunk", int64_t{chunk})
      .Add("us", seconds * 1e6)
      .Add("tflops", 4.0 * pairs * shape.num_q_heads * shape.head_dim / seconds / 1e12)
      .Print();
}

// A row's blocks as MiniCPM4 takes them: the first one, those around the row, and free ones.
constexpr int kLocalBlocks = 33;
constexpr int kFreeBlocks = 62;
constexpr int kChosenBlocks = 1 + kLocalBlocks + kFreeBlocks;

// [rows][kv heads][kChosenBlocks]; from row to row `changes` free blocks give way to others.
std::vector<int32_t> MakeChoices(int rows, int num_kv_heads, int first_position, int changes) {
  std::vector<int32_t> choices(size_t(rows) * num_kv_heads * kChosenBlocks);
  for (int h = 0; h < num_kv_heads; ++h) {
    std::mt19937 random(h);
    std::vector<int32_t> free;
    for (int r = 0; r < rows; ++r) {
      const int own = (first_position + r) / kBlockTokens, local = own - kLocalBlocks + 1;
      for (int i = 0; i < changes && !free.empty(); ++i) {
        free.erase(free.begin() + random() % free.size());
      }
      std::set<int32_t> blocks(free.begin(), free.end());
      while (static_cast<int>(blocks.size()) < kFreeBlocks) {
        blocks.insert(1 + static_cast<int32_t>(random() % (local - 1)));
      }
      free.assign(blocks.begin(), blocks.end());
      blocks.insert(0);
      for (int b = local; b <= own; ++b) blocks.insert(b);
      std::copy(blocks.begin(), blocks.end(),
                choices.begin() + (size_t(r) * num_kv_heads + h) * kChosenBlocks);
    }
  }
  return choices;
}

// Blocks of the union of `tokens` neighbouring rows' choices, in the mean.
double MeanUnion(const std::vector<int32_t>& choices, int rows, int num_kv_heads, int tokens) {
  size_t sum = 0;
  for (int first = 0; first + tokens <= rows; first += tokens) {
    std::set<int32_t> blocks;
    for (int r = first; r < first + tokens; ++r) {
      const auto list = choices.begin() + size_t(r) * num_kv_heads * kChosenBlocks;
      blocks.insert(list, list + kChosenBlocks);
    }
    sum += blocks.size();
  }
  return static_cast<double>(sum) / (rows / tokens);
}

// A chunk over all blocks before it, and the same chunk with choices.
void RunSparsePrefillCase(Backend* backend, const BenchContext& context, const HeadShape& shape,
                          int first, int rows, const std::vector<int>& changes) {
  Batch batch(backend, shape, 1, first + rows, 1);
  const size_t rows_bytes = size_t(rows) * shape.num_q_heads * shape.head_dim * sizeof(float);
  auto q = MakeMemory(backend, rows_bytes), out = MakeMemory(backend, rows_bytes);
  FillWithRandom(backend, q.data(), rows_bytes, kernels::DType::kF32);
  const auto seconds_of = [&](bool has_choices) {
    return MedianOpSeconds(backend, context.repeats, [&](int) {
      PagedAttentionParams params = batch.Params(0);
      params.q = reinterpret_cast<const float*>(q.data());
      params.out = out.data();
      params.rows = rows;
      params.phase = kernels::Phase::kPrefill;
      params.has_choices = has_choices;
      return params;
    });
  };
  const double flops_a_key = 4.0 * shape.num_q_heads * shape.head_dim;
  batch.SetRows(rows, first);
  const double dense = seconds_of(false);
  const double dense_flops = flops_a_key * rows * (first + 0.5 * (rows + 1.0));
  const size_t lists = size_t(rows) * shape.num_kv_heads;
  auto choices = MakeMemory(backend, lists * kChosenBlocks * sizeof(int32_t));
  auto counts = MakeMemory(backend, lists * sizeof(int32_t));
  const std::vector<int32_t> all_counts(lists, kChosenBlocks);
  Upload(backend, counts.data(), all_counts.data(), lists * sizeof(int32_t));
  for (const int change : changes) {
    const std::vector<int32_t> chosen = MakeChoices(rows, shape.num_kv_heads, first, change);
    Upload(backend, choices.data(), chosen.data(), chosen.size() * sizeof(int32_t));
    batch.SetChoosingRows(rows, first, choices.data(), counts.data(), kChosenBlocks);
    const double sparse = seconds_of(true);
    const double sparse_flops = flops_a_key * rows * (kChosenBlocks - 0.5) * kBlockTokens;
    Describe(context, "attention_sparse_prefill", shape)
        .Add("first", int64_t{first})
        .Add("rows", int64_t{rows})
        .Add("changed_blocks", int64_t{change})
        .Add("union_of_4_tokens", MeanUnion(chosen, rows, shape.num_kv_heads, 4))
        .Add("union_of_8_tokens", MeanUnion(chosen, rows, shape.num_kv_heads, 8))
        .Add("union_of_16_tokens", MeanUnion(chosen, rows, shape.num_kv_heads, 16))
        .Add("union_of_32_tokens", MeanUnion(chosen, rows, shape.num_kv_heads, 32))
        .Add("dense_us", dense * 1e6)
        .Add("dense_tflops", dense_flops / dense / 1e12)
        .Add("us", sparse * 1e6)
        .Add("tflops_of_choices", sparse_flops / sparse / 1e12)
        .Add("dense_over_sparse", dense / sparse)
        .Print();
  }
}

}  // namespace

void RunAttentionBench(Backend* backend, const BenchContext& context,
                       const AttentionBenchOptions& options, double read_bytes_per_second) {
  if (read_bytes_per_second > 0) {
    BenchRecord(context, "peak").Add("read_gb_per_s", read_bytes_per_second / 1e9).Print();
  }
  for (const HeadShape& shape : kHeadShapes) {
    for (const int tokens : options.contexts) {
      for (const int batch : options.batches) {
        RunDecodeCase(backend, context, shape, batch, tokens, options, read_bytes_per_second);
      }
    }
    for (const int tokens : options.prompts) {
      RunPrefillCase(backend, context, shape, tokens, options.chunk);
    }
    for (const int tokens : options.sparse_contexts) {
      if (tokens < 2 * kChosenBlocks * kBlockTokens) continue;  // leaves little to choose from
      RunSparsePrefillCase(backend, context, shape, tokens, options.chunk, options.sparse_changes);
    }
  }
}

}  // namespace augur::bench
