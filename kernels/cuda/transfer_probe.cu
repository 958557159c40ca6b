#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/page_copy.h"
#include "kernels/cuda/pinned_memory.h"
#include "kernels/cuda/transfer_probe.h"

namespace augur::kernels {
namespace {

constexpr int kLoadThreads = 512;
constexpr int kLoadsUnderWay = 8;  // of 16 bytes, of a thread: 64 KiB a CTA
constexpr int kReadThreads = 256;
constexpr int kReadCtasOfSm = 8;  // 2,048 threads: all that an SM holds
constexpr int kReadsUnderWay = 4;
constexpr int kReadPasses = 8;  // timed; one more before them, in which the copy gets going
constexpr int kPatternThreads = 256;
constexpr int kPagesOfBatch = 4096;
constexpr int kMinPageBytes = 1024;  // of a case: sizes the list
constexpr int kSpotChecks = 16;      // pages that the host compares, too
constexpr int kScatterCtas = 16;     // of a gather on the host: from device memory to device memory
constexpr int kNothing = 0x5a;       // what the device's pages hold before a copy

// The content of word `index` of a source: no two words near each other are alike.
__host__ __device__ inline uint64_t PatternWord(uint64_t index, uint64_t salt) {
  uint64_t x = index + salt * 0x9e3779b97f4a7c15ull;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 27);
}

__global__ void FillKernel(uint64_t* words, size_t num_words, uint64_t salt) {
  WaitForPrevious();
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_words; i += stride) {
    words[i] = PatternWord(i, salt);
  }
}

// Adds to *wrong the words of the copied pages that are not the pattern of where they came from.
__global__ void CheckKernel(PageCopyParams params, const std::byte* source, uint64_t salt,
                            unsigned long long* wrong) {
  WaitForPrevious();
  const int num_pages = *params.num_pages;
  const int words = params.page_bytes / 8;
  for (int page = blockIdx.x; page < num_pages; page += gridDim.x) {
    const PageCopy entry = params.pages[page];
    const uint64_t first = static_cast<uint64_t>(entry.from - source) / 8;
    const uint64_t* copied = reinterpret_cast<const uint64_t*>(entry.to);
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
      if (copied[i] != PatternWord(first + i, salt)) atomicAdd(wrong, 1ull);
    }
  }
}

__global__ void __launch_bounds__(kLoadThreads) CopyByLoadsKernel(PageCopyParams params) {
  WaitForPrevious();
  const int num_pages = *params.num_pages;
  const int vectors = params.page_bytes / 16;
  const int first = static_cast<int>(threadIdx.x);
  for (int page = blockIdx.x; page < num_pages; page += gridDim.x) {
    const uint4* from = reinterpret_cast<const uint4*>(params.pages[page].from);
    uint4* to = reinterpret_cast<uint4*>(params.pages[page].to);
    int i = first;
    for (; i + (kLoadsUnderWay - 1) * kLoadThreads < vectors; i += kLoadsUnderWay * kLoadThreads) {
      uint4 values[kLoadsUnderWay];
#pragma unroll
      for (int k = 0; k < kLoadsUnderWay; ++k) values[k] = __ldcs(from + i + k * kLoadThreads);
#pragma unroll
      for (int k = 0; k < kLoadsUnderWay; ++k) to[i + k * kLoadThreads] = values[k];
    }
    for (; i < vectors; i += kLoadThreads) to[i] = __ldcs(from + i);
  }
}

__device__ inline void Mix(uint4* sum, const uint4& value) {
  sum->x ^= value.x;
  sum->y ^= value.y;
  sum->z ^= value.z;
  sum->w ^= value.w;
}

