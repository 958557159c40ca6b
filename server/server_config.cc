#include "server/server_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/utf8.h"
#include "server/config_values.h"
#include "server/host_port.h"
#include "server/quote.h"

namespace augur::server {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr int64_t kDefaultKvBytes = 256 << 20;
constexpr int64_t kDefaultHostKvBytes = int64_t{4} << 30;
constexpr int64_t kBlockTokens = 64;
constexpr size_t kMaxNameBytes = 128;
// Leaves prefill room for a whole block in a step that is full of decodes
// (engine/engine_options.h).
constexpr int64_t kMinPrefillRows = 64;
constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;

struct Key {
  std::string name;
  std::string meaning;
  // Takes the text, or says what was expected.
  std::function<std::string(const std::string& text, ServerConfig* config)> set;
  std::function<std::string(const ServerConfig&)> format;
};

std::string QuoteYaml(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

bool IsPrintable(const std::string& text) {
  return engine::IsValidUtf8(text) && std::none_of(text.begin(), text.end(), [](unsigned char c) {
           return c < 0x20 || c == 0x7f;
         });
}

Key TextKey(const char* name, const char* meaning, std::string ServerConfig::*member,
            size_t limit) {
  return {name, meaning,
          [=](const std::string& text, ServerConfig* config) -> std::string {
            if (text.size() > limit || !IsPrintable(text)) {
              return absl::StrCat("expected at most ", limit,
                                  " bytes of UTF-8 without control characters");
            }
            config->*member = text;
            return {};
          },
          [=](const ServerConfig& config) { return QuoteYaml(config.*member); }};
}

Key AddressKey(const char* name, const char* meaning, std::string ServerConfig::*member) {
  return {name, meaning,
          [=](const std::string& text, ServerConfig* config) -> std::string {
            if (!ParseHostPort(text).ok()) {
              return "expected HOST:PORT with a port from 0 to 65535, e.g. 127.0.0.1:50051";
            }
            config->*member = text;
            return {};
          },
          [=](const ServerConfig& config) { return QuoteYaml(config.*member); }};
}

using Parse = std::optional<int64_t> (*)(const std::string&);
using Format = std::string (*)(int64_t);

Key NumberKey(const char* name, const char* meaning, int64_t ServerConfig::*member, int64_t min,
              int64_t max, const char* kind, Parse parse, Format format) {
  return {name, meaning,
          [=](const std::string& text, ServerConfig* config) -> std::string {
            const std::optional<int64_t> value = parse(text);
            if (!value || *value < min || *value > max) {
              return absl::StrCat("expected ", kind, " from ", format(min), " to ", format(max));
            }
            config->*member = *value;
            return {};
          },
          [=](const ServerConfig& config) { return format(config.*member); }};
}

Key IntegerKey(const char* name, const char* meaning, int64_t ServerConfig::*member, int64_t min,
               int64_t max) {
  return NumberKey(
      name, meaning, member, min, max, "an integer", &ParseInteger,
      +[](int64_t value) { return std::string(absl::StrCat(value)); });
}

// An integer, or "auto": as the model or what is measured says.
Key AutoIntegerKey(const char* name, const char* meaning,
                   std::optional<int64_t> ServerConfig::*member, int64_t min, int64_t max) {
  return {name, meaning,
          [=](const std::string& text, ServerConfig* config) -> std::string {
            const std::optional<int64_t> value = ParseInteger(text);
            if (text == "auto") {
              (config->*member).reset();
            } else if (value && *value >= min && *value <= max) {
              config->*member = value;
            } else {
              return absl::StrCat("expected auto or an integer from ", min, " to ", max);
            }
            return {};
          },
          [=](const ServerConfig& config) {
            const std::optional<int64_t> value = config.*member;
            return value ? std::string(absl::StrCat(*value)) : std::string("auto");
          }};
}

Key BytesKey(const char* name, const char* meaning, int64_t ServerConfig::*member, int64_t min,
             int64_t max) {
  return NumberKey(name, meaning, member, min, max,
                   "a size (bytes, or a number with KiB, MiB, GiB or TiB)", &ParseBytes,
                   &FormatBytes);
}

Key DurationKey(const char* name, const char* meaning, int64_t ServerConfig::*member, int64_t min,
                int64_t max) {
  return NumberKey(name, meaning, member, min, max, "a duration (a number with ms, s, m or h)",
                   &ParseDuration, &FormatDuration);
}

Key BoolKey(const char* name, const char* meaning, bool ServerConfig::*member) {
  return {name, meaning,
          [=](const std::string& text, ServerConfig* config) -> std::string {
            const std::optional<bool> value = ParseBool(text);
            if (!value) return "expected true or false";
            config->*member = *value;
            return {};
          },
          [=](const ServerConfig& config) { return config.*member ? "true" : "false"; }};
}

Key KvDtypeKey() {
  return {"kv_dtype",
          "element type of KV pages: auto (the checkpoint's), float32, bfloat16 or float16",
          [](const std::string& text, ServerConfig* config) -> std::string {
            if (text == "auto") {
              config->kv_dtype.reset();
              return {};
            }
            for (const auto dtype :
                 {kernels::DType::kF32, kernels::DType::kBF16, kernels::DType::kF16}) {
              if (text != kernels::NameOf(dtype)) continue;
              config->kv_dtype = dtype;
              return {};
            }
            return "expected auto, float32, bfloat16 or float16";
          },
          [](const ServerConfig& config) {
            return std::string(config.kv_dtype ? kernels::NameOf(*config.kv_dtype) : "auto");
          }};
}

Key HostKvDtypeKey() {
  return {"host_kv_dtype",
          "KV pages in the host pool: same (as kv_dtype), or fp8: half the bytes, rows are rounded",
          [](const std::string& text, ServerConfig* config) -> std::string {
            if (text != "same" && text != "fp8") return "expected same or fp8";
            config->host_kv_fp8 = text == "fp8";
            return {};
          },
          [](const ServerConfig& config) { return config.host_kv_fp8 ? "fp8" : "same"; }};
}

Key DeviceKey() {
  return {"device",
          "what computes: cpu, cuda:N, or auto: cuda:0 where this build and machine have it",
          [](const std::string& text, ServerConfig* config) -> std::string {
            if (text != "auto" && text != "cpu" && CudaDeviceOf(text) < 0) {
              return "expected auto, cpu or cuda:N with N from 0 to 63";
            }
            config->device = text;
            return {};
          },
          [](const ServerConfig& config) { return config.device; }};
}

Key LogLevelKey() {
  return {"log_level", "least severe line that is written: debug, info, warn or error",
          [](const std::string& text, ServerConfig* config) -> std::string {
            for (const char* level : {"debug", "info", "warn", "error"}) {
              if (text != level) continue;
              config->log_level = text;
              return {};
            }
            return "expected debug, info, warn or error";
          },
          [](const ServerConfig& config) { return config.log_level; }};
}

std::vector<Key> WhatIsServed() {
  using C = ServerConfig;
  return {
      TextKey("model", "Hugging Face folder: config.json, safetensors, tokenizer.json", &C::model,
              4096),
      TextKey("served_name", "name that requests and metrics use; the folder's unless set",
              &C::served_name, kMaxNameBytes),
      TextKey("random_weights",
              "instead of model: a config.json whose shape is served with random weights, for "
              "benches; requests give token ids",
              &C::random_weights, 4096),
      IntegerKey("random_seed", "names the random weights", &C::random_seed, 0, int64_t{1} << 47),
      AddressKey("listen", "where gRPC listens; port 0 picks a free one", &C::listen),
      AddressKey("metrics", "where Prometheus scrapes over HTTP", &C::metrics),
  };
}

std::vector<Key> EngineKeys() {
  using C = ServerConfig;
  return {
      DeviceKey(),
      IntegerKey("context", "tokens of prompt and completion; 0: the model's own limit",
                 &C::context, 0, 1 << 24),
      BytesKey("kv_bytes",
               "memory for the KV pool; 0B or unset: a quarter of this machine's, at most 256MiB; "
               "on a CUDA device nine tenths of what the weights leave",
               &C::kv_bytes, 0, int64_t{1} << 46),
      KvDtypeKey(),
      BoolKey("prefix_cache", "reuse the KV of equal beginnings", &C::prefix_cache),
      IntegerKey("batch", "sequences in a step", &C::batch, 1, 1024),
      IntegerKey("batched_tokens",
                 "rows in a step, at least batch + 64; 512 or batch + 64 unless set",
                 &C::batched_tokens, 65, 1 << 20),
      IntegerKey("queue_requests", "requests accepted and not yet running", &C::queue_requests, 1,
                 1 << 20),
      IntegerKey("queue_tokens", "prompt tokens of those", &C::queue_tokens, 1, int64_t{1} << 40),
      IntegerKey("threads", "threads that compute; this machine's CPUs unless set", &C::threads, 1,
                 1024),
  };
}

Key PolicyKey(const char* name, const char* meaning,
              std::optional<engine::AttentionPolicy> ServerConfig::*member) {
  return {name, meaning,
          [=](const std::string& text, ServerConfig* config) -> std::string {
            const auto policy = engine::PolicyNamed(text);
            if (!policy && text != "auto") {
              return "expected auto, dense, sparse, infinigen or forecast";
            }
            config->*member = policy;
            return {};
          },
          [=](const ServerConfig& config) {
            const auto policy = config.*member;
            return policy ? std::string(engine::NameOf(*policy)) : std::string("auto");
          }};
}

Key ValueModeKey() {
  return {"attention.values.mode",
          "values that generated tokens read: exact (all of the attended blocks) or sampled",
          [](const std::string& text, ServerConfig* config) -> std::string {
            if (text != "exact" && text != "sampled") return "expected exact or sampled";
            config->values.sampled = text == "sampled";
            return {};
          },
          [](const ServerConfig& config) { return config.values.sampled ? "sampled" : "exact"; }};
}

Key ValueOverrideKey() {
  return {
      "attention.values.override", "requests may choose the mode and their own number of samples",
      [](const std::string& text, ServerConfig* config) -> std::string {
        const std::optional<bool> value = ParseBool(text);
        if (!value) return "expected true or false";
        config->values.request_override = *value;
        return {};
      },
      [](const ServerConfig& config) { return config.values.request_override ? "true" : "false"; }};
}

Key ValueEstimatorKey() {
  return {"attention.values.estimator",
          "how values are sampled: iid, stratified, systematic, proportional, largest_remainder, "
          "flash, shared, bernoulli_scores or bernoulli_scores_group",
          [](const std::string& text, ServerConfig* config) -> std::string {
            const auto estimator = engine::ValueEstimatorNamed(text);
            if (!estimator) {
              return "expected iid, stratified, systematic, proportional, largest_remainder, "
                     "flash, shared, bernoulli_scores or bernoulli_scores_group";
            }
            config->values.estimator = *estimator;
            return {};
          },
          [](const ServerConfig& config) {
            return std::string(engine::NameOf(config.values.estimator));
          }};
}

Key ValueBudgetKey() {
  return {"attention.values.budget",
          "what samples count: draws of a query head, or distinct rows of a KV head",
          [](const std::string& text, ServerConfig* config) -> std::string {
            if (text != "draws" && text != "rows") return "expected draws or rows";
            config->values.budget =
                text == "rows" ? kernels::ValueBudget::kRows : kernels::ValueBudget::kDraws;
            return {};
          },
          [](const ServerConfig& config) {
            return config.values.budget == kernels::ValueBudget::kRows ? "rows" : "draws";
          }};
}

Key ValueSamplesKey() {
  return {
      "attention.values.samples",
      "samples of a sampled token in each layer: one number, or one a layer with commas between",
      [](const std::string& text, ServerConfig* config) -> std::string {
        const auto samples = engine::ParseSamples(text);
        if (!samples) return "expected a positive integer, or one a layer with commas between";
        config->values.samples = *samples;
        return {};
      },
      [](const ServerConfig& config) { return engine::FormatSamples(config.values.samples); }};
}

Key ValueMaxSamplesKey() {
  return {"attention.values.max_samples", "most samples that a layer or a request may ask for",
          [](const std::string& text, ServerConfig* config) -> std::string {
            const std::optional<int64_t> value = ParseInteger(text);
            if (!value || *value < 1 || *value > kernels::kMaxValueSamples) {
              return absl::StrCat("expected an integer from 1 to ", kernels::kMaxValueSamples);
            }
            config->values.max_samples = static_cast<int>(*value);
            return {};
          },
          [](const ServerConfig& config) { return absl::StrCat(config.values.max_samples); }};
}

Key ValueFetchKey() {
  return {
      "attention.values.fetch",
      "where a sampled token reads the values of blocks that it fetched: rows (in their host "
      "pages), whole (K and V move together) or auto (rows, until they have cost as much)",
      [](const std::string& text, ServerConfig* config) -> std::string {
        const auto fetch = engine::ValueFetchNamed(text);
        if (!fetch) return "expected auto, rows or whole";
        config->values.fetch = *fetch;
        return {};
      },
      [](const ServerConfig& config) { return std::string(engine::NameOf(config.values.fetch)); }};
}

std::vector<Key> ValueKeys() {
  return {ValueModeKey(),    ValueOverrideKey(),   ValueEstimatorKey(), ValueBudgetKey(),
          ValueSamplesKey(), ValueMaxSamplesKey(), ValueFetchKey()};
}

Key ResidencyKey() {
  return {
      "residency",
      "where KV lives: device, tiered (host pool, the device a cache of it) or auto (the device "
      "while it lasts)",
      [](const std::string& text, ServerConfig* config) -> std::string {
        const auto mode = engine::ResidencyNamed(text);
        if (!mode) return "expected device, tiered or auto";
        config->residency = *mode;
        return {};
      },
      [](const ServerConfig& config) { return engine::NameOf(config.residency); }};
}

std::vector<Key> AttentionKeys() {
  using C = ServerConfig;
  constexpr int64_t kMostBlocks = 1 << 18;
  return {
      PolicyKey(
          "prefill_policy",
          "blocks that prompt tokens attend to: dense, sparse or forecast; auto: sparse where the "
          "model has a sparse_config, else dense",
          &C::prefill_policy),
      PolicyKey("decode_policy", "blocks that generated tokens attend to: likewise, or infinigen",
                &C::decode_policy),
      BoolKey("policy_override", "requests may choose another policy that is available",
              &C::policy_override),
      AutoIntegerKey("top_k_blocks",
                     "blocks of 64 tokens that a token attends to, forced ones included; auto: the "
                     "model's sparse_config, else 25",
                     &C::top_k_blocks, 1, kMostBlocks),
      AutoIntegerKey("max_top_k_blocks", "most that a request may ask for; auto: top_k_blocks",
                     &C::max_top_k_blocks, 1, kMostBlocks),
      AutoIntegerKey("init_blocks",
                     "first blocks of the sequence that are always attended to; auto: the model's, "
                     "else 1",
                     &C::init_blocks, 0, kMostBlocks),
      AutoIntegerKey("local_blocks",
                     "last blocks likewise, the current one among them; auto: the model's, else 8",
                     &C::local_blocks, 2, kMostBlocks),
      AutoIntegerKey("dense_len",
                     "sequences shorter than this attend to all blocks; -1: none does; auto: the "
                     "model's, else -1",
                     &C::dense_len, -1, 1 << 24),
      TextKey("forecast_heads", "safetensors file of Forecast heads, for the policy forecast",
              &C::forecast_heads, 4096),
      TextKey("infinigen_basis", "safetensors file of bases, for the policy infinigen",
              &C::infinigen_basis, 4096),
  };
}

std::vector<Key> TierKeys() {
  using C = ServerConfig;
  return {
      ResidencyKey(),
      BytesKey("host_kv_bytes",
               "memory for the host pool; half of this machine's, at most 4GiB, unless set",
               &C::host_kv_bytes, 0, int64_t{1} << 46),
      HostKvDtypeKey(),
      AutoIntegerKey(
          "spare_slots",
          "blocks kept on the device for each layer and KV head beyond max_top_k_blocks; "
          "auto: top_k_blocks",
          &C::spare_slots, 0, 1 << 18),
      IntegerKey("staging_blocks",
                 "device blocks that a prefill chunk works in, a multiple of 16, at least "
                 "max_top_k_blocks; 0: 64, or that",
                 &C::staging_blocks, 0, 1 << 18),
      BoolKey("prefetch", "start copies a layer ahead where the policy foretells them",
              &C::prefetch),
      AutoIntegerKey("copy_ctas",
                     "with device: cuda, CTAs that fetch pages in a step; auto: by what steps "
                     "take and wait, from copy_ctas_min to copy_ctas_max",
                     &C::copy_ctas, 1, 64),
      IntegerKey("copy_ctas_min", "with copy_ctas: auto, fewest", &C::copy_ctas_min, 1, 64),
      IntegerKey("copy_ctas_max", "and most", &C::copy_ctas_max, 1, 64),
      IntegerKey("copy_threads", "threads that copy between the pools", &C::copy_threads, 1, 64),
      IntegerKey("transfer_queue", "copies that may wait for them", &C::transfer_queue, 16384,
                 1 << 20),
      BytesKey("link_bytes_per_second",
               "imitate a link of this rate each way, at least 1MiB; 0B: none",
               &C::link_bytes_per_second, 0, int64_t{1} << 46),
      IntegerKey("link_pages_per_second",
                 "and of this many pages a second, at least 100; 0: no limit",
                 &C::link_pages_per_second, 0, 1 << 30),
      DurationKey("link_latency", "and with this delay", &C::link_latency_ns, 0, kSecond),
      IntegerKey("page_check",
                 "self-test: one spilled page in that many is hashed and compared; 0: none",
                 &C::page_check, 0, 1 << 30),
      IntegerKey("device_fault_after",
                 "self-test: the device is taken for broken at this step, so that the process ends "
                 "with status 70; 0: never",
                 &C::device_fault_after, 0, int64_t{1} << 40),
      IntegerKey("recall_every", "steps between measurements of the Forecast's recall; 0: never",
                 &C::recall_every, 0, 1 << 30),
  };
}

std::vector<Key> FrontKeys() {
  using C = ServerConfig;
  return {
      BytesKey("stream_buffer_bytes",
               "text that may wait for a reader before its sequence is paused",
               &C::stream_buffer_bytes, 1 << 10, 1 << 20),
      IntegerKey("stream_buffer_messages", "messages that may wait likewise",
                 &C::stream_buffer_messages, 1, 1 << 20),
      DurationKey("slow_reader_timeout", "how long a sequence stays paused before it is ended",
                  &C::slow_reader_timeout_ns, 10 * kMs, 3600 * kSecond),
      BytesKey("max_message_bytes", "largest request on the wire", &C::max_message_bytes, 4 << 10,
               1 << 30),
      IntegerKey("max_streams", "calls at a time on one connection", &C::max_streams, 1, 1 << 20),
      IntegerKey("intake_threads", "threads that turn text into tokens", &C::intake_threads, 1, 64),
      IntegerKey("intake_requests", "calls that may wait for those", &C::intake_requests, 1,
                 1 << 20),
      BytesKey("intake_bytes", "text and ids of the calls that wait", &C::intake_bytes, 1 << 20,
               int64_t{1} << 40),
      DurationKey("default_deadline",
                  "of completions whose client sets none, from their arrival; 0s: none",
                  &C::default_deadline_ns, 0, 24 * 3600 * kSecond),
      DurationKey("drain_limit", "how long running streams may go on after SIGTERM",
                  &C::drain_limit_ns, 0, 24 * 3600 * kSecond),
      DurationKey("stall_limit", "a step longer than this turns liveness off", &C::stall_limit_ns,
                  kSecond, 24 * 3600 * kSecond),
      BoolKey("reflection", "serve gRPC reflection", &C::reflection),
      LogLevelKey(),
  };
}

const std::vector<Key>& Keys() {
  static const auto* const keys = [] {
    auto* all = new std::vector<Key>(WhatIsServed());
    for (const auto& group : {EngineKeys(), AttentionKeys(), ValueKeys(), TierKeys(), FrontKeys()})
      all->insert(all->end(), group.begin(), group.end());
    return all;
  }();
  return *keys;
}

const Key* FindKey(const std::string& name) {
  for (const Key& key : Keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

const Key& NearestKey(const std::string& name) {
  return *std::min_element(Keys().begin(), Keys().end(), [&](const Key& a, const Key& b) {
    return EditDistance(name, a.name) < EditDistance(name, b.name);
  });
}

absl::Status Apply(const std::string& name, const std::string& value, const std::string& place,
                   ServerConfig* config) {
  const Key* key = FindKey(name);
  if (key == nullptr) {
    // Names are short; what is longer than any of them has no near one worth the search.
    const std::string shown = name.substr(0, 64);
    return absl::InvalidArgumentError(absl::StrCat(place, ": unknown key ", Quoted(shown),
                                                   ", the nearest is \"", NearestKey(shown).name,
                                                   "\""));
  }
  const std::string expected = key->set(value, config);
  if (expected.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(place, ": ", key->name, ": ", expected, ", found ", Quoted(value)));
}

absl::Status ApplyNode(const YAML::Node& name, const YAML::Node& value, const std::string& file,
                       std::set<std::string>* seen, ServerConfig* config) {
  const std::string place = absl::StrCat(file, ":", name.Mark().line + 1);
  if (!name.IsScalar()) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": expected a key, found a list or a map"));
  }
  const std::string& key = name.Scalar();
  if (FindKey(key) != nullptr && !value.IsScalar()) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", key, ": expected one value, found ",
                                                   value.IsNull() ? "nothing" : "a list or a map"));
  }
  if (!seen->insert(key).second) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", Quoted(key), " is given twice"));
  }
  return Apply(key, value.IsScalar() ? value.Scalar() : "", place, config);
}

