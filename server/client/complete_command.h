// `augur complete`: sends a document and a question, prints the text as it comes.
//
// Thread: main. Failure: the exit status of exit_status.h, one line on standard error.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace augur::client {

// Adds the subcommand; `run` is set to what is to be done when it was chosen.
void AddCompleteCommand(CLI::App* app, std::function<int()>* run);

}  // namespace augur::client
