#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/cuda_training_ops.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_plans.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/cuda/page_copy.h"
#include "kernels/cuda/pinned_memory.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/prefill_selection.h"
#include "kernels/cuda/sampled_attention.h"
#include "kernels/cuda/small_copy.h"
#include "kernels/device_failure.h"

namespace augur::kernels {
namespace {

// From here on memory of the host is a pool: many threads touch it, on the device's memory node.
constexpr size_t kPinnedPoolBytes = size_t{64} << 20;

class CudaGraph final : public StepGraph {
 public:
  explicit CudaGraph(cudaGraphExec_t exec) : exec_(exec) {}
  ~CudaGraph() override { cudaGraphExecDestroy(exec_); }
  cudaGraphExec_t exec() const { return exec_; }

 private:
  cudaGraphExec_t exec_;
};

}  // namespace

void ReportCudaFailure(cudaError_t error, const char* call, const char* file, int line) {
  ReportDeviceFailure(std::string(call) + ": " + cudaGetErrorName(error) + ": " +
                      cudaGetErrorString(error) + " (" + file + ":" + std::to_string(line) + ")");
}

std::unique_ptr<Backend> MakeCudaBackend(const CudaBackendOptions& options, std::string* error) {
  const std::vector<CudaDevice> devices = FindCudaDevices();
  const std::string name = "cuda:" + std::to_string(options.device);
  if (devices.empty()) {
    *error = name + ": no CUDA device here (" + DescribeCuda() + ")";
    return nullptr;
  }
  for (const CudaDevice& device : devices) {
    if (device.index != options.device) continue;
    if (!device.runs_our_code) {
      *error = name + ": " + device.name + " is not of this binary's architecture (sm_90a)";
      return nullptr;
    }
    return std::make_unique<CudaBackend>(options);
  }
  *error = name + ": no such device (" + DescribeCuda() + ")";
  return nullptr;
}

namespace {

// Waiting CTAs of a higher priority take free places first: copies, since a late page holds up
// everything; then what chooses the next ones; the model; and last what nobody waits for.
int PriorityOf(Lane lane) {
  int least = 0, greatest = 0;  // greater ones are lower numbers
  AUGUR_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  switch (lane) {
    case Lane::kFetch:
      return greatest;
    case Lane::kSelect:
      return std::min(greatest + 1, least);
    case Lane::kSpill:
      break;
  }
  return least;
}

int PriorityOfMain() {
  int least = 0, greatest = 0;
  AUGUR_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  return std::min(greatest + 2, least);
}

// Kernels of the lane that fetches stand above main's.
void LowerAllButCopies(cudaGraph_t graph) {
  size_t count = 0;
  AUGUR_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  AUGUR_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    AUGUR_CUDA(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeKernel) continue;
    cudaLaunchAttributeValue value{};
    AUGUR_CUDA(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &value));
    if (value.priority == PriorityOf(Lane::kFetch)) continue;
    value.priority = PriorityOfMain();
    AUGUR_CUDA(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributePriority, &value));
  }
}

int SmsOrAll(int sms, int all) {
  AUGUR_CHECK(sms >= 0 && sms <= all);
  return sms == 0 ? all : sms;
}

}  // namespace

void CudaBackend::CreateStream(int priority) {
  AUGUR_CUDA(cudaSetDevice(options_.device));
  AUGUR_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  for (cudaEvent_t& mark : marks_) {
    AUGUR_CUDA(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming));
  }
  AUGUR_CUDA(cudaEventCreateWithFlags(&followed_, cudaEventDisableTiming));
  AUGUR_CUDA(cudaMalloc(&place_tickets_, sizeof(*place_tickets_)));
  AUGUR_CUDA(cudaMemsetAsync(place_tickets_, 0, sizeof(*place_tickets_), stream_));
  AUGUR_CUDA(cudaStreamSynchronize(stream_));
}

CudaBackend::CudaBackend(const CudaBackend& main, Lane lane)
    : options_(main.options_), num_sms_(main.num_sms_), name_(main.name_) {
  CreateStream(PriorityOf(lane));
  if (lane == Lane::kSelect) prefill_selection_ = std::make_unique<PrefillSelection>();
}

