// Where the prompts of a load test come from.
//
//   random   token ids drawn evenly from the vocabulary, ends of sequence left out
//   prose    stretches of the text files, as token ids, so that a length is exact; the first token
//            of each is drawn from the vocabulary, so that no two stretches begin alike by chance
//   needle   documents of document_builder.h and the questions about them; answers are checked.
//            Consecutive requests ask about different documents; the second question about a
//            document may find it in the prefix cache
//   file     lines of text, or JSON objects with `prompt` (text) or `token_ids`, and perhaps
//            `max_tokens` and `answer`
//
// The list of needle and file is gone through again and again. Each pass, like each stage, has a
// cache salt of its own: nothing is found in the prefix cache that was computed for another pass.
//
// Thread: made by one thread; after that as RequestSource. Ownership: a value behind a pointer.
// Failure: InvalidArgument and OutOfRange naming the flag; what a call to the daemon failed with.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/completion_client.h"
#include "loadtest/document_builder.h"
#include "loadtest/request_source.h"
#include "loadtest/workload_plan.h"

namespace augur::loadtest {

// What all requests have alike.
struct RequestDefaults {
  double temperature = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop = {};
  std::string salt;  // at most 32 bytes; stage and pass are added
  bool bypass_prefix_cache = false;
  std::vector<Weighted<AttentionOverride>> attention = {};
};

struct PromptOptions {
  PromptKind kind = PromptKind::kRandom;
  std::vector<std::string> text_files = {};  // prose, needle
  std::string prompt_file;                   // file
  RecallTask task = RecallTask::kManyKeys;   // needle
  int documents = 8;
  int questions = 4;  // of a document
  int distractors = 4;
  LengthDistribution input = {};  // needle: of a document with its question
  uint32_t max_context = 0;
  uint32_t answer_tokens = 16;  // needle: of an answer; they come on top of a document
  uint64_t seed = 1;
};

// A prompt that is there as it is.
struct ListedPrompt {
  std::string text;  // empty: ids
  std::vector<uint32_t> ids;
  std::vector<std::string> answers;  // as RequestSource::Answers; empty: none
  std::optional<uint32_t> max_tokens;
};

// What `file` reads; a pure function of its text.
absl::StatusOr<std::vector<ListedPrompt>> ParsePrompts(std::string_view text);

class PromptSource : public RequestSource {
 public:
  static absl::StatusOr<std::unique_ptr<PromptSource>> Make(const PromptOptions& options,
                                                            RequestDefaults defaults,
                                                            const v1::GetModelResponse& model,
                                                            CompletionClient* client);

  v1::CompleteRequest Make(const StagePlan& stage, const PlannedRequest& request) const override;
  const std::vector<std::string>* Answers(const PlannedRequest& request) const override;

  // For the plan; empty for random and prose.
  std::vector<PromptItem> Items() const;

 private:
  PromptSource(const PromptOptions& options, RequestDefaults defaults,
               const v1::GetModelResponse& model);
  absl::Status ReadProse(const PromptOptions& options, CompletionClient* client);
  absl::Status BuildNeedles(const PromptOptions& options, CompletionClient* client);
  uint32_t DrawId(SeededDraw* draw) const;
  void AppendTokens(uint32_t count, SeededDraw draw, v1::TokenIds* ids) const;

  const RequestDefaults defaults_;
  const uint64_t seed_;
  const uint32_t vocab_size_;
  const std::vector<uint32_t> eos_;
  std::vector<uint32_t> prose_;         // tokens of the text files; random: empty
  std::vector<std::string> documents_;  // needle: each once, however many questions
  struct Item {
    ListedPrompt prompt;  // needle: the question alone
    int document = -1;    // goes before it; -1: none
  };
  std::vector<Item> items_;
};

}  // namespace augur::loadtest
