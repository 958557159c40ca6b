// What augurd's exit status tells its supervisor. Plain data.
#pragma once

namespace augur::server {

enum ExitCode : int {
  kExitClean = 0,
  kExitBadInput = 2,   // a flag, the configuration or the model is wrong: a restart will not help
  kExitPortInUse = 4,  // another process listens there
  kExitNoMemory = 3,   // no such device here, or weights and KV pool do not fit it
  kExitBrokenDevice = 70,  // the device failed under a healthy process, a restart may help
};

}  // namespace augur::server
