// From a CompleteRequest to what the engine may be asked, or to the status that the client gets.
//
// The one place that knows which fields this build serves. The functions are pure: no clock, no
// randomness, no tokenizer, so that a table of requests and statuses is a complete test.
//
// Thread: any.
// Ownership: values.
// Failure:
//   INVALID_ARGUMENT     a value outside its range, an unknown enum number; the message names
//                        field, value and limit
//   NOT_FOUND            another model
//   FAILED_PRECONDITION  a field that the API knows and this deployment does not serve
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "augur/v1/completions.pb.h"
#include "engine/request.h"
#include "kernels/ops/top_logprobs.h"
#include "server/deployment.h"

namespace augur::server {

inline constexpr uint32_t kDefaultMaxTokens = 16;
inline constexpr size_t kMaxStops = 16;
inline constexpr size_t kMaxStopBytes = 256;
inline constexpr size_t kMaxStopTokenIds = 1024;
inline constexpr uint32_t kMaxLogprobs = kernels::kMaxTopLogprobs;
inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxCacheSaltBytes = 64;

struct ValidatedRequest {
  std::string request_id;  // empty: the client gave none
  bool is_text = false;
  std::string text;                        // valid UTF-8, short enough to fit the context perhaps
  engine::EncodeOptions encode;            // for text
  std::vector<engine::TokenId> token_ids;  // the prompt where it is not text; fits the context
  engine::SamplingParams sampling;         // its seed counts only when has_seed
  bool has_seed = false;
  engine::StoppingCriteria stopping;
  engine::OutputOptions output;
  engine::AttentionChoice attention;
  uint32_t num_choices = 1;
  int32_t priority = 0;
  std::string cache_salt;
  bool bypass_prefix_cache = false;
};

// The policy as the API spells it; unspecified is dense here, the deployment's choice elsewhere.
engine::AttentionPolicy PolicyOf(v1::AttentionPolicy policy);
v1::AttentionPolicy WireOf(engine::AttentionPolicy policy);

absl::StatusOr<ValidatedRequest> Validate(const v1::CompleteRequest& request,
                                          const Deployment& deployment);

// Text longer than this cannot fit the context: every token stands for at most the longest token's
// bytes. (White space that a tokenizer strips beside an added token is the exception, and refused
// all the same.)
int64_t MaxTextBytes(const Deployment& deployment);

// prompt + max_tokens against the context, in the words of the API: the three numbers are named.
absl::Status CheckFitsContext(int64_t prompt_tokens, int64_t max_tokens,
                              const Deployment& deployment);

// That every id is in the vocabulary; `field` is named with the index of the first that is not.
absl::Status CheckTokenIds(const google::protobuf::RepeatedField<uint32_t>& ids,
                           const std::string& field, const Deployment& deployment);

}  // namespace augur::server
