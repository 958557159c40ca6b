// Where a prompt's text comes from: a file, standard input or the command line.
//
// Thread: plain functions. Failure: INVALID_ARGUMENT of one line that names the file; text must be
// valid UTF-8 and fit a message.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace augur::client {

// The whole file; "-" is standard input.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// The document, then the line "Question: <question>". A line end that closes the document is the
// one before "Question:"; nothing else of either text is changed. Without a question: the document
// as it is.
std::string JoinPrompt(std::string document, const std::string& question);

}  // namespace augur::client
