#include "server/logging.h"

#include <grpc/support/log.h>
#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "server/quote.h"

namespace augur::server {
namespace {

constexpr size_t kQueuedLines = 8192;

// gRPC reports every refused connection as an error; what matters to an operator reaches them
// through our own statuses and lines.
void LogGrpc(gpr_log_func_args* args) { spdlog::debug("grpc: {}", OneLine(args->message)); }

constexpr char kPattern[] = "%Y-%m-%dT%H:%M:%S.%e%z %l %v";

}  // namespace

void InitLogging(const std::string& level) {
  spdlog::init_thread_pool(kQueuedLines, 1);
  // shared: spdlog's registry and sinks hold each other so.
  auto logger = std::make_shared<spdlog::async_logger>(
      "augurd", std::make_shared<spdlog::sinks::stderr_sink_mt>(), spdlog::thread_pool(),
      spdlog::async_overflow_policy::overrun_oldest);
  logger->set_level(spdlog::level::from_str(level));
  logger->set_pattern(kPattern);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(&LogGrpc);
}

bool FlushLogging() {
  constexpr std::chrono::seconds kLimit{1};
  gpr_set_log_function([](gpr_log_func_args*) {});
  std::promise<void> promise;
  const std::future<void> flushed = promise.get_future();
  std::thread([ended = std::move(promise)]() mutable {
    spdlog::shutdown();
    ended.set_value();
  }).detach();
  if (flushed.wait_for(kLimit) != std::future_status::ready) return false;
  // For whoever still has a word to say on the way out.
  auto last =
      std::make_shared<spdlog::logger>("augurd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  last->set_pattern(kPattern);
  spdlog::set_default_logger(std::move(last));
  return true;
}

}  // namespace augur::server
