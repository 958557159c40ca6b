#include "loadtest/prompt_source.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loadtest/text_file.h"
#include "nlohmann/json.hpp"

namespace augur::loadtest {
namespace {

constexpr size_t kMostProseBytes = 2 << 20;  // Tokenize takes 4 MiB
constexpr size_t kMostPrompts = 1'000'000;

absl::Status BadPrompt(int number, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", number, " ", why));
}

absl::Status ParseObject(const std::string& line, int number, ListedPrompt* prompt) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return BadPrompt(number, "is no JSON object");
  if (json.contains("prompt") && json["prompt"].is_string()) {
    prompt->text = json["prompt"].get<std::string>();
  } else if (json.contains("token_ids") && json["token_ids"].is_array()) {
    for (const auto& id : json["token_ids"]) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
        return BadPrompt(number, "has a token id that is none");
      }
      prompt->ids.push_back(id.get<uint32_t>());
    }
  }
  if (prompt->text.empty() && prompt->ids.empty()) {
    return BadPrompt(number, "has neither prompt nor token_ids");
  }
  if (json.contains("max_tokens")) {
    const auto& tokens = json["max_tokens"];
    if (!tokens.is_number_unsigned() || tokens.get<uint64_t>() < 1 ||
        tokens.get<uint64_t>() > UINT32_MAX) {
      return BadPrompt(number, "has max_tokens that are no positive number");
    }
    prompt->max_tokens = tokens.get<uint32_t>();
  }
  if (json.contains("answer")) {
    if (!json["answer"].is_string()) return BadPrompt(number, "has an answer that is no text");
    prompt->answers = {json["answer"].get<std::string>()};
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ListedPrompt>> ReadPrompts(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile("--prompt-file", path);
  if (!text.ok()) return text.status();
  auto prompts = ParsePrompts(*text);
  if (!prompts.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt-file: ", path, ": ", std::string(prompts.status().message())));
  }
  return prompts;
}

void SetAttention(const AttentionOverride& wanted, v1::CompleteRequest* request) {
  v1::AttentionOptions* attention = request->mutable_attention();
  attention->set_policy(wanted.policy);
  attention->set_prefill_policy(wanted.prefill);
  if (wanted.top_k_blocks) attention->set_top_k_blocks(*wanted.top_k_blocks);
  if (!wanted.value_samples) return;
  const bool sampled = *wanted.value_samples > 0;
  attention->set_value_mode(sampled ? v1::VALUE_MODE_SAMPLED : v1::VALUE_MODE_EXACT);
  if (sampled) attention->set_value_samples(*wanted.value_samples);
}

}  // namespace

absl::StatusOr<std::vector<ListedPrompt>> ParsePrompts(std::string_view text) {
  std::vector<ListedPrompt> prompts;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    ListedPrompt prompt;
    if (line[0] == '{') {
      const absl::Status parsed = ParseObject(line, number, &prompt);
      if (!parsed.ok()) return parsed;
    } else {
      if (!IsUtf8(line)) return BadPrompt(number, "is not UTF-8");
      prompt.text = line;
    }
    prompts.push_back(std::move(prompt));
    if (prompts.size() > kMostPrompts) return BadPrompt(number, "is one prompt too many");
  }
  if (prompts.empty()) return absl::InvalidArgumentError("holds no prompt");
  return prompts;
}

PromptSource::PromptSource(const PromptOptions& options, RequestDefaults defaults,
                           const v1::GetModelResponse& model)
    : defaults_(std::move(defaults)),
      seed_(options.seed),
      vocab_size_(model.vocab_size()),
      eos_(model.eos_token_ids().begin(), model.eos_token_ids().end()) {}

absl::StatusOr<std::unique_ptr<PromptSource>> PromptSource::Make(const PromptOptions& options,
                                                                 RequestDefaults defaults,
                                                                 const v1::GetModelResponse& model,
                                                                 CompletionClient* client) {
  std::unique_ptr<PromptSource> source(new PromptSource(options, std::move(defaults), model));
  absl::Status status;
  switch (options.kind) {
    case PromptKind::kRandom:
      if (model.vocab_size() <= static_cast<uint32_t>(model.eos_token_ids_size())) {
        status = absl::InvalidArgumentError("--prompts: random needs a model with a vocabulary");
      }
      break;
    case PromptKind::kProse:
      status = source->ReadProse(options, client);
      break;
    case PromptKind::kNeedle:
      status = source->BuildNeedles(options, client);
      break;
    case PromptKind::kFile: {
      auto prompts = ReadPrompts(options.prompt_file);
      status = prompts.status();
      if (!prompts.ok()) break;
      for (ListedPrompt& prompt : *prompts) source->items_.push_back({std::move(prompt), -1});
      break;
    }
  }
  if (!status.ok()) return status;
  return source;
}

absl::Status PromptSource::ReadProse(const PromptOptions& options, CompletionClient* client) {
  const absl::StatusOr<FillerText> filler = FillerText::Read(options.text_files);
  if (!filler.ok()) return filler.status();
  std::string text;
  for (const Paragraph& paragraph : filler->paragraphs()) {
    for (const std::string& line : paragraph) text += line + "\n";
    text += "\n";
    if (text.size() > kMostProseBytes) break;
  }
  absl::StatusOr<std::vector<uint32_t>> ids = client->Tokenize(text);
  if (!ids.ok()) return ids.status();
  prose_ = *std::move(ids);
  if (prose_.empty()) return absl::InvalidArgumentError("--text: the files hold no tokens");
  return absl::OkStatus();
}

