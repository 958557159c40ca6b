#include "loadtest/evaluation.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "loadtest/exact_match.h"
#include "loadtest/metrics_scrape.h"

namespace augur::loadtest {
namespace {

// What no other run of this or any evaluation has.
std::string NewSalt() {
  std::random_device device;
  return absl::StrFormat("augur-eval-%08x%08x", device(), device());
}

bool IsRight(const std::string& completion, const Question& question) {
  if (question.more_answers.empty()) return IsExactMatch(completion, question.answer);
  std::vector<std::string> answers = question.more_answers;
  answers.push_back(question.answer);
  return HasAllAnswers(completion, answers);
}

// One document under one policy.
class DocumentCalls {
 public:
  DocumentCalls(CompletionClient* client, const Document& document, CompletionQuery query)
      : client_(client), document_(document), query_(std::move(query)) {}

  // Appends the answers in the order of the questions.
  absl::Status Ask(int number, int concurrency, std::vector<AskedQuestion>* asked) {
    answers_.assign(document_.questions.size(), absl::UnknownError("not asked"));
    AskOne(0);
    const size_t rest = answers_.size() - 1;
    if (answers_[0].ok() && rest > 0) {
      std::vector<std::thread> askers;
      for (size_t i = 1; i < std::min(static_cast<size_t>(concurrency), rest); ++i) {
        askers.emplace_back([this] { AskRest(); });
      }
      AskRest();
      for (std::thread& asker : askers) asker.join();
    }
    for (size_t i = 0; i < answers_.size(); ++i) {
      if (!answers_[i].ok()) return FirstFailure();
      const bool exact = IsRight(answers_[i]->text, document_.questions[i]);
      asked->push_back({number, static_cast<int>(i), i == 0, exact, *std::move(answers_[i])});
    }
    return absl::OkStatus();
  }

 private:
  void AskOne(size_t index) {
    CompletionQuery query = query_;
    query.prompt = document_.text + document_.questions[index].text;
    query.seed += index;
    const auto answers = static_cast<uint32_t>(1 + document_.questions[index].more_answers.size());
    query.max_tokens *= answers;
    answers_[index] = client_->Complete(query);
    if (!answers_[index].ok()) failed_.store(true);
  }

  void AskRest() {
    for (size_t i = next_++; i < answers_.size() && !failed_.load(); i = next_++) AskOne(i);
  }

  absl::Status FirstFailure() const {
    for (const auto& answer : answers_) {
      if (!answer.ok() && !absl::IsUnknown(answer.status())) return answer.status();
    }
    for (const auto& answer : answers_) {
      if (!answer.ok() && answer.status().message() != "not asked") return answer.status();
    }
    return absl::UnknownError("no question was answered");
  }

  CompletionClient* const client_;
  const Document& document_;
  const CompletionQuery query_;
  std::vector<absl::StatusOr<CompletionAnswer>> answers_;  // one writer each
  std::atomic<size_t> next_{1};
  std::atomic<bool> failed_{false};
};

int CountRight(const std::vector<AskedQuestion>& asked) {
  return static_cast<int>(
      std::count_if(asked.begin(), asked.end(), [](const auto& one) { return one.exact; }));
}

// All documents of a run, documents_at_once at a time.
class RunCalls {
 public:
  RunCalls(const EvaluationOptions& options, std::span<const Document> documents,
           CompletionQuery query, std::string salt, CompletionClient* client,
           const ProgressLine& progress)
      : options_(options),
        documents_(documents),
        query_(std::move(query)),
        salt_(std::move(salt)),
        client_(client),
        progress_(progress),
        asked_(documents.size()) {}

  absl::Status Ask(PolicyRun* run) {
    name_ = absl::StrCat(TaskName(run->task), " ", VariantName(run->variant));
    std::vector<std::thread> askers;
    for (int i = 1; i < options_.documents_at_once; ++i) {
      askers.emplace_back([this] { AskDocuments(); });
    }
    AskDocuments();
    for (std::thread& asker : askers) asker.join();
    for (std::vector<AskedQuestion>& asked : asked_) {
      std::move(asked.begin(), asked.end(), std::back_inserter(run->questions));
    }
    return status_;
  }

 private:
  void AskDocuments() {
    for (size_t i = next_++; i < documents_.size() && !failed_.load(); i = next_++) {
      const auto start = std::chrono::steady_clock::now();
      CompletionQuery query = query_;
      query.cache_salt = absl::StrCat(salt_, "-", i);
      query.seed = (options_.seed << 32) + (i << 16);
      DocumentCalls calls(client_, documents_[i], query);
      const absl::Status status = calls.Ask(static_cast<int>(i), options_.concurrency, &asked_[i]);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      Note(status, i, took.count());
    }
  }

