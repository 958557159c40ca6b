#include <algorithm>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampled_attention.h"
#include "kernels/cuda/sampled_call.h"

namespace augur::kernels {
namespace {

constexpr int kMaxGroup = 16;
constexpr int kMaxHeadDim = 256;

bool IsAligned(const void* data, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

void CheckParams(const SampledAttentionParams& params) {
  AUGUR_CHECK(params.estimator == ValueEstimator::kProportional ||
              params.estimator == ValueEstimator::kFlash ||
              params.estimator == ValueEstimator::kShared);
  AUGUR_CHECK(params.budget == ValueBudget::kDraws || params.estimator == ValueEstimator::kShared);
  AUGUR_CHECK(params.num_kv_heads > 0 && params.num_q_heads % params.num_kv_heads == 0);
  AUGUR_CHECK(params.num_q_heads / params.num_kv_heads <= kMaxGroup);
  AUGUR_CHECK(params.num_kv_heads <= kMaxSampledLists);
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim % 2 == 0 && params.head_dim <= kMaxHeadDim);
  AUGUR_CHECK(params.q_stride >= params.num_q_heads * params.head_dim && params.q_stride % 2 == 0);
  AUGUR_CHECK(IsAligned(params.q, 8));
  AUGUR_CHECK(!StreamsKeys(params) || (params.q_stride % 4 == 0 && IsAligned(params.q, 16)));
  AUGUR_CHECK(params.layer >= 0 && params.layer < 4096 && params.num_q_heads < 4096);
  AUGUR_CHECK(params.max_entries > 0);
  AUGUR_CHECK(params.scores == nullptr || params.num_segments == 1);
  AUGUR_CHECK(params.first_entry == 0 || params.scores != nullptr);
}

// Parts of scratch, one behind the other, each aligned.
class Layout {
 public:
  explicit Layout(std::byte* begin) : begin_(begin) {}
  template <class T>
  void Take(size_t count, T** at) {
    if (begin_ != nullptr) *at = reinterpret_cast<T*>(begin_ + bytes_);
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* begin_;
  size_t bytes_ = 0;
};

// kShared in one pass over the keys: no scores are kept.
bool IsOnePass(const SampledAttentionParams& params) {
  return params.estimator == ValueEstimator::kShared && StreamsKeys(params);
}

// Where the call's scratch lies behind `begin`; gives its bytes. Null: its bytes alone.
size_t LayOut(SampledCall& call, std::byte* begin) {
  const SampledAttentionParams& params = call.attention;
  const size_t rows = size_t(call.num_segments) * params.num_q_heads;
  const size_t chunks = size_t(call.num_segments) * params.num_kv_heads * call.most_chunks;
  const size_t group = params.num_q_heads / params.num_kv_heads;
  Layout layout(begin);
  layout.Take(rows, &call.heads);
  if (IsOnePass(params)) {
    const size_t lists = size_t(call.num_segments) * params.num_kv_heads;
    layout.Take(lists * (params.head_dim / 16) * 32, &call.queries);
    layout.Take(rows, &call.anchors);
    layout.Take(chunks * group, &call.run_norms);
  } else {
    if (params.scores == nullptr) layout.Take(rows * call.stride * kBlockTokens, &call.scores);
    layout.Take(rows * call.stride, &call.maxima);
    layout.Take(rows * call.stride, &call.sums);
    layout.Take(rows * (call.stride + 1), &call.shares);
  }
  layout.Take(chunks * group * params.head_dim, &call.chunk_sums);
  layout.Take(chunks, &call.chunk_counts);
  if (params.estimator == ValueEstimator::kShared) layout.Take(chunks, &call.chunk_rates);
  return layout.bytes();
}

}  // namespace

SampledDecode::SampledDecode(int num_sms) : num_sms_(num_sms) {
  AUGUR_CUDA(cudaMalloc(reinterpret_cast<void**>(&scratch_), kSampledScratchBytes));
  AUGUR_CUDA(cudaMalloc(reinterpret_cast<void**>(&runs_taken_), sizeof(int)));
  AUGUR_CUDA(cudaMemset(runs_taken_, 0, sizeof(int)));
  PrepareSampledScores();
  PrepareSharedStream();
}

SampledDecode::~SampledDecode() {
  cudaFree(runs_taken_);
  cudaFree(scratch_);
}

void SampledDecode::Run(const SampledAttentionParams& params, cudaStream_t stream) {
  CheckParams(params);
  SampledCall call;
  call.attention = params;
  call.stride = params.max_entries;
  call.exponent_scale = params.scale * 1.44269504f;  // log2(e)
  call.most_runs = MostRuns(params.max_entries);
  call.most_chunks = IsOnePass(params) ? call.most_runs : MostChunks(params.max_entries);
  call.runs_taken = runs_taken_;
  const size_t group = params.num_q_heads / params.num_kv_heads;
  call.scores = params.scores;
  if (params.scores != nullptr) {
    call.head_scores = params.scores_stride;
    call.entry_scores = kBlockTokens;
    call.list_scores = group * params.scores_stride;
  } else {
    call.head_scores = kBlockTokens;
    call.entry_scores = group * kBlockTokens;
    call.list_scores = call.stride * call.entry_scores;
  }
  const int most = std::min(params.num_segments, kMaxSampledLists / params.num_kv_heads);
  int at_once = most;
  for (; at_once > 1; --at_once) {
    call.num_segments = at_once;
    if (LayOut(call, nullptr) <= kSampledScratchBytes) break;
  }
  for (int first = 0; first < params.num_segments; first += at_once) {
    call.first_segment = first;
    call.num_segments = std::min(at_once, params.num_segments - first);
    AUGUR_CHECK(LayOut(call, scratch_) <= kSampledScratchBytes);
    if (IsOnePass(params)) {
      LaunchSharedStream(call, num_sms_, stream);
      LaunchSharedMerge(call, stream);
      continue;
    }
    LaunchSampledScores(call, num_sms_, stream);
    LaunchSampledDraws(call, stream);
    LaunchSampledGather(call, stream);
  }
}

void CudaBackend::SampledAttention(const SampledAttentionParams& params) {
  if (params.rows == 0 || params.num_segments == 0) return;
  sampled_decode_->Run(params, stream_);
}

}  // namespace augur::kernels
