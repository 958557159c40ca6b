// The evaluation: the same questions about the same documents for every policy, one document at a
// time.
//
// A document's first question is asked alone and warms the prefix cache; the others follow,
// `concurrency` at a time. Every document of every policy has a cache salt of its own, so no policy
// reads what another has computed. Value modes change generated tokens alone: they share what their
// policy has computed, and only the first of them asks a cold question.
//
// Thread: one thread calls; `concurrency` threads ask within AskPolicies. Ownership: the caller
// keeps client, documents and results. Units: tokens, milliseconds. Failure: each function says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "augur/v1/completions.pb.h"
#include "loadtest/completion_client.h"
#include "loadtest/document_builder.h"
#include "loadtest/filler_text.h"
#include "loadtest/prometheus_text.h"
#include "loadtest/recall_tasks.h"

namespace augur::loadtest {

struct EvaluationOptions {
  std::string address = "127.0.0.1:50051";
  std::string metrics;  // HOST:PORT of the daemon's metrics; empty: do not look
  std::vector<std::string> text_files;
  std::vector<RecallTask> tasks;
  std::vector<v1::AttentionPolicy> policies;
  int64_t length = 8000;  // tokens of a prompt, at most
  int documents = 12;     // of each task
  int questions = 10;     // of each document
  int distractors = 8;    // of each document, in tasks that have them
  FactPlacement placement = FactPlacement::kSentence;
  uint64_t seed = 1;
  std::optional<uint32_t> top_k_blocks;  // sent with every policy but dense
  // Under each policy: 0 exact values, else as many samples; empty: the daemon's choice.
  std::vector<uint32_t> value_samples;
  int concurrency = 1;
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

// One task under one policy, all its documents.
struct PolicyRun {
  RecallTask task = RecallTask::kNeedle;
  v1::AttentionPolicy policy = v1::ATTENTION_POLICY_UNSPECIFIED;
  std::vector<AskedQuestion> questions;  // by document, then question: the same for every policy
  std::optional<CounterGrowth> counters;
  std::optional<uint32_t> value_samples = {};  // as in EvaluationOptions, one of them
};

// "sparse", "sparse exact", "sparse 128".
std::string VariantName(const PolicyRun& run);

struct Refusal {
  v1::AttentionPolicy policy = v1::ATTENTION_POLICY_UNSPECIFIED;
  std::string message;  // the daemon's
  std::optional<uint32_t> value_samples = {};
};

struct Evaluation {
  v1::GetModelResponse model;
  std::vector<PolicyRun> runs;  // complete ones
  std::vector<Refusal> refused;
  bool complete = false;  // all tasks under all policies that were not refused
};

using DocumentsOfTasks = std::map<RecallTask, std::vector<Document>>;
using ProgressLine = std::function<void(const std::string& line)>;

// The counters that are looked at where there is a metrics address.
const std::vector<std::string>& WatchedCounters();

// What needs no daemon: twice the same name, too many facts. InvalidArgument.
absl::Status CheckOptions(const EvaluationOptions& options);

// Whether the model takes text of that length. InvalidArgument.
absl::Status CheckModel(const EvaluationOptions& options, const v1::GetModelResponse& model);

// All documents of all tasks. Fails as BuildDocument does.
absl::StatusOr<DocumentsOfTasks> BuildDocuments(const EvaluationOptions& options,
                                                const FillerText& filler, const TokenCount& count,
                                                const ProgressLine& progress);

// Fills runs, refused and complete. A policy that is refused with FAILED_PRECONDITION is left out
// from then on; any other failed call ends the evaluation with its status, and what was complete
// stays.
absl::Status AskPolicies(const EvaluationOptions& options, const DocumentsOfTasks& documents,
                         CompletionClient* client, const ProgressLine& progress,
                         Evaluation* evaluation);

}  // namespace augur::loadtest
