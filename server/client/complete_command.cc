#include "server/client/complete_command.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "augur/v1/completions.grpc.pb.h"
#include "server/client/connection.h"
#include "server/client/exit_status.h"
#include "server/client/interrupt.h"
#include "server/client/logprob_lines.h"
#include "server/client/printing.h"
#include "server/client/progress_bar.h"
#include "server/client/prompt_input.h"

namespace augur::client {
namespace {

struct CompleteOptions {
  ConnectionOptions connection;
  std::string file;
  std::string text;
  std::string question;

  std::string model;
  std::string request_id;
  std::string cache_salt;
  bool bypass_prefix_cache = false;
  bool no_special_tokens = false;
  bool no_parse_special = false;
  int32_t priority = 0;

  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<uint64_t> seed;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::vector<std::string> logit_bias;  // ID=BIAS
  std::vector<uint32_t> allowed_token_ids;
  std::optional<uint32_t> n;

  uint32_t max_tokens = 256;
  uint32_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop = false;

  std::string policy;
  std::string prefill_policy;
  std::optional<uint32_t> top_k_blocks;
  std::string values;
  std::optional<uint32_t> value_samples;

  bool show_special_tokens = false;
  bool echo = false;
  std::optional<uint32_t> logprobs;
  std::string progress = "auto";
  bool timings = false;
  bool quiet = false;
};

void AddPromptOptions(CLI::App* command, CompleteOptions* options) {
  command->add_option("TEXT", options->text, "The prompt, where no file is given")->type_name(" ");
  command->add_option("-f,--file", options->file, "Document to read, \"-\" for standard input")
      ->type_name("FILE");
  command
      ->add_option(
          "-q,--question", options->question,
          "Asked after the document, on a line that begins with\n\"Question: \"; end it with the "
          "beginning of the answer when the\nmodel only continues text")
      ->type_name("TEXT");
  command->add_option("--model", options->model, "Refuse to be served by another model")
      ->type_name("NAME");
  command->add_option("--request-id", options->request_id, "Label for the daemon's log")
      ->type_name("ID");
  command
      ->add_option("--cache-salt", options->cache_salt,
                   "Share cached prefixes only with calls of the same salt")
      ->type_name("TEXT");
  command->add_flag("--no-prefix-cache", options->bypass_prefix_cache, "Compute the whole prompt");
  command->add_flag("--no-special-tokens", options->no_special_tokens, "Add no begin token");
  command->add_flag("--no-parse-special", options->no_parse_special,
                    "Take special tokens that the text spells out as plain text");
  command
      ->add_option("--priority", options->priority,
                   "A higher number goes first in the daemon's queue; 0 where not given")
      ->type_name("N");
}

// Options that belong together in the help.
class OptionGroup {
 public:
  OptionGroup(CLI::App* command, const char* name) : command_(command), name_(name) {}

