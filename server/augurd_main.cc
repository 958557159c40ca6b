// augurd: the command line. Flags become overrides of configuration keys; the rest is
// server/daemon.h.

#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/daemon.h"
#include "server/exit_code.h"
#include "server/logging.h"
#include "server/quote.h"
#include "server/server_config.h"
#include "server/stop_request.h"
#include "server/wire_message.h"

#ifdef AUGUR_HAS_CUDA
#include "kernels/cuda/cuda_devices.h"
#endif

namespace augur::server {
namespace {

struct CommandLine {
  std::string config_file;
  std::string port_file;
  bool check_config = false;
  std::vector<ConfigOverride> overrides;
};

// A flag that sets one configuration key, with the checks and messages of that key.
void AddKeyFlag(CLI::App* app, const std::string& flag, const std::string& key,
                const std::string& help, CommandLine* line) {
  app->add_option_function<std::string>(
      flag,
      [line, key, flag](const std::string& value) {
        line->overrides.push_back({key, value, flag});
      },
      help);
}

std::string VersionText() {
#ifdef AUGUR_HAS_CUDA
  return absl::StrCat("augurd " AUGUR_VERSION "\n", kernels::DescribeCuda());
#else
  return "augurd " AUGUR_VERSION;
#endif
}

void DefineFlags(CLI::App* app, CommandLine* line) {
  AddKeyFlag(app, "--model", "model",
             "Hugging Face folder: config.json, safetensors, tokenizer.json", line);
  AddKeyFlag(app, "--device", "device", "cpu, cuda:N, or auto (the default)", line);
  AddKeyFlag(app, "--random-weights", "random_weights",
             "instead of --model: a config.json, served with random weights", line);
  AddKeyFlag(app, "--seed", "random_seed", "of the random weights", line);
  AddKeyFlag(app, "--listen", "listen",
             "HOST:PORT for gRPC (127.0.0.1:50051); port 0 picks a free one", line);
  AddKeyFlag(app, "--metrics", "metrics", "HOST:PORT for Prometheus (127.0.0.1:9464)", line);
  AddKeyFlag(app, "--served-name", "served_name",
             "model name of the API; the folder's unless given", line);
  AddKeyFlag(app, "--threads", "threads", "threads that compute; this machine's CPUs unless given",
             line);
  AddKeyFlag(app, "--log-level", "log_level", "debug, info, warn or error", line);
  app->add_flag_callback(
      "--no-reflection",
      [line] {
        line->overrides.push_back({"reflection", "false", "--no-reflection"});
      },
      "do not serve gRPC reflection");
  app->add_option_function<std::vector<std::string>>(
         "--set",
         [line](const std::vector<std::string>& settings) {
           for (const std::string& setting : settings) {
             const size_t equals = setting.find('=');
             const std::string value =
                 equals == std::string::npos ? "" : setting.substr(equals + 1);
             line->overrides.push_back({setting.substr(0, equals), value, "--set"});
           }
         },
         "KEY=VALUE: any key of the configuration file")
      ->take_all();
  app->add_option("--config", line->config_file, "YAML file; flags override it");
  app->add_option("--port-file", line->port_file,
                  "written once ready: grpc HOST:PORT, metrics HOST:PORT");
  app->add_flag("--check-config", line->check_config,
                "check and print the effective configuration, then exit");
  app->set_version_flag("--version", VersionText());
}

// What there must be beside well-formed values before a start is worth trying.
absl::Status CheckModelFolder(const ServerConfig& config, bool required) {
  if (!config.random_weights.empty()) return absl::OkStatus();
  if (config.model.empty()) {
    if (!required) return absl::OkStatus();
    return absl::InvalidArgumentError("model: expected a folder, found nothing; give --model DIR");
  }
  std::error_code error;
  if (std::filesystem::is_directory(config.model, error)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model: expected a folder, found ",
                                                 Quoted(config.model, 512), ", which is not one"));
}

#ifdef AUGUR_HAS_CUDA
bool HasCudaDevice() {
  for (const kernels::CudaDevice& device : kernels::FindCudaDevices()) {
    if (device.index == 0) return device.runs_our_code;
  }
  return false;
}
#endif

MachineLimits ReadMachine() {
  MachineLimits machine = ReadMachineLimits();
#ifdef AUGUR_HAS_CUDA
  machine.has_cuda_device = &HasCudaDevice;
#endif
  return machine;
}

int RunWith(const CommandLine& line) {
  const absl::StatusOr<ServerConfig> config =
      LoadServerConfig(line.config_file, line.overrides, ReadMachine());
  absl::Status status = config.status();
  if (status.ok()) status = CheckModelFolder(*config, !line.check_config);
  if (!status.ok()) {
    PrintFailure(std::string(status.message()));
    return kExitBadInput;
  }
  if (line.check_config) {
    std::fputs(FormatServerConfig(*config).c_str(), stdout);
    return kExitClean;
  }
  InitLogging(config->log_level);
  SilenceProtobufLog();
  {
    StopRequest stop;
    const SignalThread signals(&stop);
    Daemon daemon(*config, line.port_file, &stop);
    const ExitCode code = daemon.Run();
    // A start that failed has served nobody: nothing to take down in order.
    if (code != kExitClean) std::_Exit(code);
  }
  if (!FlushLogging()) std::_Exit(kExitClean);
  return kExitClean;
}

int Main(int argc, char** argv) {
  // Before any thread: all inherit the mask.
  BlockStopSignals();
  signal(SIGPIPE, SIG_IGN);
  CommandLine line;
  CLI::App app("augurd serves long-context completions over gRPC", "augurd");
  DefineFlags(&app, &line);
  // CLI11 reports by exceptions, --help and --version included; they go no further than here.
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    PrintFailure(absl::StrCat(error.what(), " (see augurd --help)"));
    return kExitBadInput;
  }
  return RunWith(line);
}

}  // namespace
}  // namespace augur::server

int main(int argc, char** argv) { return augur::server::Main(argc, argv); }
