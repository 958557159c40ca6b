// The two lines that every caller of a StatusOr would write.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define AUGUR_RETURN_IF_ERROR(expression)                                   \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#define AUGUR_MACRO_JOIN_(a, b) a##b
#define AUGUR_MACRO_JOIN(a, b) AUGUR_MACRO_JOIN_(a, b)

// AUGUR_ASSIGN_OR_RETURN(int x, F()): declares or assigns the value, or returns the status.
#define AUGUR_ASSIGN_OR_RETURN(target, expression) \
  AUGUR_ASSIGN_OR_RETURN_(AUGUR_MACRO_JOIN(status_or_, __LINE__), target, expression)
#define AUGUR_ASSIGN_OR_RETURN_(holder, target, expression) \
  auto holder = (expression);                               \
  if (!holder.ok()) return holder.status();                 \
  target = *std::move(holder)
