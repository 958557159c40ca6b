#include "server/client/health_command.h"

#include <cstdio>
#include <memory>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/client/connection.h"
#include "server/client/exit_status.h"
#include "server/client/interrupt.h"
#include "server/client/printing.h"

namespace augur::client {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

struct HealthOptions {
  ConnectionOptions connection{.server = kDefaultServer, .deadline_s = 0};
  std::string service;
  bool watch = false;
};

constexpr double kCheckDeadlineS = 10;

std::string StateName(HealthCheckResponse::ServingStatus state) {
  switch (state) {
    case HealthCheckResponse::SERVING:
      return "SERVING";
    case HealthCheckResponse::NOT_SERVING:
      return "NOT_SERVING";
    case HealthCheckResponse::SERVICE_UNKNOWN:
      return "SERVICE_UNKNOWN";
    default:
      return "UNKNOWN";
  }
}

int Check(const HealthOptions& options, const HealthCheckRequest& request) {
  ConnectionOptions connection = options.connection;
  if (connection.deadline_s == 0) connection.deadline_s = kCheckDeadlineS;
  grpc::ClientContext context;
  SetDeadline(connection, &context);
  HealthCheckResponse response;
  const grpc::Status status =
      Health::NewStub(Connect(connection))->Check(&context, request, &response);
  if (!status.ok()) {
    PrintFailure(connection, status);
    return kExitFailed;
  }
  const bool written = WriteOut(StateName(response.status()) + "\n");
  return written && response.status() == HealthCheckResponse::SERVING ? kExitOk : kExitFailed;
}

int Watch(const HealthOptions& options, const HealthCheckRequest& request) {
  grpc::ClientContext context;
  const InterruptWatch interrupt(&context);
  SetDeadline(options.connection, &context);
  const auto stub = Health::NewStub(Connect(options.connection));
  const auto reader = stub->Watch(&context, request);
  HealthCheckResponse response;
  bool serving = false;
  bool written = true;
  while (written && reader->Read(&response)) {
    serving = response.status() == HealthCheckResponse::SERVING;
    written = WriteOut(StateName(response.status()) + "\n");
  }
  if (!written) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (interrupt.interrupted()) return kExitInterrupted;
  if (!written) return kExitFailed;
  // A watch has no other end than its deadline; what counts is what was seen last.
  const bool time_is_up = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  if (!status.ok() && !time_is_up) {
    PrintFailure(options.connection, status);
    return kExitFailed;
  }
  return serving ? kExitOk : kExitFailed;
}

}  // namespace

void AddHealthCommand(CLI::App* app, std::function<int()>* run) {
  CLI::App* command =
      app->add_subcommand("health", "Say whether the daemon is ready (exit status 0) or not (1)");
  const auto options = std::make_shared<HealthOptions>();  // shared: CLI11 copies the callback
  command
      ->add_option(
          "--service", options->service,
          "augur.v1.Completions, or nothing: ready for calls;\nlive: the process makes progress")
      ->type_name("NAME");
  command->add_flag(
      "--watch", options->watch,
      "Print the state now and at every change, until Ctrl-C,\n--deadline or the daemon's end");
  AddConnectionOptions(command, &options->connection);
  command->footer("A single check gives up after 10 seconds unless --deadline says otherwise.");
  command->callback([options, run] {
    *run = [options] {
      HealthCheckRequest request;
      request.set_service(options->service);
      return options->watch ? Watch(*options, request) : Check(*options, request);
    };
  });
}

}  // namespace augur::client
