// What augurd's exit status tells its supervisor. Plain data.
#pragma once

namespace augur::server {

enum ExitCode : int {
  kExitClean = 0,
  kExitBadInput = 2,   // a flag, the configuration or the model is wrong: a restart will not help
  kExitPortInUse = 4,  // another process listens there
  kExitNoMemory = 3,   // weights and KV pool do not fit this machine
  kExitBrokenDevice =
      70,  // reserved: the device failed under a healthy process, a restart may help
};

}  // namespace augur::server
