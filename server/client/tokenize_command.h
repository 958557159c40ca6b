// `augur tokenize`: text on standard input to token ids, by the daemon or offline from a
// tokenizer.json.
//
// Thread: main. Failure: the exit status of exit_status.h, one line on standard error.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace augur::client {

// Adds the subcommand; `run` is set to what is to be done when it was chosen.
void AddTokenizeCommand(CLI::App* app, std::function<int()>* run);

}  // namespace augur::client