CudaBackend::CudaBackend(const CudaBackendOptions& options) : options_(options) {
  AUGUR_CUDA(cudaSetDevice(options.device));
  CreateStream(PriorityOfMain());
  cudaDeviceProp properties;
  AUGUR_CUDA(cudaGetDeviceProperties(&properties, options.device));
  num_sms_ = properties.multiProcessorCount;
  name_ = properties.name;
  linear_plans_ =
      std::make_unique<LinearPlans>(LinearPlanOptions{.num_sms = num_sms_,
                                                      .decode_sms = options.product_sms,
                                                      .decode_rows = options.usual_decode_rows},
                                    stream_);
  decode_attention_ = std::make_unique<DecodeAttention>(DecodeAttentionLimits{
      .max_rows = options.max_decode_rows, .num_sms = SmsOrAll(options.attention_sms, num_sms_)});
  sampled_decode_ = std::make_unique<SampledDecode>(SmsOrAll(options.attention_sms, num_sms_));
  prefill_attention_ = std::make_unique<PrefillAttention>(num_sms_);
  prefill_selection_ = std::make_unique<PrefillSelection>();
  for (int lane = 0; lane < kNumLanes; ++lane) {
    lanes_[lane].reset(new CudaBackend(*this, static_cast<Lane>(lane)));
  }
}

TrainingOps* CudaBackend::training_ops() {
  if (training_ops_ == nullptr) training_ops_ = std::make_unique<CudaTrainingOps>(stream_);
  return training_ops_.get();
}

CudaBackend::~CudaBackend() {
  for (std::unique_ptr<CudaBackend>& lane : lanes_) lane.reset();
  cudaStreamSynchronize(stream_);
  prefill_selection_.reset();
  prefill_attention_.reset();
  sampled_decode_.reset();
  decode_attention_.reset();
  weight_staging_.reset();
  linear_plans_.reset();
  for (const cudaEvent_t mark : marks_) cudaEventDestroy(mark);
  cudaEventDestroy(followed_);
  cudaFree(place_tickets_);
  cudaStreamDestroy(stream_);
}

std::string CudaBackend::Describe() const {
  std::string text = "cuda:" + std::to_string(options_.device) + " " + name_;
  if (options_.product_sms > 0)
    text += ", products " + std::to_string(options_.product_sms) + " SMs";
  if (options_.attention_sms > 0) {
    text += ", attention " + std::to_string(options_.attention_sms) + " SMs";
  }
  if (options_.graph_priorities == GraphPriorities::kCopies) text += ", copies first in graphs";
  if (options_.graph_priorities == GraphPriorities::kLanes) text += ", lanes' priorities in graphs";
  return text;
}

void* CudaBackend::Allocate(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes == 0 ? 1 : bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky
    return nullptr;
  }
  AUGUR_CUDA(error);
  allocations_[static_cast<const std::byte*>(data)] = bytes;
  return data;
}

void* CudaBackend::AllocateHost(size_t bytes) {
  if (bytes >= kPinnedPoolBytes) {
    std::string error;
    auto pool = PinnedMemory::Create({.bytes = bytes, .device = options_.device}, &error);
    if (pool == nullptr) {
      std::fprintf(stderr, "%s\n", error.c_str());
      return nullptr;
    }
    void* const at = pool->data();
    pinned_[at] = std::move(pool);
    return at;
  }
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, bytes == 0 ? 1 : bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  AUGUR_CUDA(error);
  allocations_[static_cast<const std::byte*>(data)] = bytes;
  return data;
}

void CudaBackend::Free(void* data) {
  if (data == nullptr || pinned_.erase(data) > 0) return;
  allocations_.erase(static_cast<const std::byte*>(data));
  cudaPointerAttributes attributes;
  AUGUR_CUDA(cudaPointerGetAttributes(&attributes, data));
  if (attributes.type == cudaMemoryTypeHost) {
    AUGUR_CUDA(cudaFreeHost(data));
  } else {
    AUGUR_CUDA(cudaFree(data));
  }
}

