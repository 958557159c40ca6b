// `augur info`: what the daemon serves, for people or as JSON.
//
// Thread: main. Failure: the exit status of exit_status.h, one line on standard error.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace augur::client {

// Adds the subcommand; `run` is set to what is to be done when it was chosen.
void AddInfoCommand(CLI::App* app, std::function<int()>* run);

}  // namespace augur::client