  template <typename T>
  CLI::Option* Add(const char* option, T* value, const char* type, const char* help) {
    return command_->add_option(option, *value, help)->type_name(type)->group(name_);
  }
  template <typename T>
  void AddList(const char* option, std::vector<T>* values, const char* type, const char* help) {
    Add(option, values, type, help)
        ->expected(1)
        ->allow_extra_args(false)  // the argument behind it is TEXT
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  void AddFlag(const char* option, bool* value, const char* help) {
    command_->add_flag(option, *value, help)->group(name_);
  }

 private:
  CLI::App* const command_;
  const char* const name_;
};

void AddSamplingOptions(CLI::App* command, CompleteOptions* options) {
  OptionGroup group(command, "Sampling and stopping");
  group.Add("--max-tokens", &options->max_tokens, "N", "End after so many tokens")
      ->capture_default_str();
  group.Add("--min-tokens", &options->min_tokens, "N", "No end-of-sequence before so many tokens");
  group.Add("--temperature", &options->temperature, "T",
            "0: always the likeliest token; the daemon's default is 1");
  group.Add("--top-k", &options->top_k, "K", "Draw from the K likeliest tokens; 0: off");
  group.Add("--top-p", &options->top_p, "P", "Draw from the likeliest tokens that have P together");
  group.Add("--min-p", &options->min_p, "P", "Leave out tokens below P times the likeliest");
  group.Add("--repetition-penalty", &options->repetition_penalty, "R",
            "Above 1: tokens of the prompt and the answer become less likely");
  group.Add("--presence-penalty", &options->presence_penalty, "P",
            "Above 0: tokens of the answer become less likely");
  group.Add("--frequency-penalty", &options->frequency_penalty, "P",
            "Above 0: likewise, more so the more often they came");
  // CLI11 would wrap a negative or too large number around.
  group.Add("--seed", &options->seed, "N", "Makes a sampled answer repeatable")
      ->check([](const std::string& text) {
        uint64_t value = 0;
        const char* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        return error == std::errc() && stop == end
                   ? ""
                   : "expected an integer from 0 to 18446744073709551615, found " + text;
      });
  group.AddList("--stop", &options->stop, "TEXT",
                "End before this text, may be given several times;\nin bash a line end is $'\\n'");
  group.AddList("--stop-token-id", &options->stop_token_ids, "ID",
                "End at this token, may be given several times");
  group.AddFlag("--ignore-eos", &options->ignore_eos, "Go on past end-of-sequence tokens");
  group.AddFlag("--include-stop", &options->include_stop, "Show the stop text that was found");
  group.AddList("--logit-bias", &options->logit_bias, "ID=BIAS",
                "Make a token likelier (up to 100) or less likely (down to\n-100), may be given "
                "several times");
  group.AddList("--allowed-token-id", &options->allowed_token_ids, "ID",
                "Draw no token but those given");
  group.Add("-n,--choices", &options->n, "N",
            "So many answers; each is printed when it is whole,\nbelow a line that names it");
}

const std::map<std::string, v1::AttentionPolicy> kPolicies = {
    {"dense", v1::ATTENTION_POLICY_DENSE},
    {"sparse", v1::ATTENTION_POLICY_SPARSE},
    {"infinigen", v1::ATTENTION_POLICY_INFINIGEN},
    {"forecast", v1::ATTENTION_POLICY_FORECAST}};

void AddAttentionOptions(CLI::App* command, CompleteOptions* options) {
  OptionGroup group(command, "Attention (where the daemon leaves it to its clients)");
  group.Add("--policy", &options->policy, "NAME", "dense, sparse, infinigen or forecast")
      ->check(CLI::IsMember({"dense", "sparse", "infinigen", "forecast"}).description(""));
  group
      .Add("--prefill-policy", &options->prefill_policy, "NAME",
           "Of the prompt alone: dense, sparse or forecast")
      ->check(CLI::IsMember({"dense", "sparse", "forecast"}).description(""));
  group.Add("--top-k-blocks", &options->top_k_blocks, "K",
            "Blocks of 64 tokens that a token attends to");
  group.Add("--values", &options->values, "MODE", "exact or sampled")
      ->check(CLI::IsMember({"exact", "sampled"}).description(""));
  group.Add("--value-samples", &options->value_samples, "S", "Samples of a generated token");
}

// False: not ID=BIAS.
bool AddBias(const std::string& text, v1::SamplingParams* sampling) {
  const size_t sign = text.find('=');
  if (sign == std::string::npos) return false;
  uint32_t id = 0;
  float bias = 0;
  const char* end = text.data() + text.size();
  const auto [id_end, id_error] = std::from_chars(text.data(), text.data() + sign, id);
  const auto [bias_end, bias_error] = std::from_chars(text.data() + sign + 1, end, bias);
  if (id_error != std::errc() || id_end != text.data() + sign) return false;
  if (bias_error != std::errc() || bias_end != end) return false;
  (*sampling->mutable_logit_bias())[id] = bias;
  return true;
}

void FillAttention(const CompleteOptions& options, v1::AttentionOptions* attention) {
  if (!options.policy.empty()) attention->set_policy(kPolicies.at(options.policy));
  if (!options.prefill_policy.empty()) {
    attention->set_prefill_policy(kPolicies.at(options.prefill_policy));
  }
  if (options.top_k_blocks) attention->set_top_k_blocks(*options.top_k_blocks);
  if (options.values == "exact") attention->set_value_mode(v1::VALUE_MODE_EXACT);
  if (options.values == "sampled") attention->set_value_mode(v1::VALUE_MODE_SAMPLED);
  if (options.value_samples) attention->set_value_samples(*options.value_samples);
}

void AddOutputOptions(CLI::App* command, CompleteOptions* options) {
  command->add_flag("--echo", options->echo, "Print the prompt before the answer")
      ->group("What standard output shows");
  OptionGroup group(command, "What standard error shows");
  group.Add("--logprobs", &options->logprobs, "N",
            "At the end, one a line: the log probability and rank of\nevery token, and the N "
            "likeliest, 0 to 20; with --echo of\nthe prompt's, too");
  group
      .Add("--progress", &options->progress, "WHEN",
           "Prefill progress: auto (a bar, on a terminal only),\nalways (lines where there is no "
           "terminal) or never")
      ->check(CLI::IsMember({"auto", "always", "never"}).description(""))
      ->capture_default_str();
  group.AddFlag("--timings", &options->timings, "All timings at the end, one a line");
  group.AddFlag("--quiet", &options->quiet, "Errors only");
  command->add_flag("--show-special-tokens", options->show_special_tokens,
                    "Print special tokens of the answer, too");
}

v1::CompleteRequest MakeRequest(const CompleteOptions& options, std::string prompt, bool progress) {
  v1::CompleteRequest request;
  request.set_request_id(options.request_id);
  request.set_model(options.model);
  request.set_text(std::move(prompt));
  request.set_cache_salt(options.cache_salt);
  request.set_bypass_prefix_cache(options.bypass_prefix_cache);
  if (options.no_special_tokens) request.set_add_special_tokens(false);
  if (options.no_parse_special) request.set_parse_special(false);
  request.set_priority(options.priority);

  v1::SamplingParams* sampling = request.mutable_sampling();
  if (options.temperature) sampling->set_temperature(*options.temperature);
  if (options.top_k) sampling->set_top_k(*options.top_k);
  if (options.top_p) sampling->set_top_p(*options.top_p);
  if (options.min_p) sampling->set_min_p(*options.min_p);
  if (options.seed) sampling->set_seed(*options.seed);
  if (options.repetition_penalty) sampling->set_repetition_penalty(*options.repetition_penalty);
  if (options.presence_penalty) sampling->set_presence_penalty(*options.presence_penalty);
  if (options.frequency_penalty) sampling->set_frequency_penalty(*options.frequency_penalty);
  for (const std::string& bias : options.logit_bias) AddBias(bias, sampling);
  for (const uint32_t id : options.allowed_token_ids) sampling->add_allowed_token_ids(id);
  if (options.n) sampling->set_n(*options.n);

  v1::StoppingCriteria* stopping = request.mutable_stopping();
  stopping->set_max_tokens(options.max_tokens);
  stopping->set_min_tokens(options.min_tokens);
  for (const std::string& stop : options.stop) stopping->add_stop(stop);
  for (const uint32_t id : options.stop_token_ids) stopping->add_stop_token_ids(id);
  stopping->set_ignore_eos(options.ignore_eos);
  stopping->set_include_stop(options.include_stop);

  v1::OutputOptions* output = request.mutable_output();
  output->set_progress(progress);
  if (options.show_special_tokens) output->set_skip_special_tokens(false);
  output->set_echo(options.echo);
  if (options.logprobs) output->set_logprobs(*options.logprobs);
  if (options.logprobs && options.echo) output->set_prompt_logprobs(*options.logprobs);
  FillAttention(options, request.mutable_attention());
  return request;
}

std::string ReasonOf(const v1::Finished& finished) {
  switch (finished.finish_reason()) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_EOS:
      return "end of sequence";
    default:
      return "unknown";
  }
}

void PrintSummary(const v1::Finished& finished) {
  const v1::Usage& usage = finished.usage();
  const v1::Timings& timings = finished.timings();
  std::fprintf(
      stderr, "%s prompt tokens (%s cached), %s generated (%s); first token %s, total %s\n",
      WithThousands(usage.prompt_tokens()).c_str(), WithThousands(usage.cached_tokens()).c_str(),
      WithThousands(usage.completion_tokens()).c_str(), ReasonOf(finished).c_str(),
      FormatMilliseconds(timings.first_token_ms()).c_str(),
      FormatMilliseconds(timings.total_ms()).c_str());
}

void PrintTimings(const v1::Finished& finished) {
  const v1::Usage& usage = finished.usage();
  const v1::Timings& timings = finished.timings();
  const uint32_t computed =
      usage.prompt_tokens() - std::min(usage.cached_tokens(), usage.prompt_tokens());
  std::fprintf(stderr, "prompt tokens     %s\n", WithThousands(usage.prompt_tokens()).c_str());
  std::fprintf(stderr, "  from the cache  %s\n", WithThousands(usage.cached_tokens()).c_str());
  std::fprintf(stderr, "generated tokens  %s\n", WithThousands(usage.completion_tokens()).c_str());
  std::fprintf(stderr, "finish reason     %s\n", ReasonOf(finished).c_str());
  std::fprintf(stderr, "queue             %s\n", FormatMilliseconds(timings.queue_ms()).c_str());
  std::fprintf(stderr, "prefill           %s", FormatMilliseconds(timings.prefill_ms()).c_str());
  if (timings.prefill_ms() > 0) {
    std::fprintf(
        stderr, "  (%s tokens/s)",
        WithThousands(static_cast<uint64_t>(1000.0 * computed / timings.prefill_ms())).c_str());
  }
  std::fprintf(stderr, "\nfirst token       %s\n",
               FormatMilliseconds(timings.first_token_ms()).c_str());
  std::fprintf(stderr, "decode            %s\n", FormatMilliseconds(timings.decode_ms()).c_str());
  std::fprintf(stderr, "  between tokens  %s\n",
               FormatMilliseconds(timings.mean_inter_token_ms()).c_str());
  std::fprintf(stderr, "total             %s\n", FormatMilliseconds(timings.total_ms()).c_str());
}

// Prints what one stream brings: of several choices each when it is whole.
class StreamPrinter {
 public:
  StreamPrinter(bool stderr_is_terminal, bool several)
      : bar_(stderr_is_terminal), several_(several) {}