// Reads everything once. *sink is never written, but the compiler cannot know.
__global__ void __launch_bounds__(kReadThreads, kReadCtasOfSm)
    ReadKernel(const uint4* data, size_t num_vectors, uint4* sink) {
  WaitForPrevious();
  const size_t stride = size_t{gridDim.x} * kReadThreads;
  size_t i = size_t{blockIdx.x} * kReadThreads + threadIdx.x;
  uint4 sum = {0, 0, 0, 0};
  for (; i + (kReadsUnderWay - 1) * stride < num_vectors; i += kReadsUnderWay * stride) {
    uint4 values[kReadsUnderWay];
#pragma unroll
    for (int k = 0; k < kReadsUnderWay; ++k) values[k] = __ldcs(data + i + k * stride);
#pragma unroll
    for (int k = 0; k < kReadsUnderWay; ++k) Mix(&sum, values[k]);
  }
  for (; i < num_vectors; i += stride) Mix(&sum, __ldcs(data + i));
  if (sum.x == 0x12345678 && sum.y == 0x9abcdef0 && sum.z == 1 && sum.w == 2) *sink = sum;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int DivideUp(int value, int by) { return (value - 1) / by + 1; }

class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  bool Allocate(size_t bytes) {
    if (cudaMalloc(&data_, bytes) == cudaSuccess) return true;
    cudaGetLastError();
    return false;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class HostMemory {
 public:
  explicit HostMemory(size_t bytes) { AUGUR_CUDA(cudaMallocHost(&data_, bytes)); }
  ~HostMemory() { cudaFreeHost(data_); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A point in time of a stream.
class Mark {
 public:
  Mark() { AUGUR_CUDA(cudaEventCreate(&event_)); }
  ~Mark() { cudaEventDestroy(event_); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  void Set(cudaStream_t stream) { AUGUR_CUDA(cudaEventRecord(event_, stream)); }
  // Seconds from `earlier` to here; both have passed.
  double Since(const Mark& earlier) const {
    float milliseconds = 0;
    AUGUR_CUDA(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
    return milliseconds / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaTransferProbe final : public TransferProbe {
 public:
  explicit CudaTransferProbe(const TransferProbeOptions& options) : options_(options) {}
  ~CudaTransferProbe() override;

  bool Start(std::string* error);
  std::string Describe() const override { return name_; }
  double ReadBytesPerSecond() const override {
    return static_cast<double>(options_.read_bytes) * kReadPasses / read_seconds_;
  }
  TransferResult Run(const TransferCase& transfer) override;
  GatherResult RunGather(const GatherCase& gather) override;

 private:
  void MakeList(const TransferCase& transfer, size_t num_pages);
  void UploadList(const std::vector<PageCopy>& list, const DeviceMemory& to);
  void ScatterPlaces();
  GatherResult GatherByHost(const GatherCase& gather, const TransferCase& transfer);
  void Fill(void* data, size_t bytes, uint64_t salt);
  void Prepare(const TransferCase& transfer);
  PageCopyParams Params(const TransferCase& transfer) const;
  void Issue(const TransferCase& transfer);
  void IssueBatches(const TransferCase& transfer);
  bool Check(const TransferCase& transfer);
  bool SpotCheck(const TransferCase& transfer);
  double CopyAlone(const TransferCase& transfer);
  void ReadOnce(int grid);
  double ReadAlone(int grid);
  void ReadBeside(const TransferCase& transfer, int grid, TransferResult* result);
  int ReadGridBeside(const TransferCase& transfer) const;

  const TransferProbeOptions options_;
  std::string name_;
  int full_grid_ = 0;
  double read_seconds_ = 0;  // kReadPasses, alone, full grid
  cudaStream_t copies_ = nullptr;
  cudaStream_t reads_ = nullptr;
  std::unique_ptr<PinnedMemory> region_;
  DeviceMemory pages_;  // copied_bytes
  DeviceMemory read_;   // read_bytes
  DeviceMemory sink_;   // what the reading kernel never writes
  DeviceMemory list_;   // of a case, of the smallest pages: 16 bytes each
  DeviceMemory scatter_list_;
  DeviceMemory list_length_;
  DeviceMemory wrong_;
  std::vector<PageCopy> host_list_;
  std::mt19937_64 random_{1};
  uint64_t salt_ = 0;              // of the source of this case
  bool region_is_source_ = false;  // the region holds the pattern of salt 0
};

CudaTransferProbe::~CudaTransferProbe() {
  cudaDeviceSynchronize();
  if (copies_ != nullptr) cudaStreamDestroy(copies_);
  if (reads_ != nullptr) cudaStreamDestroy(reads_);
}

bool CudaTransferProbe::Start(std::string* error) {
  AUGUR_CHECK(options_.copied_bytes <= options_.region_bytes && options_.repeats > 0);
  AUGUR_CUDA(cudaSetDevice(options_.device));
  cudaDeviceProp properties;
  AUGUR_CUDA(cudaGetDeviceProperties(&properties, options_.device));
  name_ = "cuda:" + std::to_string(options_.device) + " " + properties.name;
  region_ = PinnedMemory::Create({.bytes = options_.region_bytes,
                                  .device = options_.device,
                                  .huge_pages = options_.huge_pages},
                                 error);
  if (region_ == nullptr) return false;
  if (!pages_.Allocate(options_.copied_bytes) || !read_.Allocate(options_.read_bytes) ||
      !sink_.Allocate(sizeof(uint4)) || !list_length_.Allocate(sizeof(int32_t)) ||
      !list_.Allocate(options_.copied_bytes / kMinPageBytes * sizeof(PageCopy)) ||
      !scatter_list_.Allocate(options_.copied_bytes / kMinPageBytes * sizeof(PageCopy)) ||
      !wrong_.Allocate(sizeof(unsigned long long))) {
    *error = name_ + ": not enough memory for the probe";
    return false;
  }
  // Copies first, as in the engine: a copy that waits for its CTAs makes a layer late.
  int lowest = 0;
  int highest = 0;
  AUGUR_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  AUGUR_CUDA(cudaStreamCreateWithPriority(&copies_, cudaStreamNonBlocking, highest));
  AUGUR_CUDA(cudaStreamCreateWithPriority(&reads_, cudaStreamNonBlocking, lowest));
  AUGUR_CUDA(cudaMemset(read_.as<void>(), 1, options_.read_bytes));
  AUGUR_CUDA(cudaDeviceSynchronize());
  full_grid_ = properties.multiProcessorCount * kReadCtasOfSm;
  read_seconds_ = ReadAlone(full_grid_);
  return true;
}

PageCopyParams CudaTransferProbe::Params(const TransferCase& transfer) const {
  return {.pages = list_.as<PageCopy>(),
          .num_pages = list_length_.as<int32_t>(),
          .page_bytes = transfer.page_bytes,
          .quota = transfer.quota};
}

// Pages of the region at random places, no place twice (two copies to one place would be a race);
// for kWhole one after another. The device's are one after another.
void CudaTransferProbe::MakeList(const TransferCase& transfer, size_t num_pages) {
  const size_t page_bytes = static_cast<size_t>(transfer.page_bytes);
  std::vector<uint32_t> places(options_.region_bytes / page_bytes);
  std::iota(places.begin(), places.end(), 0u);
  host_list_.resize(num_pages);
  for (size_t i = 0; i < num_pages; ++i) {
    if (transfer.method != TransferMethod::kWhole) {
      std::swap(places[i], places[i + random_() % (places.size() - i)]);
    }
    std::byte* host = region_->data() + places[i] * page_bytes;
    std::byte* device = pages_.as<std::byte>() + i * page_bytes;
    const bool to_device = transfer.direction == TransferDirection::kToDevice;
    host_list_[i] =
        to_device ? PageCopy{.from = host, .to = device} : PageCopy{.from = device, .to = host};
  }
  UploadList(host_list_, list_);
}

void CudaTransferProbe::UploadList(const std::vector<PageCopy>& list, const DeviceMemory& to) {
  const int32_t length = static_cast<int32_t>(list.size());
  // On the stream that reads them: another's copy may still be on its way when the call returns.
  AUGUR_CUDA(cudaMemcpyAsync(to.as<void>(), list.data(), list.size() * sizeof(PageCopy),
                             cudaMemcpyHostToDevice, copies_));
  AUGUR_CUDA(cudaMemcpyAsync(list_length_.as<void>(), &length, sizeof length,
                             cudaMemcpyHostToDevice, copies_));
  AUGUR_CUDA(cudaStreamSynchronize(copies_));
}

void CudaTransferProbe::Fill(void* data, size_t bytes, uint64_t salt) {
  LaunchKernel(copies_, {.grid = dim3(256), .block = dim3(kPatternThreads)}, FillKernel,
               static_cast<uint64_t*>(data), bytes / sizeof(uint64_t), salt);
}

// So that what an earlier case copied cannot pass for this one's: the source has a pattern that the
// destination has not.
void CudaTransferProbe::Prepare(const TransferCase& transfer) {
  if (transfer.direction == TransferDirection::kToDevice) {
    if (!region_is_source_) Fill(region_->data(), options_.region_bytes, 0);
    region_is_source_ = true;
    AUGUR_CUDA(cudaMemsetAsync(pages_.as<void>(), kNothing, options_.copied_bytes, copies_));
  } else {
    region_is_source_ = false;
    Fill(pages_.as<void>(), options_.copied_bytes, ++salt_);
  }
  AUGUR_CUDA(cudaStreamSynchronize(copies_));
}

void CudaTransferProbe::Issue(const TransferCase& transfer) {
  const PageCopyParams params = Params(transfer);
  switch (transfer.method) {
    case TransferMethod::kBulk:
      return CopyPages(params, copies_);
    case TransferMethod::kLoads:
      return LaunchKernel(
          copies_,
          {.grid = dim3(static_cast<unsigned>(transfer.quota)), .block = dim3(kLoadThreads)},
          CopyByLoadsKernel, params);
    case TransferMethod::kEngine:
      return CopyPagesByCopyEngine(host_list_.data(), static_cast<int>(host_list_.size()),
                                   static_cast<size_t>(transfer.page_bytes), copies_);
    case TransferMethod::kBatch:
      return IssueBatches(transfer);
    case TransferMethod::kWhole:
      return CopyPagesByCopyEngine(host_list_.data(), 1,
                                   host_list_.size() * static_cast<size_t>(transfer.page_bytes),
                                   copies_);
  }
}

void CudaTransferProbe::IssueBatches(const TransferCase& transfer) {
  std::vector<const void*> from(kPagesOfBatch);
  std::vector<void*> to(kPagesOfBatch);
  std::vector<size_t> sizes(kPagesOfBatch, static_cast<size_t>(transfer.page_bytes));
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first_with_attributes = 0;
  for (size_t begin = 0; begin < host_list_.size(); begin += kPagesOfBatch) {
    const size_t count = std::min<size_t>(kPagesOfBatch, host_list_.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      from[i] = host_list_[begin + i].from;
      to[i] = host_list_[begin + i].to;
    }
    AUGUR_CUDA(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), count, &attributes,
                                    &first_with_attributes, 1, copies_));
  }
}

bool CudaTransferProbe::Check(const TransferCase& transfer) {
  const bool to_device = transfer.direction == TransferDirection::kToDevice;
  const std::byte* source = to_device ? region_->data() : pages_.as<std::byte>();
  AUGUR_CUDA(cudaMemsetAsync(wrong_.as<void>(), 0, sizeof(unsigned long long), copies_));
  LaunchKernel(copies_, {.grid = dim3(256), .block = dim3(kPatternThreads)}, CheckKernel,
               Params(transfer), source, to_device ? 0 : salt_, wrong_.as<unsigned long long>());
  unsigned long long wrong = 0;
  AUGUR_CUDA(
      cudaMemcpyAsync(&wrong, wrong_.as<void>(), sizeof wrong, cudaMemcpyDeviceToHost, copies_));
  AUGUR_CUDA(cudaStreamSynchronize(copies_));
  return wrong == 0 && SpotCheck(transfer);
}

// The same with the host's eyes: what the device wrote to host memory must be there for the host.
bool CudaTransferProbe::SpotCheck(const TransferCase& transfer) {
  const bool to_device = transfer.direction == TransferDirection::kToDevice;
  const std::byte* source = to_device ? region_->data() : pages_.as<std::byte>();
  const size_t page_bytes = static_cast<size_t>(transfer.page_bytes);
  std::vector<uint64_t> copied(page_bytes / sizeof(uint64_t));
  for (int i = 0; i < kSpotChecks; ++i) {
    const PageCopy& entry = host_list_[random_() % host_list_.size()];
    if (to_device) {
      AUGUR_CUDA(cudaMemcpy(copied.data(), entry.to, page_bytes, cudaMemcpyDeviceToHost));
    } else {
      std::memcpy(copied.data(), entry.to, page_bytes);
    }
    const uint64_t first = static_cast<uint64_t>(entry.from - source) / sizeof(uint64_t);
    for (size_t word = 0; word < copied.size(); ++word) {
      if (copied[word] != PatternWord(first + word, to_device ? 0 : salt_)) return false;
    }
  }
  return true;
}

// The best run, in seconds.
double CudaTransferProbe::CopyAlone(const TransferCase& transfer) {
  Mark begin;
  Mark end;
  std::vector<double> seconds;
  for (int run = 0; run <= options_.repeats; ++run) {
    begin.Set(copies_);
    Issue(transfer);
    end.Set(copies_);
    AUGUR_CUDA(cudaStreamSynchronize(copies_));
    if (run > 0) seconds.push_back(end.Since(begin));
  }
  return *std::min_element(seconds.begin(), seconds.end());
}

void CudaTransferProbe::ReadOnce(int grid) {
  LaunchKernel(reads_, {.grid = dim3(static_cast<unsigned>(grid)), .block = dim3(kReadThreads)},
               ReadKernel, read_.as<uint4>(), options_.read_bytes / sizeof(uint4),
               sink_.as<uint4>());
}

// The median run of kReadPasses, in seconds.
double CudaTransferProbe::ReadAlone(int grid) {
  Mark begin;
  Mark end;
  std::vector<double> seconds;
  for (int run = 0; run < options_.repeats; ++run) {
    ReadOnce(grid);
    begin.Set(reads_);
    for (int pass = 0; pass < kReadPasses; ++pass) ReadOnce(grid);
    end.Set(reads_);
    AUGUR_CUDA(cudaStreamSynchronize(reads_));
    seconds.push_back(end.Since(begin));
  }
  return Median(std::move(seconds));
}

void CudaTransferProbe::ReadBeside(const TransferCase& transfer, int grid, TransferResult* result) {
  Mark copy_begin;
  Mark copy_end;
  Mark read_begin;
  Mark read_end;
  std::vector<double> read_seconds;
  std::vector<double> copy_seconds;
  std::vector<double> overlaps;
  for (int run = 0; run <= options_.repeats; ++run) {
    AUGUR_CUDA(cudaDeviceSynchronize());
    copy_begin.Set(copies_);
    Issue(transfer);
    copy_end.Set(copies_);
    ReadOnce(grid);
    read_begin.Set(reads_);
    for (int pass = 0; pass < kReadPasses; ++pass) ReadOnce(grid);
    read_end.Set(reads_);
    AUGUR_CUDA(cudaDeviceSynchronize());
    if (run == 0) continue;
    const double reading = read_end.Since(read_begin);
    const double copying = copy_end.Since(copy_begin);
    const double began = read_begin.Since(copy_begin);
    read_seconds.push_back(reading);
    copy_seconds.push_back(copying);
    overlaps.push_back(std::clamp((copying - began) / reading, 0.0, 1.0));
  }
  result->read_slowdown = Median(std::move(read_seconds)) / read_seconds_;
  result->bytes_per_second_beside =
      static_cast<double>(options_.copied_bytes) / Median(std::move(copy_seconds));
  result->overlap = Median(std::move(overlaps));
}

// The full grid, less the CTAs that the copy's CTAs displace by threads or registers; each of them
// on an SM of its own.
int CudaTransferProbe::ReadGridBeside(const TransferCase& transfer) const {
  if (transfer.method == TransferMethod::kWhole) return full_grid_;
  int displaced = DivideUp(ShapeOfPageCopy(transfer.page_bytes).threads, kReadThreads);
  if (transfer.method == TransferMethod::kLoads) {
    cudaFuncAttributes copy;
    cudaFuncAttributes read;
    AUGUR_CUDA(cudaFuncGetAttributes(&copy, CopyByLoadsKernel));
    AUGUR_CUDA(cudaFuncGetAttributes(&read, ReadKernel));
    displaced = std::max(DivideUp(kLoadThreads, kReadThreads),
                         DivideUp(copy.numRegs * kLoadThreads, read.numRegs * kReadThreads));
  }
  if (transfer.leave_whole_sms) displaced = kReadCtasOfSm;
  return std::max(full_grid_ - transfer.quota * displaced, 1);
}

TransferResult CudaTransferProbe::Run(const TransferCase& transfer) {
  AUGUR_CHECK(transfer.page_bytes >= kMinPageBytes && transfer.page_bytes % 16 == 0);
  AUGUR_CHECK(options_.copied_bytes % static_cast<size_t>(transfer.page_bytes) == 0);
  AUGUR_CHECK(transfer.quota > 0);
  AUGUR_CUDA(cudaSetDevice(options_.device));
  MakeList(transfer, options_.copied_bytes / static_cast<size_t>(transfer.page_bytes));
  Prepare(transfer);
  TransferResult result;
  result.bytes_per_second = static_cast<double>(options_.copied_bytes) / CopyAlone(transfer);
  if (transfer.beside_reading) {
    AUGUR_CHECK(transfer.method != TransferMethod::kEngine &&
                transfer.method != TransferMethod::kBatch);
    const int grid = ReadGridBeside(transfer);
    ReadBeside(transfer, grid, &result);
    result.grid_slowdown = ReadAlone(grid) / read_seconds_;
  }
  result.correct = Check(transfer);
  return result;
}

// The device's places of the list in random order.
void CudaTransferProbe::ScatterPlaces() {
  for (size_t i = 0; i + 1 < host_list_.size(); ++i) {
    std::swap(host_list_[i].to, host_list_[i + random_() % (host_list_.size() - i)].to);
  }
  UploadList(host_list_, list_);
}

GatherResult CudaTransferProbe::RunGather(const GatherCase& gather) {
  const size_t bytes = static_cast<size_t>(gather.num_pages) * gather.page_bytes;
  AUGUR_CHECK(gather.num_pages > 0 && gather.page_bytes >= kMinPageBytes &&
              gather.page_bytes % 16 == 0 && gather.quota > 0);
  AUGUR_CHECK(bytes <= options_.copied_bytes && bytes <= options_.read_bytes / 2);
  AUGUR_CUDA(cudaSetDevice(options_.device));
  const TransferCase transfer{.method = TransferMethod::kBulk,
                              .direction = TransferDirection::kToDevice,
                              .page_bytes = gather.page_bytes,
                              .quota = gather.quota};
  MakeList(transfer, static_cast<size_t>(gather.num_pages));
  ScatterPlaces();
  Prepare(transfer);
  GatherResult result;
  if (gather.by_host) {
    result = GatherByHost(gather, transfer);
  } else {
    std::vector<double> seconds;
    for (int run = 0; run <= options_.repeats; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      Issue(transfer);
      AUGUR_CUDA(cudaStreamSynchronize(copies_));
      if (run > 0) seconds.push_back(SecondsSince(begin));
    }
    result.seconds = Median(std::move(seconds));
  }
  result.correct = Check(transfer);
  return result;
}

GatherResult CudaTransferProbe::GatherByHost(const GatherCase& gather,
                                             const TransferCase& transfer) {
  const size_t page_bytes = static_cast<size_t>(gather.page_bytes);
  const size_t list_bytes = host_list_.size() * sizeof(PageCopy);
  // What the reading kernel reads may hold anything.
  std::byte* const landing = read_.as<std::byte>();
  std::vector<PageCopy> scatter(host_list_.size());
  for (size_t i = 0; i < scatter.size(); ++i) {
    scatter[i] = {.from = landing + i * page_bytes, .to = host_list_[i].to};
  }
  UploadList(scatter, scatter_list_);
  PageCopyParams scatter_params = Params(transfer);
  scatter_params.pages = scatter_list_.as<PageCopy>();
  scatter_params.quota = kScatterCtas;
  const HostMemory list(list_bytes), buffer(host_list_.size() * page_bytes);
  std::vector<double> all, until_list, gathering;
  for (int run = 0; run <= options_.repeats; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    AUGUR_CUDA(cudaMemcpyAsync(list.as<void>(), list_.as<void>(), list_bytes,
                               cudaMemcpyDeviceToHost, copies_));
    AUGUR_CUDA(cudaStreamSynchronize(copies_));
    const double listed = SecondsSince(begin);
    gather.by_host(list.as<PageCopy>(), buffer.as<std::byte>());
    const double gathered = SecondsSince(begin);
    AUGUR_CUDA(cudaMemcpyAsync(landing, buffer.as<void>(), host_list_.size() * page_bytes,
                               cudaMemcpyHostToDevice, copies_));
    CopyPages(scatter_params, copies_);
    AUGUR_CUDA(cudaStreamSynchronize(copies_));
    if (run == 0) continue;
    all.push_back(SecondsSince(begin));
    until_list.push_back(listed);
    gathering.push_back(gathered - listed);
  }
  return {.seconds = Median(std::move(all)),
          .list_seconds = Median(std::move(until_list)),
          .gather_seconds = Median(std::move(gathering))};
}

}  // namespace

const char* NameOf(TransferMethod method) {
  switch (method) {
    case TransferMethod::kBulk:
      return "bulk";
    case TransferMethod::kLoads:
      return "loads";
    case TransferMethod::kEngine:
      return "engine";
    case TransferMethod::kBatch:
      return "batch";
    case TransferMethod::kWhole:
      return "whole";
  }
  return "";
}

const char* NameOf(TransferDirection direction) {
  return direction == TransferDirection::kToDevice ? "to_device" : "to_host";
}

std::unique_ptr<TransferProbe> TransferProbe::Create(const TransferProbeOptions& options,
                                                     std::string* error) {
  for (const CudaDevice& device : FindCudaDevices()) {
    if (device.index != options.device || !device.runs_our_code) continue;
    auto probe = std::make_unique<CudaTransferProbe>(options);
    if (!probe->Start(error)) return nullptr;
    return probe;
  }
  *error = "cuda:" + std::to_string(options.device) + ": no device that runs this binary's code (" +
           DescribeCuda() + ")";
  return nullptr;
}

}  // namespace augur::kernels
