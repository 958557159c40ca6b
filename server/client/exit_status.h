// What the exit status of `augur` tells a script. Plain data.
#pragma once

namespace augur::client {

enum ExitStatus : int {
  kExitOk = 0,
  kExitFailed = 1,  // the call failed, the daemon is not serving, or output could not be written
  kExitUsage = 2,   // the command line or a file it names is wrong; nothing was sent
  kExitInterrupted = 130,  // Ctrl-C or SIGTERM; the call was cancelled
};

inline constexpr char kExitStatusHelp[] =
    "Exit status: 0 fine; 1 the call failed, the daemon is not serving or output could not be "
    "written;\n"
    "2 bad command line or unreadable input; 130 interrupted.";

}  // namespace augur::client