  // False when standard output takes no more.
  bool Print(const v1::CompleteResponse& response) {
    if (response.has_progress()) {
      bar_.Show(response.progress());
    } else if (response.has_prompt_tokens()) {
      KeepLogprobs(response.prompt_tokens().logprobs(), &prompt_logprobs_);
      return Show(response.prompt_tokens().text());
    } else if (response.has_chunk()) {
      const v1::TokenChunk& chunk = response.chunk();
      KeepLogprobs(chunk.logprobs(), &logprobs_[chunk.index()]);
      if (!several_) return Show(chunk.text());
      texts_[chunk.index()] += chunk.text();
    } else if (response.has_finished()) {
      TakeFinished(response.finished());
      if (several_) return PrintChoice(response.finished());
    }
    return true;
  }

  // Leaves the cursor at the beginning of a line, for what follows on a terminal.
  void Close() {
    bar_.Clear();
    if (!ends_line_ && isatty(STDOUT_FILENO) != 0) WriteOut("\n");
  }

  // What came of them, a line a token: the prompt's, then each choice's.
  std::string logprobs() const {
    std::string all = prompt_logprobs_;
    for (const auto& [choice, lines] : logprobs_) {
      if (several_ && !lines.empty()) all += "--- choice " + std::to_string(choice) + "\n";
      all += lines;
    }
    return all;
  }

