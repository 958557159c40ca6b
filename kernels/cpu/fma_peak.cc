#include "kernels/cpu/fma_peak.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/thread_pool.h"

namespace augur::kernels {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTrials = 5;  // the best counts: other work on the machine only slows a trial

template <class Body>
double BestSeconds(ThreadPool& pool, const Body& body) {
  double best = 1e30;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Clock::time_point start = Clock::now();
    pool.ParallelFor(pool.num_threads(), body);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace

double MeasureFmaPeakGflops(int threads, CpuIsa isa) {
  const IsaKernels& kernels = KernelsFor(isa);
  // Around 10 ms a trial; the generic kernels have no Fma instruction and are a hundred times
  // slower.
  const int64_t rounds = &kernels == &GenericKernels() ? 50'000 : 5'000'000;
  ThreadPool pool(threads);
  std::vector<double> operations(threads);
  const double seconds =
      BestSeconds(pool, [&](int item, int) { operations[item] = kernels.fma_rounds(rounds); });
  return operations[0] * threads / seconds / 1e9;
}

double MeasureReadBandwidthGBps(int threads, size_t bytes) {
  AUGUR_CHECK(threads >= 1);
  const IsaKernels& kernels = KernelsFor(CpuIsa::kAuto);
  const AlignedBuffer buffer(bytes);
  AUGUR_CHECK(buffer.data() != nullptr);
  std::memset(buffer.data(), 0, bytes);
  const size_t share = bytes / sizeof(float) / threads / 16 * 16;
  const int repeats =
      static_cast<int>(std::max<size_t>(1, (size_t{256} << 20) / std::max<size_t>(bytes, 1)));
  ThreadPool pool(threads);
  std::vector<float> sums(threads);
  const double seconds = BestSeconds(pool, [&](int item, int) {
    for (int i = 0; i < repeats; ++i)
      sums[item] += kernels.read_floats(buffer.floats() + item * share, share);
  });
  return static_cast<double>(share) * sizeof(float) * threads * repeats / seconds / 1e9;
}

}  // namespace augur::kernels