absl::StatusOr<std::string> ReadFile(const std::string& file) {
  std::error_code error;
  // Fails for what is no regular file: opening a pipe would wait for its writer, signals or not.
  static_cast<void>(std::filesystem::file_size(file, error));
  std::ifstream stream;
  if (!error) stream.open(file, std::ios::binary);
  if (error || !stream) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": cannot read the file", error ? ": " + error.message() : ""));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": cannot read the file"));
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": expected at most ", kMaxFileBytes, " bytes, found more"));
  }
  return text;
}

absl::Status ApplyFile(const std::string& file, ServerConfig* config) {
  const absl::StatusOr<std::string> text = ReadFile(file);
  if (!text.ok()) return text.status();
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(*text);
    if (documents.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": expected one YAML document, found ", documents.size()));
    }
    if (documents.empty() || documents[0].IsNull()) return absl::OkStatus();
    if (!documents[0].IsMap()) {
      return absl::InvalidArgumentError(absl::StrCat(file, ":1: expected a map of keys to values"));
    }
    std::set<std::string> seen;
    for (const auto& entry : documents[0]) {
      absl::Status status = ApplyNode(entry.first, entry.second, file, &seen, config);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ":", error.mark.line + 1, ": not valid YAML: ", OneLine(error.msg)));
  }
}

