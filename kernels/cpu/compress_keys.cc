#include "kernels/ops/compress_keys.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {
namespace {

// 16 keys of a page from `token` on, where they lie or, of an fp8 page, unpacked to `room`.
const std::byte* KeysOf(const CompressKeysParams& params, const std::byte* page, int token,
                        std::byte* room) {
  const size_t key_bytes = params.head_dim * BytesOf(params.dtype);
  if (!params.fp8.holds(page)) return page + token * key_bytes;
  for (int i = 0; i < kWindowStride; ++i) {
    UnpackRow(params.dtype, params.head_dim, page, token + i, room + i * key_bytes);
  }
  return room;
}

}  // namespace

// One item for each (kv head, window that ends in the segment's rows).
void CpuBackend::PlanCompression(const CompressKeysParams& params, const CompressSegment& segment) {
  const Segment& rows = segment.rows;
  AUGUR_CHECK(rows.num_rows >= 0 && rows.first_position >= 0);
  if (rows.num_rows == 0) return;
  const int first_block = rows.first_position / kBlockTokens;
  const WindowRange windows = WindowsEndingIn(rows);
  const size_t key_bytes = params.head_dim * BytesOf(params.dtype);
  const int block_stride = segment.block_stride > 0 ? segment.block_stride : params.num_kv_heads;
  // Of 16 consecutive keys from `token` on; they never cross a page.
  const auto page_of = [&](int token, int kv_head) {
    const int64_t entry = token / kBlockTokens - (first_block - 1);
    const std::byte* page = segment.pages[params.pages_offset + entry * block_stride +
                                          int64_t{kv_head} * segment.head_stride];
    AUGUR_CHECK(page != nullptr);
    return page;
  };
  for (int window = windows.begin; window < windows.end; ++window) {
    const int token = window * kWindowStride;
    const int block = (token + kWindowTokens - 1) / kBlockTokens;
    for (int kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      std::byte* keys =
          segment.key_pages[params.key_pages_offset + int64_t{kv_head} * segment.key_page_stride +
                            block / kKeyPageBlocks];
      const int place = block % kKeyPageBlocks * kBlockWindows + (window + 1) % kBlockWindows;
      const int second = token + kWindowStride;
      compress_items_.push_back({.first = page_of(token, kv_head),
                                 .second = page_of(second, kv_head),
                                 .first_token = token % kBlockTokens,
                                 .second_token = second % kBlockTokens,
                                 .key = keys + place * key_bytes});
    }
  }
}

void CpuBackend::CompressKeys(const CompressKeysParams& params) {
  AUGUR_CHECK(params.num_kv_heads > 0 && params.head_dim > 0 && params.head_dim <= kMaxHeadDim);
  compress_items_.clear();
  for (int s = 0; s < params.num_segments; ++s) PlanCompression(params, params.segments[s]);
  const int64_t window_cost = int64_t{kWindowTokens} * params.head_dim;
  ForRows(static_cast<int>(compress_items_.size()), window_cost, [&](int first, int end, int) {
    std::byte unpacked[2][kWindowStride * kMaxHeadDim * sizeof(float)];
    for (int i = first; i < end; ++i) {
      const CompressItem& item = compress_items_[i];
      isa_.compress_window(params.dtype, KeysOf(params, item.first, item.first_token, unpacked[0]),
                           KeysOf(params, item.second, item.second_token, unpacked[1]), item.key,
                           params.head_dim);
    }
  });
}

}  // namespace augur::kernels
