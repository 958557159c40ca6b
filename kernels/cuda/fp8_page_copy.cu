// Copies between pages and their fp8 form. Bulk copies bring halves of pages to shared memory as
// page_copy.cu's do, so that as many bytes are under way on the link; four warps convert them from
// there. An unpacked half is written to device memory by the warps, a packed one is put together in
// shared memory and leaves as one bulk copy.
#include <cuda_fp8.h>
#include <math_constants.h>

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/bulk_copy.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/page_copy.h"
#include "kernels/kv_page.h"

namespace augur::kernels {
namespace {

// Converting 16 KiB of fp8 takes one warp 1,800 instructions; the link brings them in 320 ns.
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kSharedBytes = 200 * 1024;
constexpr int kMaxStages = 16;

enum class Way { kPlain, kPack, kUnpack };

// A half of a page in the ring.
struct Piece {
  std::byte* to;
  Way way;
};

struct Sizes {
  uint32_t plain_half;
  uint32_t fp8_half;
  uint32_t halves;  // of a page: 2, or 1
  int stages;
};

__device__ Way WayOf(const Fp8Pages& fp8, const PageCopy& page) {
  return fp8.holds(page.from) ? Way::kUnpack : fp8.holds(page.to) ? Way::kPack : Way::kPlain;
}

// Hardware rounds as fp8::E4M3FromFloat does, but for infinities.
__device__ inline uint32_t TwoCodes(float a, float b) {
  a = isinf(a) ? CUDART_NAN_F : a;
  b = isinf(b) ? CUDART_NAN_F : b;
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}
__device__ inline float2 TwoValues(uint32_t codes) {
  const __half2_raw raw =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return __half22float2(__half2(raw));
}

// `stage`: [64 x head_dim][exponents 64]. All threads; kVector divides head_dim.
template <class T, int kVector>
__device__ void Unpack(const std::byte* stage, int head_dim, T* to) {
  const auto* codes = reinterpret_cast<const uint8_t*>(stage);
  const uint8_t* exponents = codes + kBlockTokens * head_dim;
  // A thread's vectors lie kThreads apart: so many rows, and so many vectors of one.
  const int row_vectors = head_dim / kVector;
  const int row_step = kThreads / row_vectors, step = kThreads % row_vectors;
  int t = threadIdx.x / row_vectors;
  int at = threadIdx.x % row_vectors;
  for (int i = threadIdx.x; i < kBlockTokens * row_vectors; i += kThreads) {
    const float scale = fp8::UnpackingScale(exponents[t]);
    if constexpr (kVector == 4) {
      const uint32_t word = reinterpret_cast<const uint32_t*>(codes)[i];
      const float2 low = TwoValues(word & 0xffffu), high = TwoValues(word >> 16);
      const float values[4] = {low.x * scale, low.y * scale, high.x * scale, high.y * scale};
      StoreFloats(values, to + i * 4);
    } else {
      to[i] = FromFloat<T>(fp8::FloatFromE4M3(codes[i]) * scale);
    }
    t += row_step;
    at += step;
    if (at >= row_vectors) {
      at -= row_vectors;
      ++t;
    }
  }
}

// `stage`: [64][head_dim] of T; `packed` as above. A warp a row, all threads.
template <class T, DType kType>
__device__ void Pack(const std::byte* stage, int head_dim, std::byte* packed) {
  const T* rows = reinterpret_cast<const T*>(stage);
  auto* codes = reinterpret_cast<uint8_t*>(packed);
  const int lane = threadIdx.x % kWarp;
  for (int t = threadIdx.x / kWarp; t < kBlockTokens; t += kWarps) {
    const T* row = rows + t * head_dim;
    uint32_t largest = 0;
    for (int c = lane; c < head_dim; c += kWarp) {
      largest = max(largest, fp8::FiniteMagnitude(__float_as_uint(ToFloat(row[c]))));
    }
    largest = __reduce_max_sync(~0u, largest);
    const int exponent = fp8::ExponentOf(largest, kType);
    const float scale = fp8::PackingScale(exponent);
    // A lane takes neighbours: an odd head_dim's last code is alone.
    for (int c = 2 * lane; c < head_dim; c += 2 * kWarp) {
      const bool pair = c + 1 < head_dim;
      const uint32_t both =
          TwoCodes(ToFloat(row[c]) * scale, pair ? ToFloat(row[c + 1]) * scale : 0.0f);
      codes[t * head_dim + c] = static_cast<uint8_t>(both);
      if (pair) codes[t * head_dim + c + 1] = static_cast<uint8_t>(both >> 8);
    }
    if (lane == 0) codes[kBlockTokens * head_dim + t] = static_cast<uint8_t>(exponent);
  }
}

__device__ void CopyOut(const std::byte* stage, uint32_t bytes, std::byte* to) {
  for (uint32_t at = threadIdx.x; at < bytes / sizeof(uint4); at += kThreads) {
    reinterpret_cast<uint4*>(to)[at] = reinterpret_cast<const uint4*>(stage)[at];
  }
}

// Piece k lies in stage k % stages from when it is asked for until all threads have read it.
template <class T, DType kType>
__global__ void __launch_bounds__(kThreads) CopyFp8Kernel(PageCopyParams params, Sizes sizes) {
  // As page_copy.cu's.
  if (params.granted != nullptr && blockIdx.x > 0 &&
      static_cast<int>(blockIdx.x) >= *params.granted) {
    return;
  }
  WaitForPreviousAlone();
  if (params.delay_ns > 0) Delay(params.delay_ns);
  extern __shared__ __align__(128) std::byte shared[];  // [2][fp8_half], then the ring
  __shared__ __align__(8) uint64_t loaded[kMaxStages];
  __shared__ Piece pieces_of[kMaxStages];

  const int first = static_cast<int>(blockIdx.x);
  int ctas = static_cast<int>(gridDim.x);
  if (params.granted != nullptr) ctas = max(1, min(ctas, *params.granted));
  const int num_pages = params.num_pages == nullptr ? params.known_pages : *params.num_pages;
  if (first >= ctas || num_pages <= first) return;
  const bool leader = threadIdx.x == 0;
  const bool loader = threadIdx.x < kWarp;  // a whole warp holds the list
  std::byte* const ring = shared + 2 * sizes.fp8_half;
  const uint32_t stage_bytes = max(sizes.plain_half, sizes.fp8_half);
  const int64_t pieces = ((num_pages - 1 - first) / ctas + 1) * int64_t{sizes.halves};
  if (leader) {
    for (int stage = 0; stage < sizes.stages; ++stage) InitBarrier(&loaded[stage], 1);
    FenceBarriers();
  }
  __syncthreads();

  EntryReader entries(params.pages, loader ? num_pages : 0, ctas);
  PageCopy page;
  uint32_t half = 0;  // of `page`, that is loaded next
  const auto load_next_into = [&](int stage) {
    if (half == 0) page = entries.Next();
    if (leader) {
      const Way way = WayOf(params.fp8, page);
      const uint32_t read = way == Way::kUnpack ? sizes.fp8_half : sizes.plain_half;
      const uint32_t written = way == Way::kPack ? sizes.fp8_half : sizes.plain_half;
      pieces_of[stage] = {page.to + half * written, way};
      LoadPiece(ring + stage * stage_bytes, page.from + half * read, read, &loaded[stage]);
    }
    if (++half == sizes.halves) half = 0;
  };
  for (int stage = 0; loader && stage < sizes.stages && stage < pieces; ++stage) {
    load_next_into(stage);
  }
  const int head_dim = params.fp8.head_dim;
  int stage = 0;
  uint32_t parity = 0;
  for (int64_t k = 0; k < pieces; ++k) {
    WaitForBarrier(&loaded[stage], parity);
    const std::byte* const from = ring + stage * stage_bytes;
    const Piece piece = pieces_of[stage];
    std::byte* const packed = shared + k % 2 * sizes.fp8_half;
    if (piece.way == Way::kPack) {
      Pack<T, kType>(from, head_dim, packed);
      FenceBarriers();  // what was written is known to the bulk copy
    } else if (piece.way == Way::kPlain) {
      CopyOut(from, sizes.plain_half, piece.to);
    } else if (head_dim % 4 == 0) {
      Unpack<T, 4>(from, head_dim, reinterpret_cast<T*>(piece.to));
    } else {
      Unpack<T, 1>(from, head_dim, reinterpret_cast<T*>(piece.to));
    }
    if (leader) WaitForStages();  // of the packed half before this one, whose place is next
    __syncthreads();
    if (leader && piece.way == Way::kPack) StorePiece(piece.to, packed, sizes.fp8_half);
    if (loader && k + sizes.stages < pieces) load_next_into(stage);
    if (++stage == sizes.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  if (leader) WaitForStores();
}

Sizes SizesOf(const PageCopyParams& params) {
  const Fp8Pages& fp8 = params.fp8;
  const size_t plain_half = fp8.plain_half_bytes();
  AUGUR_CHECK(plain_half > 0 && params.page_bytes % plain_half == 0);
  const auto halves = static_cast<uint32_t>(params.page_bytes / plain_half);
  AUGUR_CHECK(halves == 1 || halves == 2);
  const size_t fp8_half = Fp8HalfBytes(fp8.head_dim);
  const size_t stages = (kSharedBytes - 2 * fp8_half) / std::max(plain_half, fp8_half);
  AUGUR_CHECK(stages >= 2);
  return {.plain_half = static_cast<uint32_t>(plain_half),
          .fp8_half = static_cast<uint32_t>(fp8_half),
          .halves = halves,
          .stages = std::min(static_cast<int>(stages), kMaxStages)};
}

template <class T, DType kType>
void Launch(const PageCopyParams& params, cudaStream_t stream) {
  const Sizes sizes = SizesOf(params);
  const size_t bytes =
      2 * sizes.fp8_half + sizes.stages * size_t{std::max(sizes.plain_half, sizes.fp8_half)};
  AUGUR_CUDA(cudaFuncSetAttribute(CopyFp8Kernel<T, kType>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  LaunchKernel(stream,
               {.grid = dim3(static_cast<unsigned>(params.quota)),
                .block = dim3(kThreads),
                .shared_bytes = bytes},
               CopyFp8Kernel<T, kType>, params, sizes);
}

}  // namespace

void CopyFp8Pages(const PageCopyParams& params, cudaStream_t stream) {
  switch (params.fp8.dtype) {
    case DType::kF32:
      return Launch<float, DType::kF32>(params, stream);
    case DType::kBF16:
      return Launch<__nv_bfloat16, DType::kBF16>(params, stream);
    case DType::kF16:
      return Launch<__half, DType::kF16>(params, stream);
  }
}

}  // namespace augur::kernels
