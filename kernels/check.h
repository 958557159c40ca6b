// CHECK: the only fatal path for a mistake of our own (a broken invariant, a bad shape). It prints
// the expression with its place and aborts, in every build type. What a peer or a file got wrong is
// a status, never a CHECK. Usable from any thread; needs nothing but the standard library.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace augur::kernels {
[[noreturn]] inline void CheckFailed(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, expression);
  std::abort();
}
}  // namespace augur::kernels

#define AUGUR_CHECK(condition)                       \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::augur::kernels::CheckFailed(__FILE__, __LINE__, #condition))
