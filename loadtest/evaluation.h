// The evaluation: the same questions about the same documents for every variant of attention, one
// document at a time, or documents_at_once.
//
// A document's first question is asked alone and warms the prefix cache; the others follow,
// `concurrency` at a time. Every document of every policy has a cache salt of its own, so no policy
// reads what another has computed. Value modes change generated tokens alone: they share what their
// policy has computed, and only the first of them asks a cold question.
//
// Thread: one thread calls; documents_at_once times `concurrency` threads ask within AskPolicies,
// and progress is told by one at a time. Ownership: the caller
// keeps client, documents and results. Units: tokens, milliseconds. Failure: each function says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "augur/v1/completions.pb.h"
#include "loadtest/attention_policies.h"
#include "loadtest/completion_client.h"
#include "loadtest/document_builder.h"
#include "loadtest/filler_text.h"
#include "loadtest/prometheus_text.h"
#include "loadtest/recall_tasks.h"

namespace augur::loadtest {

// More documents of each task than elsewhere, at one length and budget.
struct DocumentsAt {
  int64_t length = 0;
  uint32_t top_k_blocks = 0;
  int documents = 0;
};

struct EvaluationOptions {
  std::string address = "127.0.0.1:50051";
  std::string metrics;  // HOST:PORT of the daemon's metrics; empty: do not look
  std::vector<std::string> text_files;
  std::vector<RecallTask> tasks;
  std::vector<AttentionVariant> variants;
  int64_t length = 8000;  // tokens of a prompt, at most
  int documents = 12;     // of each task
  std::vector<DocumentsAt> documents_at = {};
  int questions = 10;   // of each document
  int distractors = 8;  // of each document, in tasks that have them
  FactPlacement placement = FactPlacement::kSentence;
  uint64_t seed = 1;
  int concurrency = 1;        // questions of a document at a time
  int documents_at_once = 1;  // of a task under a variant
  std::vector<std::pair<AttentionVariant, AttentionVariant>> compared = {};
  // A task whose dense run is right less often is not asked under the other variants; dense is the
  // first of them where this is above 0.
  double least_dense = 0;
  uint32_t max_tokens = 16;  // for each answer of a question
  double call_limit_s = 600;
};

struct AskedQuestion {
  int document = 0;
  int question = 0;
  bool cold = false;  // the first of its document
  bool exact = false;
  CompletionAnswer answer;
};

// One task under one variant, all its documents.
struct PolicyRun {
  RecallTask task = RecallTask::kNeedle;
  AttentionVariant variant;
  int64_t length = 0;                         // of EvaluationOptions
  std::vector<AskedQuestion> questions = {};  // by document, then question: the same for all
  std::optional<CounterGrowth> counters = {};
};

struct Refusal {
  AttentionVariant variant;
  std::string message;  // the daemon's
};

// A task that is too hard under dense attention to say anything of the others.
struct LeftOut {
  RecallTask task = RecallTask::kNeedle;
  int64_t length = 0;
  std::optional<double> exact = {};  // of the dense run; none: its facts do not fit the length

  bool IsOf(const PolicyRun& run) const { return task == run.task && length == run.length; }
};

struct Evaluation {
  v1::GetModelResponse model;
  std::vector<PolicyRun> runs;  // complete ones
  std::vector<Refusal> refused;
  std::vector<LeftOut> left_out = {};
  // Policies to set beside each other, budget by budget, on top of dense.
  std::vector<std::pair<AttentionVariant, AttentionVariant>> compared = {};
  bool complete = false;  // all tasks under all policies that were not refused
};

using DocumentsOfTasks = std::map<RecallTask, std::vector<Document>>;
using DocumentsOfLengths = std::map<int64_t, DocumentsOfTasks>;
using ProgressLine = std::function<void(const std::string& line)>;

// Of each task: the first so many. Dense alone has as many as any variant at the length.
int DocumentsOf(const EvaluationOptions& options, const AttentionVariant& variant);

// The counters that are looked at where there is a metrics address.
const std::vector<std::string>& WatchedCounters();

// What needs no daemon: twice the same name, too many facts. InvalidArgument.
absl::Status CheckOptions(const EvaluationOptions& options);

// Whether the model takes text of that length. InvalidArgument.
absl::Status CheckModel(const EvaluationOptions& options, const v1::GetModelResponse& model);

// All documents of all tasks. Fails as BuildDocument does; where tasks may be left out
// (least_dense), one whose facts do not fit the length has none.
absl::StatusOr<DocumentsOfTasks> BuildDocuments(const EvaluationOptions& options,
                                                const FillerText& filler, const TokenCount& count,
                                                const ProgressLine& progress);

// Adds runs of the length and refusals; sets complete. A policy that is refused with
// FAILED_PRECONDITION is left out from then on; any other failed call ends the evaluation with its
// status, and what was complete stays.
absl::Status AskPolicies(const EvaluationOptions& options, const DocumentsOfTasks& documents,
                         CompletionClient* client, const ProgressLine& progress,
                         Evaluation* evaluation);

}  // namespace augur::loadtest
