// Copies of pages on a CUDA device: every byte that should move moves, and no other. Without a
// device nothing runs.
#include "kernels/cuda/page_copy.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/pinned_memory.h"

namespace augur::kernels {
namespace {

constexpr size_t kBytes = size_t{24} << 20;  // of each side
constexpr int kMaxPages = 100;
constexpr size_t kGap = 16;  // between pages of the destination
constexpr auto kUntouched = std::byte{0xee};

class PageCopyTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<CudaDevice> devices = FindCudaDevices();
    if (devices.empty() || !devices.front().runs_our_code) GTEST_SKIP() << "no CUDA device";
    std::string error;
    host_ = PinnedMemory::Create({.bytes = kBytes}, &error);
    ASSERT_NE(host_, nullptr) << error;
    ASSERT_EQ(cudaMalloc(&device_, kBytes), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&list_, kMaxPages * sizeof(PageCopy)), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&length_, sizeof(int32_t)), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    content_.resize(kBytes);
    std::mt19937 random(1);
    for (std::byte& value : content_) value = static_cast<std::byte>(random());
  }

  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    cudaFree(device_);
    cudaFree(list_);
    cudaFree(length_);
  }

  void Write(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return;
    ASSERT_EQ(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

  // The list of `count` pages in random order, on the device; and what the destination should be.
  void Prepare(bool to_device, size_t page_bytes, int count) {
    std::byte* device = static_cast<std::byte*>(device_);
    const std::byte* source = to_device ? host_->data() : device;
    destination_ = to_device ? device : host_->data();
    expected_.assign(kBytes, kUntouched);
    Write(const_cast<std::byte*>(source), content_.data(), kBytes);
    Write(destination_, expected_.data(), kBytes);
    std::vector<size_t> places(static_cast<size_t>(std::max(count, 0)));
    std::iota(places.begin(), places.end(), size_t{0});
    std::shuffle(places.begin(), places.end(), random_);
    std::vector<PageCopy> pages(places.size());
    for (size_t i = 0; i < places.size(); ++i) {
      const size_t to = kGap + i * (page_bytes + kGap);
      ASSERT_LE(to + page_bytes, kBytes);
      pages[i] = {.from = source + places[i] * page_bytes, .to = destination_ + to};
      std::memcpy(expected_.data() + to, content_.data() + places[i] * page_bytes, page_bytes);
    }
    Write(list_, pages.data(), pages.size() * sizeof(PageCopy));
    Write(length_, &count, sizeof(int32_t));
  }

  PageCopyParams Params(int page_bytes, int quota) const {
    return {.pages = static_cast<const PageCopy*>(list_),
            .num_pages = static_cast<const int32_t*>(length_),
            .page_bytes = page_bytes,
            .quota = quota};
  }

  bool Arrived() {
    std::vector<std::byte> found(kBytes);
    Write(found.data(), destination_, kBytes);
    return std::memcmp(found.data(), expected_.data(), kBytes) == 0;
  }

  std::unique_ptr<PinnedMemory> host_;
  void* device_ = nullptr;
  void* list_ = nullptr;
  void* length_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::vector<std::byte> content_;
  std::vector<std::byte> expected_;
  std::byte* destination_ = nullptr;
  std::mt19937 random_{2};
};

// Pages of one and of several pieces, with remainders; lists shorter than the quota, and longer
// than what a warp holds at a time.
TEST_F(PageCopyTest, EveryPageAndNothingElse) {
  for (const bool to_device : {true, false}) {
    for (const int page_bytes : {16, 48, 4096, 16384, 20480, 32768, 32784, 65536, 200000}) {
      for (const int count : {-1, 0, 1, 3, 33, 65, 100}) {
        for (const int quota : {1, 4, 32}) {
          Prepare(to_device, static_cast<size_t>(page_bytes), count);
          CopyPages(Params(page_bytes, quota), stream_);
          ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
          ASSERT_TRUE(Arrived()) << (to_device ? "to device" : "to host") << ", " << count
                                 << " pages of " << page_bytes << ", quota " << quota;
        }
      }
    }
  }
}

// Fewer CTAs than the quota, as the host or the device says; and a length that the host knows.
TEST_F(PageCopyTest, GrantedCtasCopyEverything) {
  constexpr int kQuota = 8;
  void* granted = nullptr;
  ASSERT_EQ(cudaMalloc(&granted, sizeof(int32_t)), cudaSuccess);
  for (const bool to_device : {true, false}) {
    for (const int page_bytes : {512, 32768, 65536}) {
      for (const int count : {0, 1, 7, 33, 100}) {
        for (const int32_t ctas : {-1, 0, 1, 3, 7, 8, 9}) {
          Prepare(to_device, static_cast<size_t>(page_bytes), count);
          Write(granted, &ctas, sizeof(ctas));
          PageCopyParams params = Params(page_bytes, kQuota);
          params.granted = static_cast<const int32_t*>(granted);
          if (ctas % 2 != 0) {
            params.num_pages = nullptr;
            params.known_pages = count;
          }
          CopyPages(params, stream_);
          ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
          ASSERT_TRUE(Arrived()) << (to_device ? "to device" : "to host") << ", " << count
                                 << " pages of " << page_bytes << ", " << ctas << " granted";
        }
      }
    }
  }
  cudaFree(granted);
}

TEST_F(PageCopyTest, RecordedLaunchReadsTheListAnew) {
  constexpr int kPageBytes = 16384;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  CopyPages(Params(kPageBytes, 2), stream_);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (const int count : {5, 0, 70}) {
    Prepare(true, kPageBytes, count);
    ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_TRUE(Arrived()) << count << " pages";
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

// What cudaGraphInstantiateFlagUseNodePriority goes by (CudaBackend::Record): a captured kernel has
// the priority of its stream, which joined the capture by an event, not of the one that began it.
TEST_F(PageCopyTest, ACapturedCopyHasThePriorityOfItsStream) {
  int least = 0, greatest = 0;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  ASSERT_LT(greatest, least);
  cudaStream_t lane = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&lane, cudaStreamNonBlocking, greatest), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  CopyPages(Params(16384, 2), stream_);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(lane, event, 0), cudaSuccess);
  CopyPages(Params(16384, 3), lane);
  ASSERT_EQ(cudaEventRecord(event, lane), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(stream_, event, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGraphNode_t nodes[2] = {};
  size_t count = 2;
  ASSERT_EQ(cudaGraphGetNodes(graph, nodes, &count), cudaSuccess);
  ASSERT_EQ(count, 2u);
  for (const cudaGraphNode_t node : nodes) {
    cudaKernelNodeParams params{};
    cudaLaunchAttributeValue value{};
    ASSERT_EQ(cudaGraphKernelNodeGetParams(node, &params), cudaSuccess);
    ASSERT_EQ(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &value),
              cudaSuccess);
    // stream_ was made without a priority.
    EXPECT_EQ(value.priority, params.gridDim.x == 3 ? greatest : 0) << params.gridDim.x << " CTAs";
  }
  cudaGraphDestroy(graph);
  cudaEventDestroy(event);
  cudaStreamDestroy(lane);
}

TEST_F(PageCopyTest, CopyEngine) {
  std::vector<PageCopy> pages(3);
  for (const bool to_device : {true, false}) {
    Prepare(to_device, 20480, static_cast<int>(pages.size()));
    Write(pages.data(), list_, pages.size() * sizeof(PageCopy));
    CopyPagesByCopyEngine(pages.data(), static_cast<int>(pages.size()), 20480, stream_);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_TRUE(Arrived());
  }
}

TEST_F(PageCopyTest, PinnedMemoryIsZeroedAndSaysWhatItCannotDo) {
  EXPECT_TRUE(std::all_of(host_->data() + kBytes - 4096, host_->data() + kBytes,
                          [](std::byte value) { return value == std::byte{0}; }));
  std::string error;
  EXPECT_EQ(PinnedMemory::Create({.bytes = size_t{1} << 46, .huge_pages = true}, &error), nullptr);
  EXPECT_NE(error.find("65536.00 GiB"), std::string::npos) << error;
  EXPECT_NE(error.find("host_kv_bytes"), std::string::npos) << error;
}

}  // namespace
}  // namespace augur::kernels
