#include "tests/bench/attention_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>

#include "kernels/kv_page.h"
#include "tests/bench/bench_memory.h"

namespace augur::bench {
namespace {

using kernels::AttentionSegment;
using kernels::Backend;
using kernels::kBlockTokens;
using kernels::PagedAttentionParams;

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

// Of one op; params(i) are those of the i-th.
template <class Params>
double MedianOpSeconds(Backend* backend, int repeats, Params params) {
  const auto record = [&](int count) {
    return backend->Record([&](Backend* recorder) {
      for (int i = 0; i < count; ++i) recorder->PagedAttention(params(i));
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

void RunDecodeCase(Backend* backend, const BenchContext& context, const HeadShape& shape, int rows,
                   int tokens, double read_bytes_per_second) {
  const int copies = CopiesFor(shape, rows, tokens);
  Batch batch(backend, shape, rows, tokens, copies);
  batch.SetRows(1, tokens - 1);
  const size_t row_bytes = size_t(shape.num_q_heads) * shape.head_dim * sizeof(float);
  auto q = MakeMemory(backend, rows * row_bytes), out = MakeMemory(backend, rows * row_bytes);
  FillWithRandom(backend, q.data(), rows * row_bytes, kernels::DType::kF32);
  const double seconds = MedianOpSeconds(backend, context.repeats, [&](int i) {
    PagedAttentionParams params = batch.Params(i % copies);
    params.q = reinterpret_cast<const float*>(q.data());
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

}  // namespace

void RunAttentionBench(Backend* backend, const BenchContext& context,
                       const AttentionBenchOptions& options, double read_bytes_per_second) {
  if (read_bytes_per_second > 0) {
    BenchRecord(context, "peak").Add("read_gb_per_s", read_bytes_per_second / 1e9).Print();
  }
  for (const HeadShape& shape : kHeadShapes) {
    for (const int tokens : options.contexts) {
      for (const int batch : options.batches) {
        RunDecodeCase(backend, context, shape, batch, tokens, read_bytes_per_second);
      }
    }
    for (const int tokens : options.prompts) {
      RunPrefillCase(backend, context, shape, tokens, options.chunk);
    }
  }
}

}  // namespace augur::bench
