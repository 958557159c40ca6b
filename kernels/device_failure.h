// A device that broke: a sticky CUDA error, after which no call of the process can succeed. Whoever
// sees it reports it here and does not come back; who owns the process (server/) decides how it
// ends.
//
// Thread: any. Ownership: the handler is kept until the process ends.
#pragma once

#include <functional>
#include <string>

namespace augur::kernels {

// `handler` is called once, by the thread that saw the first failure, and should return soon.
// Without one the message goes to standard error and the process exits with 70.
void SetDeviceFailureHandler(std::function<void(const std::string&)> handler);

// Calls the handler, then sleeps for good: what waits for this thread has to end with the process.
[[noreturn]] void ReportDeviceFailure(const std::string& message);

}  // namespace augur::kernels