  // Of several choices the one that ended last, with the tokens of all.
  const std::optional<v1::Finished>& finished() const { return finished_; }

 private:
  bool Show(const std::string& text) {
    if (text.empty()) return true;
    bar_.Clear();
    ends_line_ = text.back() == '\n';
    return WriteOut(text);
  }

  static void KeepLogprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& logprobs,
                           std::string* lines) {
    for (const v1::TokenLogprobs& one : logprobs) *lines += LogprobLine(one);
  }

  void TakeFinished(const v1::Finished& finished) {
    const uint32_t before = finished_ ? finished_->usage().completion_tokens() : 0;
    finished_ = finished;
    v1::Usage* usage = finished_->mutable_usage();
    usage->set_completion_tokens(before + usage->completion_tokens());
  }

  bool PrintChoice(const v1::Finished& finished) {
    bar_.Clear();
    // A prompt that was echoed need not end a line.
    if (!ends_line_ && !WriteOut("\n")) return false;
    ends_line_ = true;
    return WriteOut("--- choice " + std::to_string(finished.index()) + " (" + ReasonOf(finished) +
                    ")\n" + texts_[finished.index()] + "\n");
  }

  ProgressBar bar_;
  const bool several_;
  std::map<uint32_t, std::string> texts_;  // of several choices
  bool ends_line_ = true;
  std::string prompt_logprobs_;
  std::map<uint32_t, std::string> logprobs_;  // by choice
  std::optional<v1::Finished> finished_;
};

int Stream(const CompleteOptions& options, const v1::CompleteRequest& request,
           bool stderr_is_terminal) {
  grpc::ClientContext context;
  const InterruptWatch interrupt(&context);
  SetDeadline(options.connection, &context);
  const auto stub = v1::Completions::NewStub(Connect(options.connection));
  const auto reader = stub->Complete(&context, request);

  StreamPrinter printer(stderr_is_terminal, request.sampling().n() > 1);
  v1::CompleteResponse response;
  bool output_open = true;
  while (output_open && reader->Read(&response)) output_open = printer.Print(response);
  if (!output_open) {
    context.TryCancel();
    while (reader->Read(&response)) continue;
  }
  const grpc::Status status = reader->Finish();
  printer.Close();

  if (interrupt.interrupted()) {
    PrintError("interrupted, the call is cancelled");
    return kExitInterrupted;
  }
  if (!output_open) {
    PrintError("standard output takes no more, the call is cancelled");
    return kExitFailed;
  }
  if (!status.ok()) {
    PrintFailure(options.connection, status);
    return kExitFailed;
  }
  if (!printer.finished()) {
    PrintError("the stream ended well but without a result");
    return kExitFailed;
  }
  std::fputs(printer.logprobs().c_str(), stderr);
  if (options.timings) PrintTimings(*printer.finished());
  if (!options.timings && !options.quiet) PrintSummary(*printer.finished());
  return kExitOk;
}

int RunComplete(const CompleteOptions& options) {
  if (!options.text.empty() && !options.file.empty()) {
    PrintError("give TEXT or --file, not both");
    return kExitUsage;
  }
  if (options.timings && options.quiet) {
    PrintError("give --timings or --quiet, not both");
    return kExitUsage;
  }
  v1::SamplingParams ignored;
  for (const std::string& bias : options.logit_bias) {
    if (AddBias(bias, &ignored)) continue;
    PrintError("--logit-bias: expected ID=BIAS, found " + bias);
    return kExitUsage;
  }
  if (options.logprobs && options.quiet) {
    PrintError("give --logprobs or --quiet, not both");
    return kExitUsage;
  }
  std::string document = options.text;
  if (!options.file.empty()) {
    absl::StatusOr<std::string> text = ReadTextFile(options.file);
    if (!text.ok()) {
      PrintError(std::string(text.status().message()));
      return kExitUsage;
    }
    document = *std::move(text);
  }
  if (document.empty()) {
    PrintError("nothing to complete: give TEXT, or a document with -f FILE");
    return kExitUsage;
  }
  const bool stderr_is_terminal = isatty(STDERR_FILENO) != 0;
  const bool progress = !options.quiet && (options.progress == "always" ||
                                           (options.progress == "auto" && stderr_is_terminal));
  const v1::CompleteRequest request =
      MakeRequest(options, JoinPrompt(std::move(document), options.question), progress);
  return Stream(options, request, stderr_is_terminal);
}

}  // namespace

void AddCompleteCommand(CLI::App* app, std::function<int()>* run) {
  CLI::App* command =
      app->add_subcommand("complete", "Send a document and a question, print the answer");
  const auto options = std::make_shared<CompleteOptions>();  // shared: CLI11 copies the callback
  AddPromptOptions(command, options.get());
  AddSamplingOptions(command, options.get());
  AddAttentionOptions(command, options.get());
  AddOutputOptions(command, options.get());
  AddConnectionOptions(command, &options->connection);
  command->footer(
      "The text goes to standard output as it comes, everything else to standard error.\n"
      "Ctrl-C cancels the call.\n\n"
      "  augur complete --temperature 0 -f report.txt -q 'Who wrote this? This was written by'\n"
      "  git log | augur complete -f - -q 'What changed last? The last change' --stop $'\\n'\n");
  command->callback([options, run] { *run = [options] { return RunComplete(*options); }; });
}

}  // namespace augur::client