absl::Status PromptSource::BuildNeedles(const PromptOptions& options, CompletionClient* client) {
  const absl::StatusOr<FillerText> filler = FillerText::Read(options.text_files);
  if (!filler.ok()) return filler.status();
  const int64_t answer_tokens = MostAnswers(options.task) * options.answer_tokens;
  const int64_t most =
      options.max_context > 0 ? int64_t{options.max_context} - answer_tokens : int64_t{1} << 24;
  std::vector<Document> documents;
  for (int i = 0; i < options.documents; ++i) {
    SeededDraw draw(SeedOf(options.seed, "document length", static_cast<uint64_t>(i)));
    DocumentPlan plan;
    plan.task = options.task;
    plan.length = DrawLength(options.input, 16, std::max<int64_t>(most, 16), &draw);
    plan.questions = options.questions;
    plan.distractors = options.distractors;
    plan.seed = options.seed;
    plan.number = i;
    absl::StatusOr<Document> document = BuildDocument(
        plan, *filler, [client](const std::string& text) { return client->CountTokens(text); });
    if (!document.ok()) return document.status();
    documents.push_back(*std::move(document));
  }
  for (int question = 0; question < options.questions; ++question) {
    for (int i = 0; i < options.documents; ++i) {
      const std::vector<Question>& questions = documents[static_cast<size_t>(i)].questions;
      // A list of words has one question.
      if (static_cast<size_t>(question) >= questions.size()) continue;
      const Question& asked = questions[static_cast<size_t>(question)];
      ListedPrompt prompt;
      prompt.text = asked.text;
      prompt.answers = asked.more_answers;
      prompt.answers.insert(prompt.answers.begin(), asked.answer);
      const auto answers = static_cast<uint32_t>(prompt.answers.size());
      if (answers > 1) prompt.max_tokens = answers * options.answer_tokens;
      items_.push_back({std::move(prompt), i});
    }
  }
  for (Document& document : documents) documents_.push_back(std::move(document.text));
  return absl::OkStatus();
}

std::vector<PromptItem> PromptSource::Items() const {
  std::vector<PromptItem> items;
  for (const Item& item : items_) items.push_back({item.prompt.max_tokens});
  return items;
}

uint32_t PromptSource::DrawId(SeededDraw* draw) const {
  for (;;) {
    const auto id = static_cast<uint32_t>(draw->Below(vocab_size_));
    if (std::find(eos_.begin(), eos_.end(), id) == eos_.end()) return id;
  }
}

void PromptSource::AppendTokens(uint32_t count, SeededDraw draw, v1::TokenIds* ids) const {
  size_t at = prose_.empty() ? 0 : static_cast<size_t>(draw.Below(prose_.size()));
  for (uint32_t i = 0; i < count; ++i) {
    if (prose_.empty() || i == 0) {
      ids->add_ids(DrawId(&draw));
    } else {
      ids->add_ids(prose_[at++ % prose_.size()]);
    }
  }
}

v1::CompleteRequest PromptSource::Make(const StagePlan& stage,
                                       const PlannedRequest& planned) const {
  v1::CompleteRequest request;
  request.set_request_id(absl::StrCat("load-", stage.number, "-", planned.index));
  request.set_cache_salt(absl::StrCat(defaults_.salt, "-", stage.number, "-", planned.prompt.pass));
  request.set_bypass_prefix_cache(defaults_.bypass_prefix_cache);
  request.set_priority(planned.priority);
  request.mutable_sampling()->set_temperature(static_cast<float>(defaults_.temperature));
  request.mutable_sampling()->set_seed(planned.seed);
  request.mutable_sampling()->set_n(planned.choices);
  request.mutable_stopping()->set_max_tokens(planned.max_tokens);
  request.mutable_stopping()->set_ignore_eos(defaults_.ignore_eos);
  for (const std::string& stop : defaults_.stop) request.mutable_stopping()->add_stop(stop);
  if (planned.attention < defaults_.attention.size()) {
    SetAttention(defaults_.attention[planned.attention].value, &request);
  }
  if (items_.empty()) {
    v1::TokenIds* ids = request.mutable_token_ids();
    const PromptPlan& prompt = planned.prompt;
    ids->mutable_ids()->Reserve(static_cast<int>(prompt.tokens));
    AppendTokens(prompt.shared_tokens, SeededDraw(SeedOf(seed_, "prefix", prompt.group)), ids);
    AppendTokens(prompt.tokens - prompt.shared_tokens, SeededDraw(prompt.seed), ids);
    return request;
  }
  const Item& item = items_[planned.prompt.item];
  if (!item.prompt.ids.empty()) {
    request.mutable_token_ids()->mutable_ids()->Assign(item.prompt.ids.begin(),
                                                       item.prompt.ids.end());
  } else if (item.document >= 0) {
    request.set_text(
        absl::StrCat(documents_[static_cast<size_t>(item.document)], item.prompt.text));
  } else {
    request.set_text(item.prompt.text);
  }
  return request;
}

const std::vector<std::string>* PromptSource::Answers(const PlannedRequest& request) const {
  if (items_.empty()) return nullptr;
  const std::vector<std::string>& answers = items_[request.prompt.item].prompt.answers;
  return answers.empty() ? nullptr : &answers;
}

}  // namespace augur::loadtest