int64_t CudaBackend::FreeBytes() const {
  size_t free = 0, total = 0;
  AUGUR_CUDA(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

// A stream takes work only from threads that have its device current. Every step begins with a Copy
// or a Launch.
void CudaBackend::BindThread() const {
  thread_local int bound = -1;
  if (bound == options_.device) return;
  AUGUR_CUDA(cudaSetDevice(options_.device));
  bound = options_.device;
}

bool CudaBackend::IsAllocated(const void* data, size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(data);
  auto next = allocations_.upper_bound(begin);
  if (next == allocations_.begin()) return false;
  --next;
  return begin + bytes <= next->first + next->second;
}

void CudaBackend::Copy(void* to, const void* from, size_t bytes) {
  BindThread();
  // Host memory that is not pinned is out of a kernel's reach.
  if (bytes <= kMostSmallCopyBytes && IsAllocated(to, bytes) && IsAllocated(from, bytes)) {
    CopySmall(to, from, bytes, stream_);
    return;
  }
  AUGUR_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
}

std::unique_ptr<StepGraph> CudaBackend::Record(const std::function<void(Backend*)>& ops) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  AUGUR_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  ops(this);
  AUGUR_CUDA(cudaStreamEndCapture(stream_, &graph));
  // Nodes have the priority of the stream that they were captured on. Without the flag it counts
  // for nothing, and all of them run with that of the stream which launches the graph.
  const bool none = options_.graph_priorities == GraphPriorities::kNone;
  const unsigned long long flags = none ? 0 : cudaGraphInstantiateFlagUseNodePriority;
  if (options_.graph_priorities == GraphPriorities::kCopies) LowerAllButCopies(graph);
  AUGUR_CUDA(cudaGraphInstantiate(&exec, graph, flags));
  AUGUR_CUDA(cudaGraphDestroy(graph));
  return std::make_unique<CudaGraph>(exec);
}

void CudaBackend::Launch(const StepGraph& graph) {
  BindThread();
  TimedLaunch* const timed =
      num_timed_ < timed_launches_.size() ? &timed_launches_[num_timed_++] : nullptr;
  if (timed != nullptr) AUGUR_CUDA(cudaEventRecord(timed->begin, stream_));
  AUGUR_CUDA(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).exec(), stream_));
  if (timed != nullptr) AUGUR_CUDA(cudaEventRecord(timed->end, stream_));
}

uint64_t CudaBackend::Mark() {
  ++last_mark_;
  AUGUR_CUDA(cudaEventRecord(marks_[last_mark_ % kMarks], stream_));
  return last_mark_;
}

void CudaBackend::Wait(uint64_t mark) {
  if (mark <= passed_mark_) return;
  AUGUR_CHECK(mark <= last_mark_ && last_mark_ - mark < kMarks);
  AUGUR_CUDA(cudaEventSynchronize(marks_[mark % kMarks]));
  passed_mark_ = mark;
}

bool CudaBackend::Passed(uint64_t mark) {
  if (mark <= passed_mark_) return true;
  AUGUR_CHECK(mark <= last_mark_ && last_mark_ - mark < kMarks);
  const cudaError_t state = cudaEventQuery(marks_[mark % kMarks]);
  if (state == cudaErrorNotReady) return false;
  AUGUR_CUDA(state);
  passed_mark_ = mark;
  return true;
}

// A stream that is being captured takes the waiting one into its graph.
void CudaBackend::Follow(Backend* other) {
  BindThread();
  AUGUR_CUDA(cudaEventRecord(followed_, static_cast<CudaBackend*>(other)->stream_));
  AUGUR_CUDA(cudaStreamWaitEvent(stream_, followed_, 0));
}

void CudaBackend::CopyPages(const PageCopyParams& params) {
  BindThread();
  kernels::CopyPages(params, stream_);
}

void CudaBackend::TimeLaunches(int count) {
  TakeLaunchTimes();
  timed_launches_.resize(count);
  for (TimedLaunch& timed : timed_launches_) {
    AUGUR_CUDA(cudaEventCreate(&timed.begin));
    AUGUR_CUDA(cudaEventCreate(&timed.end));
  }
}

std::vector<LaunchTime> CudaBackend::TakeLaunchTimes() {
  Synchronize();
  const auto seconds = [](cudaEvent_t from, cudaEvent_t to) {
    float ms = 0;
    AUGUR_CUDA(cudaEventElapsedTime(&ms, from, to));
    return ms * 1e-3;
  };
  std::vector<LaunchTime> times(num_timed_);
  for (size_t i = 0; i < num_timed_; ++i) {
    times[i].duration = seconds(timed_launches_[i].begin, timed_launches_[i].end);
    if (i > 0) times[i].since_last = seconds(timed_launches_[i - 1].end, timed_launches_[i].begin);
  }
  for (const TimedLaunch& timed : timed_launches_) {
    AUGUR_CUDA(cudaEventDestroy(timed.begin));
    AUGUR_CUDA(cudaEventDestroy(timed.end));
  }
  timed_launches_.clear();
  num_timed_ = 0;
  return times;
}

void CudaBackend::Synchronize() { AUGUR_CUDA(cudaStreamSynchronize(stream_)); }

}  // namespace augur::kernels
