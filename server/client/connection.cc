#include "server/client/connection.h"

#include <array>
#include <chrono>
#include <cstdio>

#include "server/client/printing.h"

namespace augur::client {

void AddConnectionOptions(CLI::App* command, ConnectionOptions* options) {
  command->add_option("--server", options->server, "Address of augurd")
      ->type_name("HOST:PORT")
      ->capture_default_str()
      ->group("Connection");
  command->add_option("--deadline", options->deadline_s, "Give up after so many seconds; 0: never")
      ->type_name("SECONDS")
      ->check([](const std::string& text) {
        double seconds = 0;
        const bool parsed = CLI::detail::lexical_cast(text, seconds);
        // Written so that NaN, which CLI::Range lets pass, is none.
        if (parsed && seconds >= 0 && seconds <= 1e6) return std::string();
        return "Value " + text + " not in range 0 to 1000000";
      })
      ->capture_default_str()
      ->group("Connection");
}

std::shared_ptr<grpc::Channel> Connect(const ConnectionOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A long prefill is silent where progress is off: notice a daemon that died meanwhile.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  return grpc::CreateCustomChannel(options.server, grpc::InsecureChannelCredentials(), arguments);
}

void SetDeadline(const ConnectionOptions& options, grpc::ClientContext* context) {
  if (options.deadline_s <= 0) return;
  const auto microseconds =
      std::chrono::microseconds(static_cast<int64_t>(options.deadline_s * 1e6));
  context->set_deadline(std::chrono::system_clock::now() + microseconds);
}

std::string StatusName(grpc::StatusCode code) {
  static constexpr std::array<const char*, 17> kNames = {"OK",
                                                         "CANCELLED",
                                                         "UNKNOWN",
                                                         "INVALID_ARGUMENT",
                                                         "DEADLINE_EXCEEDED",
                                                         "NOT_FOUND",
                                                         "ALREADY_EXISTS",
                                                         "PERMISSION_DENIED",
                                                         "RESOURCE_EXHAUSTED",
                                                         "FAILED_PRECONDITION",
                                                         "ABORTED",
                                                         "OUT_OF_RANGE",
                                                         "UNIMPLEMENTED",
                                                         "INTERNAL",
                                                         "UNAVAILABLE",
                                                         "DATA_LOSS",
                                                         "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : "STATUS_" + std::to_string(static_cast<int>(code));
}

void PrintFailure(const ConnectionOptions& options, const grpc::Status& status) {
  std::string line =
      StatusName(status.error_code()) + ": " + EscapeControls(status.error_message());
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE)
    line += " (server " + options.server + ")";
  PrintError(line);
}

}  // namespace augur::client
