// What the network front counts, filled by gRPC and intake threads, read by anyone without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace augur::server {

// How a completion ended; every status but OK goes with kNone. Also the label values' order.
enum class EndReason { kNone, kStop, kLength, kEos, kCount };

enum class UnaryMethod { kTokenize, kDetokenize, kGetModel, kCount };

inline constexpr size_t kStatusCodes = 17;  // of gRPC, OK to UNAUTHENTICATED

struct FrontStats {
  using Counter = std::atomic<uint64_t>;
  using Gauge = std::atomic<int64_t>;

  // Completions by the status that ended them, those refused before the engine included.
  std::array<std::array<Counter, static_cast<size_t>(EndReason::kCount)>, kStatusCodes> requests{};
  // The other calls by method and status.
  std::array<std::array<Counter, kStatusCodes>, static_cast<size_t>(UnaryMethod::kCount)> unary{};
  Gauge open_streams{0};     // completions that have not ended
  Gauge intake_requests{0};  // waiting for a thread that encodes
  Gauge intake_bytes{0};
  Counter reader_pauses{0};  // times that a stream's buffer was full
  Gauge ready{0};            // 1 when readiness is SERVING

  void CountRequest(int code, EndReason reason) {
    requests[RowOf(code)][static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
  void CountUnary(UnaryMethod method, int code) {
    unary[static_cast<size_t>(method)][RowOf(code)].fetch_add(1, std::memory_order_relaxed);
  }

 private:
  static size_t RowOf(int code) {
    return code >= 0 && static_cast<size_t>(code) < kStatusCodes ? code : 2;  // 2: UNKNOWN
  }
};

}  // namespace augur::server