  void Note(const absl::Status& status, size_t document, double seconds) {
    const std::lock_guard lock(mutex_);
    status_.Update(status);
    if (!status.ok()) return failed_.store(true);
    ++done_;
    right_ += CountRight(asked_[document]);
    questions_ += asked_[document].size();
    progress_(absl::StrFormat("%s: document %d of %d in %.1f s, %d of %d right so far", name_,
                              done_, documents_.size(), seconds, right_, questions_));
  }

  const EvaluationOptions& options_;
  const std::span<const Document> documents_;
  const CompletionQuery query_;
  const std::string salt_;
  CompletionClient* const client_;
  const ProgressLine& progress_;
  std::string name_;
  std::vector<std::vector<AskedQuestion>> asked_;  // [documents], one writer each
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  // Under mutex_ while askers run.
  absl::Status status_;
  int done_ = 0;
  int right_ = 0;
  size_t questions_ = 0;
};

// The page, or nothing where it is not wanted or not to be had.
std::optional<std::vector<PrometheusSample>> LookAtMetrics(const EvaluationOptions& options,
                                                           const ProgressLine& progress) {
  if (options.metrics.empty()) return std::nullopt;
  absl::StatusOr<std::vector<PrometheusSample>> page = ScrapeMetrics(options.metrics);
  if (page.ok()) return *std::move(page);
  progress(absl::StrCat("no metrics for this run: ", std::string(page.status().message())));
  return std::nullopt;
}

template <typename T>
const T* FindRepeated(const std::vector<T>& values) {
  std::set<T> seen;
  for (const T& value : values) {
    if (!seen.insert(value).second) return &value;
  }
  return nullptr;
}

}  // namespace

const std::vector<std::string>& WatchedCounters() {
  static const auto* const kNames = new std::vector<std::string>{
      "augur_transfer_bytes_total",       "augur_kv_reused_blocks_total",
      "augur_kv_chosen_blocks_total",     "augur_prefetch_blocks_total",
      "augur_decode_fetched_bytes_total", "augur_sampled_draws_total",
      "augur_sampled_rows_total",         "augur_sampled_host_rows_total"};
  return *kNames;
}

int DocumentsOf(const EvaluationOptions& options, const AttentionVariant& variant) {
  int documents = options.documents;
  for (const DocumentsAt& at : options.documents_at) {
    if (at.length != options.length) continue;
    if (variant.is_dense() || variant.top_k_blocks == at.top_k_blocks) {
      documents = std::max(documents, at.documents);
    }
  }
  return documents;
}

absl::Status CheckOptions(const EvaluationOptions& options) {
  if (const RecallTask* task = FindRepeated(options.tasks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tasks: ", TaskName(*task), " is given twice, at most once"));
  }
  if (const AttentionVariant* variant = FindRepeated(options.variants)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--policies, --top-k-blocks, --values: ", VariantName(*variant),
                     " is given twice, at most once"));
  }
  if (options.least_dense > 0 && !options.variants.front().is_dense()) {
    return absl::InvalidArgumentError(
        "--least-dense: expected dense to be the first of --policies");
  }
  for (const RecallTask task : options.tasks) {
    if (IsWordList(task)) continue;
    const bool has_own = HasDistractors(task) && DistractorShare(task) == 0;
    const int facts = options.questions + (has_own ? options.distractors : 0);
    if (facts > MaxFacts(task)) {
      return absl::InvalidArgumentError(absl::StrCat("--questions and --distractors: ", facts,
                                                     " facts in a document of task ",
                                                     TaskName(task), ", at most ", MaxFacts(task)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const EvaluationOptions& options, const v1::GetModelResponse& model) {
  if (!model.text()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--address: ", options.address, " serves no text, it has no tokenizer"));
  }
  int64_t answers = 1;
  for (const RecallTask task : options.tasks) answers = std::max(answers, MostAnswers(task));
  const int64_t max_tokens = answers * options.max_tokens;
  if (options.length + max_tokens > model.max_context()) {
    const std::string for_all = answers > 1 ? absl::StrCat(" for ", answers, " answers") : "";
    return absl::InvalidArgumentError(
        absl::StrCat("--length: ", options.length, " tokens with ", max_tokens, " of --max-tokens",
                     for_all, ", at most ", model.max_context(), " fit ", model.model()));
  }
  return absl::OkStatus();
}

absl::StatusOr<DocumentsOfTasks> BuildDocuments(const EvaluationOptions& options,
                                                const FillerText& filler, const TokenCount& count,
                                                const ProgressLine& progress) {
  DocumentsOfTasks all;
  for (const RecallTask task : options.tasks) {
    const int documents =
        DocumentsOf(options, AttentionVariant{.policy = v1::ATTENTION_POLICY_DENSE});
    progress(absl::StrCat("making ", documents, " documents of task ", TaskName(task)));
    for (int number = 0; number < documents; ++number) {
      absl::StatusOr<Document> document = BuildDocument({.task = task,
                                                         .length = options.length,
                                                         .questions = options.questions,
                                                         .distractors = options.distractors,
                                                         .placement = options.placement,
                                                         .seed = options.seed,
                                                         .number = number},
                                                        filler, count);
      if (absl::IsOutOfRange(document.status()) && options.least_dense > 0) {
        progress(absl::StrCat(TaskName(task), " is left out at ", options.length,
                              " tokens: ", document.status().message()));
        all.erase(task);
        break;
      }
      if (!document.ok()) return document.status();
      all[task].push_back(*std::move(document));
    }
  }
  return all;
}

// Asks one task under one policy and value mode; a refusal is noted in `evaluation`.
absl::Status AskVariant(const EvaluationOptions& options, const DocumentsOfTasks& documents,
                        const std::string& salt, CompletionClient* client,
                        const ProgressLine& progress, PolicyRun run, Evaluation* evaluation) {
  CompletionQuery query;
  query.policy = run.variant.policy;
  query.prefill_policy = run.variant.prefill;
  query.top_k_blocks = run.variant.top_k_blocks;
  query.value_samples = run.variant.value_samples;
  query.max_tokens = options.max_tokens;
  const auto before = LookAtMetrics(options, progress);
  const std::vector<Document>& of_task = documents.at(run.task);
  const size_t wanted = static_cast<size_t>(DocumentsOf(options, run.variant));
  const std::span<const Document> asked(of_task.data(), std::min(of_task.size(), wanted));
  const absl::Status status = RunCalls(options, asked, query, salt, client, progress).Ask(&run);
  if (absl::IsFailedPrecondition(status)) {
    const std::string message(status.message());
    progress(absl::StrCat(VariantName(run.variant),
                          " is left out, refused with FAILED_PRECONDITION: ", message));
    evaluation->refused.push_back({run.variant, message});
    return absl::OkStatus();
  }
  if (!status.ok()) return status;
  const auto after = before ? LookAtMetrics(options, progress) : std::nullopt;
  if (after) run.counters = CounterGrowth(*before, *after, WatchedCounters());
  evaluation->runs.push_back(std::move(run));
  return absl::OkStatus();
}

// Whether the last run shows that its task says nothing of other variants; noted in `evaluation`.
bool IsTooHard(const EvaluationOptions& options, const ProgressLine& progress,
               Evaluation* evaluation) {
  if (evaluation->runs.empty()) return false;
  const PolicyRun& run = evaluation->runs.back();
  if (!run.variant.is_dense() || run.questions.empty()) return false;
  const double exact =
      static_cast<double>(CountRight(run.questions)) / static_cast<double>(run.questions.size());
  if (exact >= options.least_dense) return false;
  progress(absl::StrFormat("%s, %d tokens, is left out: %.3f right under dense attention",
                           TaskName(run.task), run.length, exact));
  evaluation->left_out.push_back({run.task, run.length, exact});
  return true;
}

absl::Status AskPolicies(const EvaluationOptions& options, const DocumentsOfTasks& documents,
                         CompletionClient* client, const ProgressLine& progress,
                         Evaluation* evaluation) {
  evaluation->complete = false;
  for (const RecallTask task : options.tasks) {
    if (!documents.contains(task)) {
      evaluation->left_out.push_back({task, options.length, std::nullopt});
      continue;
    }
    // What value modes share; they follow each other in no fixed order.
    std::map<AttentionVariant, std::string> salts;
    for (const AttentionVariant& variant : options.variants) {
      const auto same = [&](const Refusal& refusal) { return refusal.variant == variant; };
      if (std::any_of(evaluation->refused.begin(), evaluation->refused.end(), same)) continue;
      AttentionVariant computed = variant;
      computed.value_samples.reset();
      std::string& salt = salts[computed];
      if (salt.empty()) salt = NewSalt();
      const absl::Status status = AskVariant(
          options, documents, salt, client, progress,
          PolicyRun{.task = task, .variant = variant, .length = options.length}, evaluation);
      if (!status.ok()) return status;
      if (IsTooHard(options, progress, evaluation)) break;
    }
  }
  evaluation->complete = true;
  return absl::OkStatus();
}

}  // namespace augur::loadtest