std::string FolderName(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::weakly_canonical(folder, error);
  if (error) path = folder;
  if (!path.has_filename()) path = path.parent_path();  // a trailing slash
  const std::string name = path.filename().string();
  return name.empty() ? "model" : name;
}

// A step waits for its copies: a link that needs minutes for them would hold up everything else.
absl::Status CheckLink(const ServerConfig& config) {
  if (config.link_bytes_per_second != 0 && config.link_bytes_per_second < 1 << 20) {
    return absl::InvalidArgumentError(
        absl::StrCat("link_bytes_per_second: expected 0B or at least 1MiB, found ",
                     FormatBytes(config.link_bytes_per_second)));
  }
  if (config.link_pages_per_second != 0 && config.link_pages_per_second < 100) {
    return absl::InvalidArgumentError(absl::StrCat(
        "link_pages_per_second: expected 0 or at least 100, found ", config.link_pages_per_second));
  }
  return absl::OkStatus();
}

absl::Status FillTiers(const MachineLimits& machine, ServerConfig* config) {
  if (absl::Status link = CheckLink(*config); !link.ok()) return link;
  if (config->copy_ctas_min > config->copy_ctas_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("copy_ctas_min: expected at most copy_ctas_max, ", config->copy_ctas_max,
                     ", found ", config->copy_ctas_min));
  }
  if (config->residency == engine::ResidencyMode::kDevice) return absl::OkStatus();
  if (config->host_kv_bytes == 0) {
    config->host_kv_bytes =
        std::clamp<int64_t>(machine.memory_bytes / 2, 1 << 20, kDefaultHostKvBytes);
  }
  if (config->kv_bytes + config->host_kv_bytes > machine.memory_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host_kv_bytes: expected at most what kv_bytes leaves of this machine's memory, ",
        FormatBytes(std::max<int64_t>(0, machine.memory_bytes - config->kv_bytes)), ", found ",
        FormatBytes(config->host_kv_bytes)));
  }
  return absl::OkStatus();
}

