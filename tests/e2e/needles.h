// The needle questions that make_needles.py wrote at build time.
//
// Thread: plain functions. Failure: an empty list, which fails the test that asks.
#pragma once

#include <string>
#include <vector>

namespace augur::tests {

struct Needle {
  std::string prompt;
  std::string answer;  // the number that the model should give
  int tokens = 0;      // of the prompt, about
};

// `length` is "1K", "4K" or "7K"; 20 of each.
std::vector<Needle> LoadNeedles(const std::string& length);

// Whether `text` begins with the answer, after blanks.
bool IsRight(const Needle& needle, const std::string& text);

}  // namespace augur::tests
