// How far the prefill has come, on standard error: a bar that redraws itself on a terminal, one
// line an event elsewhere.
//
// Thread: one. Failure: none; what standard error does not take is lost.
#pragma once

#include <string>

#include "augur/v1/completions.pb.h"

namespace augur::client {

// The text of a bar that fits `columns`: "[####----] 2,048/4,096 tokens  1.2 s".
std::string DrawBar(const v1::PrefillProgress& progress, int columns);

class ProgressBar {
 public:
  // `terminal`: standard error is one.
  explicit ProgressBar(bool terminal) : terminal_(terminal) {}
  ~ProgressBar() { Clear(); }

  void Show(const v1::PrefillProgress& progress);
  // Takes the bar off the screen, before anything else is printed.
  void Clear();

 private:
  const bool terminal_;
  bool drawn_ = false;
};

}  // namespace augur::client