// What depends on other keys or on the machine, and the rules between keys.
absl::Status FillDerived(const MachineLimits& machine, ServerConfig* config) {
  if (!config->model.empty() && !config->random_weights.empty()) {
    return absl::InvalidArgumentError("random_weights: expected nothing beside model, found both");
  }
  if (config->served_name.empty() && !config->random_weights.empty()) {
    config->served_name = "random";
  }
  if (config->served_name.empty() && !config->model.empty()) {
    config->served_name = FolderName(config->model);
    if (config->served_name.size() > kMaxNameBytes || !IsPrintable(config->served_name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "served_name: expected at most ", kMaxNameBytes,
          " bytes of UTF-8 without control characters, found the model folder's name; give "
          "--served-name"));
    }
  }
  if (config->device == "auto") {
    const bool has_cuda = machine.has_cuda_device != nullptr && machine.has_cuda_device();
    config->device = has_cuda ? "cuda:0" : "cpu";
  }
  if (config->kv_bytes == 0 && config->device == "cpu") {
    config->kv_bytes = std::clamp<int64_t>(machine.memory_bytes / 4, 1 << 20, kDefaultKvBytes);
  }
  if (config->threads == 0) config->threads = std::clamp(machine.cpus, 1, 1024);
  const int64_t least = config->batch + kMinPrefillRows;
  if (config->batched_tokens == 0) config->batched_tokens = std::max<int64_t>(512, least);
  if (config->batched_tokens < least) {
    return absl::InvalidArgumentError(absl::StrCat("batched_tokens: expected at least batch + ",
                                                   kMinPrefillRows, " = ", least, ", found ",
                                                   config->batched_tokens));
  }
  if (config->context != 0 && config->context < kBlockTokens) {
    return absl::InvalidArgumentError(absl::StrCat("context: expected 0 or at least ", kBlockTokens,
                                                   ", found ", config->context));
  }
  return FillTiers(machine, config);
}

}  // namespace

