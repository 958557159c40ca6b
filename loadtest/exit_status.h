// What the exit status of a load test tells a script. Plain data.
#pragma once

namespace augur::loadtest {

enum ExitStatus : int {
  kExitOk = 0,
  kExitFailed = 1,   // the daemon cannot be reached, a call failed, or output was not written
  kExitUsage = 2,    // the command line is wrong, or asks for what the model or text cannot give
  kExitRefused = 3,  // done, but for policies that the daemon refused
  kExitInterrupted = 130,  // Ctrl-C or SIGTERM; calls under way were cancelled
};

}  // namespace augur::loadtest
