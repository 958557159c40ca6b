#include "server/request_validation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/quote.h"

namespace augur::server {

engine::AttentionPolicy PolicyOf(v1::AttentionPolicy policy) {
  switch (policy) {
    case v1::ATTENTION_POLICY_SPARSE:
      return engine::AttentionPolicy::kSparse;
    case v1::ATTENTION_POLICY_INFINIGEN:
      return engine::AttentionPolicy::kInfinigen;
    case v1::ATTENTION_POLICY_FORECAST:
      return engine::AttentionPolicy::kForecast;
    default:
      return engine::AttentionPolicy::kDense;
  }
}

v1::AttentionPolicy WireOf(engine::AttentionPolicy policy) {
  switch (policy) {
    case engine::AttentionPolicy::kSparse:
      return v1::ATTENTION_POLICY_SPARSE;
    case engine::AttentionPolicy::kInfinigen:
      return v1::ATTENTION_POLICY_INFINIGEN;
    case engine::AttentionPolicy::kForecast:
      return v1::ATTENTION_POLICY_FORECAST;
    case engine::AttentionPolicy::kDense:
      break;
  }
  return v1::ATTENTION_POLICY_DENSE;
}

namespace {

using absl::FailedPreconditionError;
using absl::InvalidArgumentError;
using absl::OkStatus;
using absl::Status;
using absl::StrCat;

Status NotServed(const char* field) {
  return FailedPreconditionError(StrCat(field, ": this deployment does not serve this option"));
}

// Written so that a NaN, which compares with nothing, falls out of every range.
Status CheckRange(const char* field, float value, float low, float high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgumentError(
      StrCat(field, ": expected a number in [", low, ", ", high, "], found ", value));
}

Status CheckRangeAbove(const char* field, float value, float low, float high) {
  if (value > low && value <= high) return OkStatus();
  return InvalidArgumentError(
      StrCat(field, ": expected a number in (", low, ", ", high, "], found ", value));
}

Status CheckBytes(const std::string& field, size_t bytes, size_t low, size_t high) {
  if (bytes >= low && bytes <= high) return OkStatus();
  return InvalidArgumentError(
      StrCat(field, ": expected ", low, " to ", high, " bytes, found ", bytes));
}

Status CheckTokenId(const std::string& field, uint32_t id, const Deployment& deployment) {
  if (id < static_cast<uint32_t>(deployment.vocab_size)) return OkStatus();
  return InvalidArgumentError(StrCat(field, ": expected an id below the vocabulary size ",
                                     deployment.vocab_size, ", found ", id));
}

Status CheckLabels(const v1::CompleteRequest& request, const Deployment& deployment,
                   ValidatedRequest* result) {
  Status status = CheckBytes("request_id", request.request_id().size(), 0, kMaxRequestIdBytes);
  if (!status.ok()) return status;
  status = CheckBytes("cache_salt", request.cache_salt().size(), 0, kMaxCacheSaltBytes);
  if (!status.ok()) return status;
  if (!request.model().empty() && request.model() != deployment.served_name) {
    return absl::NotFoundError(StrCat("model: this deployment serves ",
                                      Quoted(deployment.served_name), ", found ",
                                      Quoted(request.model())));
  }
  result->request_id = request.request_id();
  result->cache_salt = request.cache_salt();
  result->bypass_prefix_cache = request.bypass_prefix_cache();
  result->priority = request.priority();
  return OkStatus();
}

Status CheckText(const v1::CompleteRequest& request, const Deployment& deployment,
                 ValidatedRequest* result) {
  if (!deployment.has_tokenizer) {
    return FailedPreconditionError("text: this deployment has no tokenizer, send token_ids");
  }
  if (request.text().empty())
    return InvalidArgumentError("text: expected at least 1 byte, found 0");
  const int64_t limit = MaxTextBytes(deployment);
  if (static_cast<int64_t>(request.text().size()) > limit) {
    return InvalidArgumentError(StrCat("text: expected at most ", limit, " bytes (a context of ",
                                       deployment.max_context, " tokens), found ",
                                       request.text().size()));
  }
  result->is_text = true;
  result->text = request.text();
  result->encode.add_special_tokens =
      !request.has_add_special_tokens() || request.add_special_tokens();
  result->encode.parse_special = !request.has_parse_special() || request.parse_special();
  return OkStatus();
}

Status CheckPrompt(const v1::CompleteRequest& request, const Deployment& deployment,
                   ValidatedRequest* result) {
  switch (request.prompt_case()) {
    case v1::CompleteRequest::kText:
      return CheckText(request, deployment, result);
    case v1::CompleteRequest::kTokenIds: {
      const auto& ids = request.token_ids().ids();
      if (ids.empty()) return InvalidArgumentError("token_ids: expected at least 1 id, found 0");
      Status status = CheckFitsContext(ids.size(), result->stopping.max_tokens, deployment);
      if (status.ok()) status = CheckTokenIds(ids, "token_ids", deployment);
      if (status.ok()) result->token_ids.assign(ids.begin(), ids.end());
      return status;
    }
    case v1::CompleteRequest::PROMPT_NOT_SET:
      break;
  }
  return InvalidArgumentError("prompt: expected text or token_ids, found neither");
}

Status CheckSampling(const v1::SamplingParams& params, ValidatedRequest* result) {
  engine::SamplingParams& sampling = result->sampling;
  if (params.has_temperature()) sampling.temperature = params.temperature();
  if (params.has_top_k()) sampling.top_k = params.top_k();
  if (params.has_top_p()) sampling.top_p = params.top_p();
  if (params.has_min_p()) sampling.min_p = params.min_p();
  result->has_seed = params.has_seed();
  sampling.seed = params.seed();
  Status status = CheckRange("sampling.temperature", sampling.temperature, 0, 100);
  if (status.ok()) status = CheckRangeAbove("sampling.top_p", sampling.top_p, 0, 1);
  if (status.ok()) status = CheckRange("sampling.min_p", sampling.min_p, 0, 1);
  return status;
}

Status CheckPenalties(const v1::SamplingParams& params, ValidatedRequest* result) {
  engine::SamplingParams& sampling = result->sampling;
  if (params.has_repetition_penalty()) sampling.repetition_penalty = params.repetition_penalty();
  sampling.presence_penalty = params.presence_penalty();
  sampling.frequency_penalty = params.frequency_penalty();
  Status status =
      CheckRangeAbove("sampling.repetition_penalty", sampling.repetition_penalty, 0, 10);
  if (status.ok())
    status = CheckRange("sampling.presence_penalty", sampling.presence_penalty, -2, 2);
  if (status.ok()) {
    status = CheckRange("sampling.frequency_penalty", sampling.frequency_penalty, -2, 2);
  }
  return status;
}

Status CheckLogitRules(const v1::SamplingParams& params, const Deployment& deployment,
                       ValidatedRequest* result) {
  for (const auto& [id, bias] : params.logit_bias()) {
    Status status = CheckTokenId("sampling.logit_bias", id, deployment);
    if (status.ok()) status = CheckRange("sampling.logit_bias", bias, -100, 100);
    if (!status.ok()) return status;
    result->sampling.logit_bias.emplace_back(static_cast<engine::TokenId>(id), bias);
  }
  const auto& allowed = params.allowed_token_ids();
  if (allowed.size() > deployment.vocab_size) {
    return InvalidArgumentError(StrCat("sampling.allowed_token_ids: expected at most ",
                                       deployment.vocab_size, " ids (the vocabulary), found ",
                                       allowed.size()));
  }
  Status status = CheckTokenIds(allowed, "sampling.allowed_token_ids", deployment);
  if (status.ok()) result->sampling.allowed_token_ids.assign(allowed.begin(), allowed.end());
  return status;
}

// Before min_tokens are there nothing is drawn that would end the sequence: something must be left.
Status CheckSomethingToDraw(const Deployment& deployment, const ValidatedRequest& result) {
  const engine::StoppingCriteria& stopping = result.stopping;
  if (stopping.min_tokens == 0) return OkStatus();
  std::vector<bool> may_draw(deployment.vocab_size, result.sampling.allowed_token_ids.empty());
  for (const engine::TokenId id : result.sampling.allowed_token_ids) may_draw[id] = true;
  for (const engine::TokenId id : stopping.stop_token_ids) may_draw[id] = false;
  if (!stopping.ignore_eos) {
    for (const engine::TokenId id : deployment.eos_token_ids) may_draw[id] = false;
  }
  if (std::find(may_draw.begin(), may_draw.end(), true) != may_draw.end()) return OkStatus();
  return InvalidArgumentError(
      StrCat("stopping.min_tokens: expected 0 where every allowed id ends the sequence, found ",
             stopping.min_tokens));
}

Status CheckChoices(const v1::SamplingParams& params, const Deployment& deployment,
                    ValidatedRequest* result) {
  const uint32_t n = params.has_n() ? params.n() : 1;
  const auto batch = static_cast<uint32_t>(deployment.max_batch);
  const uint32_t most = std::min(engine::kMaxChoices, batch);
  if (n < 1 || n > most) {
    return InvalidArgumentError(StrCat("sampling.n: expected an integer from 1 to ", most,
                                       batch < engine::kMaxChoices ? " (batch)" : "", ", found ",
                                       n));
  }
  result->num_choices = n;
  return OkStatus();
}

// Runs before the prompt is looked at, which needs max_tokens.
Status CheckLength(const v1::CompleteRequest& request, ValidatedRequest* result) {
  const v1::StoppingCriteria& criteria = request.stopping();
  engine::StoppingCriteria& stopping = result->stopping;
  stopping.max_tokens = criteria.has_max_tokens() ? criteria.max_tokens() : kDefaultMaxTokens;
  stopping.min_tokens = criteria.min_tokens();
  const bool shows_prompt = request.output().echo() || request.output().has_prompt_logprobs();
  if (stopping.max_tokens == 0 && !shows_prompt) {
    return InvalidArgumentError(
        "stopping.max_tokens: expected at least 1 (0 only with echo or prompt_logprobs), found 0");
  }
  if (stopping.min_tokens > stopping.max_tokens) {
    return InvalidArgumentError(StrCat("stopping.min_tokens: expected at most max_tokens ",
                                       stopping.max_tokens, ", found ", stopping.min_tokens));
  }
  return OkStatus();
}

Status CheckStops(const v1::StoppingCriteria& criteria, const Deployment& deployment,
                  ValidatedRequest* result) {
  engine::StoppingCriteria& stopping = result->stopping;
  stopping.ignore_eos = criteria.ignore_eos();
  stopping.include_stop = criteria.include_stop();
  if (static_cast<size_t>(criteria.stop_size()) > kMaxStops) {
    return InvalidArgumentError(StrCat("stopping.stop: expected at most ", kMaxStops,
                                       " strings, found ", criteria.stop_size()));
  }
  for (int i = 0; i < criteria.stop_size(); ++i) {
    Status status =
        CheckBytes(StrCat("stopping.stop[", i, "]"), criteria.stop(i).size(), 1, kMaxStopBytes);
    if (!status.ok()) return status;
    stopping.stop.push_back(criteria.stop(i));
  }
  if (!stopping.stop.empty() && !deployment.has_tokenizer) {
    return FailedPreconditionError(
        "stopping.stop: this deployment has no tokenizer, use stop_token_ids");
  }
  if (static_cast<size_t>(criteria.stop_token_ids_size()) > kMaxStopTokenIds) {
    return InvalidArgumentError(StrCat("stopping.stop_token_ids: expected at most ",
                                       kMaxStopTokenIds, " ids, found ",
                                       criteria.stop_token_ids_size()));
  }
  Status status = CheckTokenIds(criteria.stop_token_ids(), "stopping.stop_token_ids", deployment);
  if (!status.ok()) return status;
  stopping.stop_token_ids.assign(criteria.stop_token_ids().begin(),
                                 criteria.stop_token_ids().end());
  return OkStatus();
}

Status CheckLogprobs(const char* field, bool present, uint32_t value, int* logprobs) {
  if (!present) return OkStatus();
  if (value > kMaxLogprobs) {
    return InvalidArgumentError(
        StrCat(field, ": expected at most ", kMaxLogprobs, ", found ", value));
  }
  *logprobs = static_cast<int>(value);
  return OkStatus();
}

Status CheckOutput(const v1::OutputOptions& options, const Deployment& deployment,
                   ValidatedRequest* result) {
  engine::OutputOptions& output = result->output;
  output.text = deployment.has_tokenizer;
  // Without a tokenizer the ids are all there is to send.
  output.token_ids = options.token_ids() || !deployment.has_tokenizer;
  output.progress = options.progress();
  output.skip_special_tokens = !options.has_skip_special_tokens() || options.skip_special_tokens();
  output.echo = options.echo();
  Status status = CheckLogprobs("output.logprobs", options.has_logprobs(), options.logprobs(),
                                &output.logprobs);
  if (status.ok()) {
    status = CheckLogprobs("output.prompt_logprobs", options.has_prompt_logprobs(),
                           options.prompt_logprobs(), &output.prompt_logprobs);
  }
  return status;
}

Status CheckPolicy(const char* field, v1::AttentionPolicy policy, const Deployment& deployment) {
  if (!v1::AttentionPolicy_IsValid(policy)) {
    return InvalidArgumentError(StrCat(field, ": unknown enum number ", policy));
  }
  if (policy == v1::ATTENTION_POLICY_UNSPECIFIED) return OkStatus();
  const auto& served = deployment.policies;
  if (std::find(served.begin(), served.end(), PolicyOf(policy)) != served.end()) return OkStatus();
  return FailedPreconditionError(
      StrCat(field, ": this deployment does not serve ", v1::AttentionPolicy_Name(policy)));
}

Status CheckPolicies(const v1::AttentionOptions& options, const Deployment& deployment,
                     engine::AttentionChoice* choice) {
  using engine::AttentionPolicy;
  const v1::AttentionPolicy policy = options.policy(), prefill = options.prefill_policy();
  Status status = CheckPolicy("attention.policy", policy, deployment);
  if (!status.ok()) return status;
  if (prefill == v1::ATTENTION_POLICY_INFINIGEN) {
    return InvalidArgumentError(
        "attention.prefill_policy: expected dense, sparse or forecast, found "
        "ATTENTION_POLICY_INFINIGEN, which is for generated tokens");
  }
  status = CheckPolicy("attention.prefill_policy", prefill, deployment);
  if (!status.ok()) return status;
  if (policy != v1::ATTENTION_POLICY_UNSPECIFIED) {
    choice->decode = PolicyOf(policy);
    choice->prefill =
        choice->decode == AttentionPolicy::kInfinigen ? AttentionPolicy::kSparse : choice->decode;
  }
  if (prefill != v1::ATTENTION_POLICY_UNSPECIFIED) choice->prefill = PolicyOf(prefill);
  return OkStatus();
}

// Prompts are exact whatever is asked for.
Status CheckValues(const v1::AttentionOptions& options, const Deployment& deployment,
                   engine::ValueChoice* values) {
  const v1::ValueMode mode = options.value_mode();
  if (!v1::ValueMode_IsValid(mode)) {
    return InvalidArgumentError(StrCat("attention.value_mode: unknown enum number ", mode));
  }
  const engine::ValueSettings& served = deployment.values;
  if (mode != v1::VALUE_MODE_UNSPECIFIED) {
    const bool sampled = mode == v1::VALUE_MODE_SAMPLED;
    if (sampled != served.sampled && !served.request_override) {
      return FailedPreconditionError(StrCat("attention.value_mode: this deployment does not serve ",
                                            v1::ValueMode_Name(mode)));
    }
    values->sampled = sampled;
  }
  if (!options.has_value_samples()) return OkStatus();
  if (!served.offered()) return NotServed("attention.value_samples");
  if (options.value_samples() < 1 ||
      options.value_samples() > static_cast<uint32_t>(served.max_samples)) {
    return InvalidArgumentError(
        StrCat("attention.value_samples: expected 1 to ", served.max_samples,
               " (attention.values.max_samples), found ", options.value_samples()));
  }
  if (!served.request_override) return NotServed("attention.value_samples");
  if (!values->sampled) {
    return InvalidArgumentError(
        "attention.value_samples: expected with value_mode VALUE_MODE_SAMPLED, found exact values");
  }
  values->samples = static_cast<int>(options.value_samples());
  return OkStatus();
}

Status CheckAttention(const v1::AttentionOptions& options, const Deployment& deployment,
                      ValidatedRequest* result) {
  engine::AttentionChoice& choice = result->attention;
  choice = deployment.attention;
  Status status = CheckPolicies(options, deployment, &choice);
  if (!status.ok()) return status;
  status = CheckValues(options, deployment, &choice.values);
  if (!status.ok()) return status;
  if (!options.has_top_k_blocks()) return OkStatus();
  if (deployment.policies.size() < 2) return NotServed("attention.top_k_blocks");
  const int least = choice.budget.init + choice.budget.local;
  if (options.top_k_blocks() < static_cast<uint32_t>(least) ||
      options.top_k_blocks() > static_cast<uint32_t>(deployment.max_top_k_blocks)) {
    return InvalidArgumentError(
        StrCat("attention.top_k_blocks: expected ", least, " (init_blocks + local_blocks) to ",
               deployment.max_top_k_blocks, " (max_top_k_blocks), found ", options.top_k_blocks()));
  }
  choice.budget.top_k = static_cast<int>(options.top_k_blocks());
  return OkStatus();
}

}  // namespace

absl::StatusOr<ValidatedRequest> Validate(const v1::CompleteRequest& request,
                                          const Deployment& deployment) {
  ValidatedRequest result;
  Status status = CheckLabels(request, deployment, &result);
  if (status.ok()) status = CheckLength(request, &result);
  if (status.ok()) status = CheckPrompt(request, deployment, &result);
  if (status.ok()) status = CheckSampling(request.sampling(), &result);
  if (status.ok()) status = CheckPenalties(request.sampling(), &result);
  if (status.ok()) status = CheckLogitRules(request.sampling(), deployment, &result);
  if (status.ok()) status = CheckChoices(request.sampling(), deployment, &result);
  if (status.ok()) status = CheckStops(request.stopping(), deployment, &result);
  if (status.ok()) status = CheckSomethingToDraw(deployment, result);
  if (status.ok()) status = CheckOutput(request.output(), deployment, &result);
  if (status.ok()) status = CheckAttention(request.attention(), deployment, &result);
  if (!status.ok()) return status;
  return result;
}

int64_t MaxTextBytes(const Deployment& deployment) {
  return deployment.longest_token_bytes * deployment.max_context;
}

absl::Status CheckFitsContext(int64_t prompt_tokens, int64_t max_tokens,
                              const Deployment& deployment) {
  if (prompt_tokens + max_tokens <= deployment.max_context) return OkStatus();
  return InvalidArgumentError(StrCat("prompt of ", prompt_tokens, " tokens + max_tokens of ",
                                     max_tokens, " is beyond the context of ",
                                     deployment.max_context, " tokens"));
}

absl::Status CheckTokenIds(const google::protobuf::RepeatedField<uint32_t>& ids,
                           const std::string& field, const Deployment& deployment) {
  const auto vocab_size = static_cast<uint32_t>(deployment.vocab_size);
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab_size) return CheckTokenId(StrCat(field, "[", i, "]"), ids[i], deployment);
  }
  return OkStatus();
}

}  // namespace augur::server