int CudaDeviceOf(const std::string& device) {
  constexpr std::string_view kPrefix = "cuda:";
  if (!device.starts_with(kPrefix)) return -1;
  const std::optional<int64_t> index = ParseInteger(device.substr(kPrefix.size()));
  return index && *index >= 0 && *index < 64 ? static_cast<int>(*index) : -1;
}

absl::StatusOr<ServerConfig> LoadServerConfig(const std::string& file,
                                              const std::vector<ConfigOverride>& overrides,
                                              const MachineLimits& machine) {
  ServerConfig config;
  if (!file.empty()) {
    absl::Status status = ApplyFile(file, &config);
    if (!status.ok()) return status;
  }
  for (const ConfigOverride& override_ : overrides) {
    absl::Status status = Apply(override_.key, override_.value, override_.place, &config);
    if (!status.ok()) return status;
  }
  absl::Status status = FillDerived(machine, &config);
  if (status.ok()) return config;
  if (file.empty()) return status;
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", status.message()));
}

std::string FormatServerConfig(const ServerConfig& config) {
  std::string text;
  for (const Key& key : Keys()) {
    absl::StrAppend(&text, key.name, ": ", key.format(config), "  # ", key.meaning, "\n");
  }
  return text;
}

std::vector<std::string> ServerConfigKeys() {
  std::vector<std::string> names;
  for (const Key& key : Keys()) names.push_back(key.name);
  return names;
}

}  // namespace augur::server
