// The engine as the front calls it: two methods of engine/engine.h, so that streams and router can
// be tested against an engine that does what the test says.
//
// Thread: any.
// Failure: see Engine::Submit.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "engine/request.h"

namespace augur::server {

class EngineEntry {
 public:
  virtual ~EngineEntry() = default;
  virtual absl::Status Submit(std::shared_ptr<engine::Request> request) = 0;
  virtual void Wake() = 0;
};

}  // namespace augur::server
