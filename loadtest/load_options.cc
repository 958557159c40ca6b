#include "loadtest/load_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "loadtest/command_line.h"

namespace augur::loadtest {
namespace {

constexpr size_t kMostSaltBytes = 32;
constexpr double kDefaultDurationS = 30;

// Options that belong together in the help.
class OptionGroup {
 public:
  OptionGroup(CLI::App* app, const char* name) : app_(app), name_(name) {}

  template <typename T>
  CLI::Option* Add(const char* option, T* value, const char* type, const char* text) {
    return app_->add_option(option, *value, text)->type_name(type)->group(name_);
  }
  // With its default in the help.
  template <typename T>
  CLI::Option* AddShown(const char* option, T* value, const char* type, const char* text) {
    return Add(option, value, type, text)->capture_default_str();
  }
  template <typename T>
  void AddNumber(const char* option, T* value, const char* type, double low, double high,
                 const char* text) {
    AddShown(option, value, type, text)->check(Between(low, high));
  }
  void AddFlag(const char* option, bool* value, const char* text) {
    app_->add_flag(option, *value, text)->group(name_);
  }

 private:
  CLI::App* const app_;
  const char* const name_;
};

void AddConnectionFlags(CLI::App* app, LoadFlags* flags) {
  OptionGroup group(app, "Daemon");
  LoadOptions* options = &flags->options;
  RunnerOptions* runner = &options->runner;
  group.AddShown("--address,--server", &runner->address, "HOST:PORT", "Address of augurd");
  group.Add("--metrics", &options->metrics, "HOST:PORT",
            "Where augurd exports metrics: adds what it says of itself");
  group.AddNumber("--metrics-interval", &options->metrics_interval_s, "SECONDS", 0.05, 3600,
                  "Between two looks at them");
  group.AddNumber("--connections", &runner->connections, "N", 1, 256,
                  "HTTP/2 connections that requests are spread over; slow\nreaders have one more");
  group.AddNumber("--threads", &runner->threads, "N", 1, 64, "Threads that read streams");
  group.AddNumber("--call-limit", &runner->call_limit_s, "SECONDS", 0, 1e6,
                  "Deadline of requests that have none of --deadline-share; 0: none");
  group.AddNumber("--drain-limit", &runner->drain_limit_s, "SECONDS", 0, 1e6,
                  "After a stage's last send; what is still open then is lost");
}

void AddLoadShapeFlags(CLI::App* app, LoadFlags* flags) {
  LoadOptions* options = &flags->options;
  OptionGroup closed(app, "Closed loop: so many requests are always under way");
  closed.Add("--concurrency,--batch", &flags->concurrency, "N,...", "Batch sizes, a stage each")
      ->delimiter(',')
      ->check(CLI::Range(1, 16'384).description(""));
  closed.AddNumber("--ramp-up", &options->ramp_s, "SECONDS", 0, 1e6,
                   "Spread the first requests of a stage over this time");

  OptionGroup open(app, "Open loop: requests have times, whatever the daemon does");
  open.Add("--rate", &flags->rates, "RPS,...", "Requests a second, a stage each")
      ->delimiter(',')
      ->check(Between(1e-6, 1e6));
  open.AddShown("--arrivals", &flags->arrivals, "poisson|gamma|constant|trace", "How they arrive");
  open.AddNumber("--burstiness", &options->arrivals.burstiness, "SHAPE", 1e-3, 1e6,
                 "Of gamma: below 1 in bursts, above 1 more even");
  open.Add("--trace", &flags->trace, "FILE",
           "Times of arrival: a line is seconds, or JSON with timestamp\n(ms) and perhaps "
           "input_length, output_length");
  open.AddNumber("--trace-speed", &options->trace_speed, "FACTOR", 1e-6, 1e6,
                 "Play the trace so many times as fast");
  open.AddShown("--ramp", &flags->ramp, "none|linear|exponential",
                "Change the rate from --ramp-from to --rate");
  open.AddNumber("--ramp-from", &options->arrivals.ramp_from, "RPS", 1e-6, 1e6, "Where it begins");
  open.AddNumber("--ramp-seconds", &options->arrivals.ramp_s, "SECONDS", 0, 1e6,
                 "How long it takes; 0: the stage's --duration");
  open.AddNumber("--max-concurrency", &options->max_in_flight, "N", 0, 1e6,
                 "More wait in the client, and their times count the wait;\n0: no limit");
}

void AddStageFlags(CLI::App* app, LoadFlags* flags) {
  LoadOptions* options = &flags->options;
  OptionGroup group(app, "Stages");
  group.AddNumber("--requests", &options->requests, "N", 0, static_cast<double>(kMostRequests),
                  "Of each stage; 0: closed loop four times the batch size, at\nleast 16, and open "
                  "loop as many as --duration has");
  group.AddNumber("--duration", &options->duration_s, "SECONDS", 0, 1e6,
                  "A stage sends no longer than this; 0: closed loop no limit,\nopen loop 30 "
                  "unless --requests is given");
  group.AddNumber("--warmup", &options->warmup, "N", 0, 1e6,
                  "Requests before the first stage that no figure counts");
  group.AddNumber("--seed", &flags->seed, "N", 0, 1e18, "Fixes the whole plan");
  group.AddFlag("--dry-run", &options->dry_run, "Print the plan as JSON lines and send nothing");

  OptionGroup sweep(app, "Sweep until the daemon is over-saturated");
  sweep.AddShown("--sweep", &flags->sweep, "none|batch|rate",
                 "batch: 1, 2, 4, ... requests under way; rate: requests a\nsecond from "
                 "--sweep-start on");
  sweep.AddNumber("--sweep-start", &options->sweep_start, "N", 1e-6, 1e6,
                  "First rate or batch size");
  sweep.AddNumber("--sweep-most", &options->sweep_most, "N", 1, 16'384, "Last batch size");
  sweep.AddNumber("--sweep-factor", &options->sweep_factor, "FACTOR", 1.01, 100,
                  "From one rate to the next");
  sweep.AddNumber("--sweep-stages", &options->sweep_stages, "N", 1, 1000, "Rates at most");
  sweep.AddNumber("--sweep-refine", &options->sweep_refine, "N", 0, 100,
                  "Rates between the last good one and the first bad one");
  sweep.AddNumber("--backlog-limit", &options->saturation.backlog_share, "SHARE", 0, 1,
                  "Over-saturated: the backlog grows by more than this share\nof the offered rate");
  sweep.AddNumber("--refusal-limit", &options->saturation.refused_share, "SHARE", 0, 1,
                  "Or more than this share is refused or fails");
  sweep.AddNumber(
      "--flat-limit", &options->saturation.flat_gain, "SHARE", 0, 10,
      "Or, over batch sizes, twice in a row output tokens/s gain\nless than this share");
}

void AddPromptFlags(CLI::App* app, LoadFlags* flags) {
  LoadOptions* options = &flags->options;
  PromptOptions* prompts = &options->prompts;
  OptionGroup group(app, "Prompts");
  group.AddShown("--prompts", &flags->prompts, "random|prose|needle|file", "Where they come from");
  group.Add("--text", &prompts->text_files, "FILE", "UTF-8 files for prose and needle");
  group.Add("--prompt-file", &prompts->prompt_file, "FILE",
            "Lines of text, or JSON with prompt or token_ids, and perhaps\nmax_tokens, answer");
  group.AddShown("--input-len", &flags->input, "LENGTHS",
                 "Tokens of a prompt: N, uniform:LOW,HIGH, normal:MEAN,SD,\nlognormal:MEAN,SD or "
                 "file:PATH");
  group.AddShown("--output-len", &flags->output, "LENGTHS",
                 "max_tokens, written alike; for needle 16 unless given");
  group.AddNumber("--shared-prefix", &options->workload.shared_prefix, "SHARE", 0, 1,
                  "Share of a random or prose prompt that its group has alike");
  group.AddNumber("--prefix-groups", &options->workload.prefix_groups, "N", 1, 1e6, "Groups");
  group.AddShown("--task", &flags->task, "NAME",
                 "What needle documents hide: one of augur-eval's tasks");
  group.AddNumber("--documents", &prompts->documents, "N", 1, 10'000, "Of needle");
  group.AddNumber("--questions", &prompts->questions, "N", 1, 10'000, "About each document");
  group.AddNumber("--distractors", &prompts->distractors, "N", 0, 10'000,
                  "Facts in each document that nobody asks for");

  OptionGroup request(app, "Requests");
  request.AddNumber("--temperature", &options->defaults.temperature, "T", 0, 100, "0: greedy");
  request.AddShown("--ignore-eos", &flags->ignore_eos, "auto|yes|no",
                   "Generate max_tokens in any case; auto: for random and prose");
  request.Add("--stop", &options->defaults.stop, "TEXT",
              "Ends a completion; needle: a line end unless given");
  request.AddFlag("--bypass-prefix-cache", &options->defaults.bypass_prefix_cache,
                  "Compute every prompt whole");
  request.Add("--cache-salt", &flags->salt, "TEXT",
              "Find what another run with this salt left in the prefix\ncache; at most 32 bytes");
}

void AddMixFlags(CLI::App* app, LoadFlags* flags) {
  WorkloadSpec* workload = &flags->options.workload;
  OptionGroup group(app, "Mix");
  group.AddNumber("--cancel-share", &workload->cancel_share, "SHARE", 0, 1,
                  "Requests that we cancel");
  group.AddShown("--cancel-after", &flags->cancel_after, "LENGTHS", "Milliseconds after sending");
  group.AddNumber("--deadline-share", &workload->deadline_share, "SHARE", 0, 1,
                  "Requests with a gRPC deadline");
  group.AddShown("--deadline", &flags->deadline, "LENGTHS", "Milliseconds after sending");
  group.AddNumber("--slow-share", &workload->slow_share, "SHARE", 0, 1,
                  "Requests that are read slowly; no latency counts them");
  workload->slow_pause_ms = 200;
  group.AddNumber("--slow-pause", &workload->slow_pause_ms, "MS", 0, 1e6,
                  "Between two messages of theirs");
  group.Add("--priorities", &flags->priorities, "N[*WEIGHT],...", "For example 0*9,5");
  group.Add("--choices", &flags->choices, "N[*WEIGHT],...",
            "Choices of a request (sampling.n), for example 1*9,4");
  group.Add("--attention", &flags->attention, "[POLICY/]POLICY[/k=N][/values=exact|N][*WEIGHT],...",
            "Attention overrides: default, dense, sparse, infinigen,\nforecast, of two the first "
            "for prompts, with blocks and\nvalue samples");
}

void AddReportFlags(CLI::App* app, LoadFlags* flags) {
  LoadOptions* options = &flags->options;
  OptionGroup group(app, "Report");
  group
      .Add("--goodput", &flags->goodput, "ttft:MS|tpot:MS|e2el:MS,...",
           "Limits that a good request stays within")
      ->delimiter(',');
  options->percentiles = {90, 99};
  group
      .AddShown("--percentiles", &options->percentiles, "P,...",
                "Beside the median; the highest is in the tables")
      ->delimiter(',')
      ->check(Between(0, 100));
  group.Add("--title", &options->title, "TEXT", "Stands above the picture");
  group.Add("--json", &options->json, "FILE", "Write all figures; keys of vLLM's bench");
  group.Add("--csv", &options->csv, "FILE", "Write a line for each stage");
  group.Add("--html", &options->html, "FILE", "Write one page with plots and tables");
  group.Add("--svg", &options->svg, "FILE", "Write the plots alone");
  group.AddFlag("--detailed", &options->runner.keep_records,
                "Every request and its text in the JSON");
  group.AddFlag("--progress", &options->progress,
                "Progress on standard error even if that is no terminal");
}

absl::Status OneOf(const char* flag, const std::string& value, const std::string& known) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": \"", value, "\" is none of ", known));
}

absl::Status ResolvePrompts(const LoadFlags& flags, LoadOptions* options) {
  PromptOptions* prompts = &options->prompts;
  const std::string& name = flags.prompts;
  if (name == "random") {
    prompts->kind = PromptKind::kRandom;
  } else if (name == "prose") {
    prompts->kind = PromptKind::kProse;
  } else if (name == "needle") {
    prompts->kind = PromptKind::kNeedle;
  } else if (name == "file") {
    prompts->kind = PromptKind::kFile;
  } else {
    return OneOf("--prompts", name, "random, prose, needle, file");
  }
  const bool wants_text =
      prompts->kind == PromptKind::kProse || prompts->kind == PromptKind::kNeedle;
  if (wants_text && prompts->text_files.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--prompts: ", name, " needs --text"));
  }
  if (prompts->kind == PromptKind::kFile && prompts->prompt_file.empty()) {
    return absl::InvalidArgumentError("--prompts: file needs --prompt-file");
  }
  const bool is_list = prompts->kind == PromptKind::kNeedle || prompts->kind == PromptKind::kFile;
  if (is_list && options->workload.shared_prefix > 0) {
    return absl::InvalidArgumentError("--shared-prefix: goes with random and prose prompts alone");
  }
  const auto task = TaskOf(flags.task);
  if (!task.ok())
    return absl::InvalidArgumentError(absl::StrCat(
        "--task", std::string(task.status().message().substr(std::string("--tasks").size()))));
  prompts->task = *task;
  prompts->seed = options->seed;
  options->workload.prompts = prompts->kind;
  if (prompts->kind == PromptKind::kNeedle && options->defaults.stop.empty()) {
    options->defaults.stop = {"\n"};
  }
  if (flags.ignore_eos != "auto" && flags.ignore_eos != "yes" && flags.ignore_eos != "no") {
    return OneOf("--ignore-eos", flags.ignore_eos, "auto, yes, no");
  }
  options->defaults.ignore_eos =
      flags.ignore_eos == "yes" || (flags.ignore_eos == "auto" && !is_list);
  return absl::OkStatus();
}

absl::Status ResolveLengths(const LoadFlags& flags, LoadOptions* options) {
  WorkloadSpec* workload = &options->workload;
  const std::string output =
      flags.prompts == "needle" && flags.output == LoadFlags().output ? "16" : flags.output;
  const struct {
    const char* flag;
    const std::string& text;
    LengthDistribution* into;
  } all[] = {{"--input-len", flags.input, &workload->input},
             {"--output-len", output, &workload->output},
             {"--cancel-after", flags.cancel_after, &workload->cancel_after_ms},
             {"--deadline", flags.deadline, &workload->deadline_ms}};
  for (const auto& one : all) {
    auto parsed = ParseLengths(one.flag, one.text);
    if (!parsed.ok()) return parsed.status();
    *one.into = *std::move(parsed);
  }
  options->prompts.input = workload->input;
  SeededDraw draw(options->seed);
  if (workload->output.kind == LengthDistribution::Kind::kFixed) {
    options->prompts.answer_tokens =
        static_cast<uint32_t>(DrawLength(workload->output, 1, 1 << 30, &draw));
  }
  return absl::OkStatus();
}

absl::Status ResolveMix(const LoadFlags& flags, LoadOptions* options) {
  if (!flags.priorities.empty()) {
    auto mix = ParsePriorityMix(flags.priorities);
    if (!mix.ok()) return mix.status();
    options->workload.priorities = *std::move(mix);
  }
  if (!flags.choices.empty()) {
    auto mix = ParseChoiceMix(flags.choices);
    if (!mix.ok()) return mix.status();
    options->workload.choices = *std::move(mix);
  }
  if (!flags.attention.empty()) {
    auto mix = ParseAttentionMix(flags.attention);
    if (!mix.ok()) return mix.status();
    options->workload.attention = *std::move(mix);
    options->defaults.attention = options->workload.attention;
  }
  const auto goodput = ParseGoodput(flags.goodput);
  if (!goodput.ok()) return goodput.status();
  options->runner.goodput = *goodput;
  return absl::OkStatus();
}

absl::Status ResolveArrivals(const LoadFlags& flags, LoadOptions* options) {
  const auto kind = ArrivalKindOf(flags.trace.empty() ? flags.arrivals : "trace");
  if (!kind.ok()) return kind.status();
  options->arrivals.kind = *kind;
  if (*kind == ArrivalKind::kTrace) {
    if (flags.trace.empty()) return absl::InvalidArgumentError("--arrivals: trace needs --trace");
    auto trace = ReadTrace(flags.trace);
    if (!trace.ok()) return trace.status();
    options->trace = *std::move(trace);
  }
  const auto ramp = RampKindOf(flags.ramp);
  if (!ramp.ok()) return ramp.status();
  ArrivalSpec* arrivals = &options->arrivals;
  arrivals->ramp = *ramp;
  if (options->requests == 0 && options->duration_s == 0) arrivals->duration_s = kDefaultDurationS;
  if (options->duration_s > 0) arrivals->duration_s = options->duration_s;
  arrivals->requests = options->requests;
  if (arrivals->ramp_s == 0) arrivals->ramp_s = arrivals->duration_s;
  if (*ramp != RampKind::kNone && arrivals->ramp_s == 0) {
    return absl::InvalidArgumentError("--ramp: needs --ramp-seconds or --duration");
  }
  return absl::OkStatus();
}

// A stage's shape is given once.
absl::Status ResolveShape(const LoadFlags& flags, LoadOptions* options) {
  if (flags.sweep == "batch") {
    options->sweep = SweepKind::kBatch;
  } else if (flags.sweep == "rate") {
    options->sweep = SweepKind::kRate;
  } else if (flags.sweep != "none") {
    return OneOf("--sweep", flags.sweep, "none, batch, rate");
  }
  options->batches = flags.concurrency;
  options->rates = flags.rates;
  const bool has_trace = !options->trace.empty();
  const int shapes = (options->batches.empty() ? 0 : 1) + (options->rates.empty() ? 0 : 1) +
                     (has_trace ? 1 : 0) + (options->sweep == SweepKind::kNone ? 0 : 1);
  if (shapes > 1) {
    return absl::InvalidArgumentError(
        "--concurrency, --rate, --trace, --sweep: give one of them, not several");
  }
  if (shapes == 0) options->batches = {1};
  return absl::OkStatus();
}

}  // namespace

void AddLoadFlags(CLI::App* app, LoadFlags* flags) {
  AddConnectionFlags(app, flags);
  AddLoadShapeFlags(app, flags);
  AddStageFlags(app, flags);
  AddPromptFlags(app, flags);
  AddMixFlags(app, flags);
  AddReportFlags(app, flags);
  app->footer(
      "Tables go to standard output, progress to standard error.\n"
      "Exit status: 0 fine; 1 the daemon is not there, a stream failed or was lost, or a file was\n"
      "not written; 2 bad command line, text or length; 3 done, but the daemon refused requests;\n"
      "130 interrupted. Cancels and deadlines of the mix are no failures.");
}

absl::StatusOr<LoadOptions> ResolveFlags(LoadFlags flags, const std::string& fresh_salt) {
  LoadOptions options = flags.options;
  options.seed = static_cast<uint64_t>(flags.seed);
  options.defaults.salt = flags.salt.empty() ? fresh_salt : flags.salt;
  if (options.defaults.salt.size() > kMostSaltBytes) {
    return absl::InvalidArgumentError("--cache-salt: at most 32 bytes");
  }
  std::sort(options.percentiles.begin(), options.percentiles.end());
  for (const auto& resolve :
       {ResolvePrompts, ResolveLengths, ResolveMix, ResolveArrivals, ResolveShape}) {
    const absl::Status status = resolve(flags, &options);
    if (!status.ok()) return status;
  }
  return options;
}

std::vector<std::pair<std::string, std::string>> DescribeWorkload(const LoadFlags& flags) {
  const WorkloadSpec& workload = flags.options.workload;
  std::vector<std::pair<std::string, std::string>> lines = {{"prompts", flags.prompts}};
  if (flags.prompts != "file") lines.emplace_back("input tokens", flags.input);
  lines.emplace_back("output tokens", flags.output);
  const auto add = [&](const char* name, double share, const std::string& detail) {
    if (share > 0) lines.emplace_back(name, absl::StrCat(share, detail));
  };
  add("shared prefix", workload.shared_prefix,
      absl::StrCat(" in ", workload.prefix_groups, " groups"));
  add("cancelled", workload.cancel_share, absl::StrCat(" after ", flags.cancel_after, " ms"));
  add("deadlines", workload.deadline_share, absl::StrCat(" of ", flags.deadline, " ms"));
  add("slow readers", workload.slow_share, absl::StrCat(", ", workload.slow_pause_ms, " ms"));
  if (!flags.priorities.empty()) lines.emplace_back("priorities", flags.priorities);
  if (!flags.choices.empty()) lines.emplace_back("choices", flags.choices);
  if (!flags.attention.empty()) lines.emplace_back("attention", flags.attention);
  if (flags.options.defaults.bypass_prefix_cache) lines.emplace_back("prefix cache", "bypassed");
  lines.emplace_back("seed", absl::StrCat(flags.seed));
  return lines;
}

}  // namespace augur::loadtest
