#include "kernels/cpu/call_recorder.h"

#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {

std::unique_ptr<StepGraph> CpuBackend::Record(const std::function<void(Backend*)>& ops) {
  auto graph = std::make_unique<RecordedCalls>();
  CallRecorder recorder(graph.get());
  ops(&recorder);
  return graph;
}

void CpuBackend::Launch(const StepGraph& graph) {
  for (const auto& call : static_cast<const RecordedCalls&>(graph).calls) call(this);
}

}  // namespace augur::kernels
