// augur: a person's client of augurd. One subcommand a file beside this one.
#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "server/client/complete_command.h"
#include "server/client/exit_status.h"
#include "server/client/health_command.h"
#include "server/client/info_command.h"
#include "server/client/printing.h"
#include "server/client/tokenize_command.h"

// Set by the build.
#ifndef AUGUR_VERSION
#define AUGUR_VERSION "(unversioned build)"
#endif

int main(int argc, char** argv) {
  CLI::App app("Talks to augurd, the long-context completion daemon.", "augur");
  app.set_version_flag("--version", "augur " AUGUR_VERSION);
  app.require_subcommand(1);
  app.footer(augur::client::kExitStatusHelp);

  std::function<int()> run;
  augur::client::AddCompleteCommand(&app, &run);
  augur::client::AddInfoCommand(&app, &run);
  augur::client::AddHealthCommand(&app, &run);
  augur::client::AddTokenizeCommand(&app, &run);

  // CLI11 reports by exception: --help and --version too, with status 0.
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::Error& error) {
    augur::client::PrintError(augur::client::EscapeControls(error.what()) + " (see augur --help)");
    return augur::client::kExitUsage;
  }
  return run();
}
