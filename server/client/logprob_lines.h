// Log probabilities as lines for a person: one a token, with what else was likely there.
//
// Thread: plain functions. Failure: none.
#pragma once

#include <string>

#include "augur/v1/completions.pb.h"

namespace augur::client {

// E.g.: `  -0.0312  rank 1  " the"   " the" -0.0312, " a" -4.1250`. Of the prompt's first token,
// which has none: a line that says so.
std::string LogprobLine(const v1::TokenLogprobs& logprobs);

}  // namespace augur::client
