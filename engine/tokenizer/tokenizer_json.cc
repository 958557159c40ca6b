// tokenizer.json to a PipelineTokenizer: one Read function a section. A section, step or key that
// is not known here is an error by name: what it would change is not known either.
#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/json/json_value.h"
#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/pipeline_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {
namespace {

constexpr TokenId kMaxTokenId = (1 << 22) - 1;  // tables are indexed by id
constexpr size_t kMaxSteps = 64;
constexpr int64_t kMaxFileBytes = 256 << 20;

// Calls `read` with every step of a section: none for null, the elements of a Sequence (named
// `elements`), or the section itself. A Sequence in a Sequence is flattened.
template <typename ReadStep>
void ForEachStep(const JsonValue& section, const char* elements, const ReadStep& read) {
  if (section.absent_or_null()) return;
  std::vector<JsonValue> todo = {section};
  for (size_t steps = 0; !todo.empty(); ++steps) {
    const JsonValue step = todo.back();
    todo.pop_back();
    if (steps == kMaxSteps) return step.Unsupported(absl::StrCat(kMaxSteps, " steps"));
    const std::string type = step["type"].String();
    if (type != "Sequence") {
      read(step, type);
      continue;
    }
    step.AllowMembers({"type", elements});
    const JsonValue list = step[elements];
    const JsonNode nodes = list.Array();
    if (nodes.size() > kMaxSteps) return list.Unsupported(absl::StrCat(kMaxSteps, " steps"));
    const size_t first = todo.size();
    for (const auto& [name, node] : nodes) todo.push_back(list.Element(todo.size() - first, node));
    std::reverse(todo.begin() + static_cast<std::ptrdiff_t>(first), todo.end());
  }
}

class TokenizerJson {
 public:
  TokenizerJson(JsonNode document, JsonErrors* errors)
      : root_(document, "", errors), errors_(errors) {}

  std::unique_ptr<Tokenizer> Build();

 private:
  Normalizer ReadNormalizer();
  void ReadNormalizerStep(const JsonValue& step, const std::string& type,
                          std::vector<std::unique_ptr<NormalizerStep>>* steps);
  PreTokenizer ReadPreTokenizer();
  std::unique_ptr<PreTokenizerStep> ReadSplitStep(const JsonValue& step);
  std::optional<BpeModel> ReadModel();
  BpeOptions ReadBpeOptions(const JsonValue& model);
  BpeModel::Vocabulary ReadVocabulary(const JsonValue& vocab);
  std::vector<std::pair<std::string, std::string>> ReadMerges(const JsonValue& merges);
  std::vector<AddedToken> ReadAddedTokens();
  void PlaceAddedToken(const JsonValue& entry, const AddedToken& token);
  PostProcessor ReadPostProcessor();
  SequenceTemplate ReadTemplate(const JsonValue& step);
  void ReadDecoder();
  void SpellToken(TokenId id, const std::string& spelling);

  JsonValue root_;
  JsonErrors* errors_;
  std::vector<std::string> spellings_;  // by id, added tokens included
  std::vector<bool> taken_;             // as long as spellings_
};

Normalizer TokenizerJson::ReadNormalizer() {
  std::vector<std::unique_ptr<NormalizerStep>> steps;
  ForEachStep(root_["normalizer"], "normalizers",
              [&](const JsonValue& step, const std::string& type) {
                ReadNormalizerStep(step, type, &steps);
              });
  return Normalizer(std::move(steps));
}

void TokenizerJson::ReadNormalizerStep(const JsonValue& step, const std::string& type,
                                       std::vector<std::unique_ptr<NormalizerStep>>* steps) {
  static const std::unordered_map<std::string, UnicodeForm> kForms = {{"NFC", UnicodeForm::kNfc},
                                                                      {"NFD", UnicodeForm::kNfd},
                                                                      {"NFKC", UnicodeForm::kNfkc},
                                                                      {"NFKD", UnicodeForm::kNfkd}};
  if (const auto form = kForms.find(type); form != kForms.end()) {
    step.AllowMembers({"type"});
    steps->push_back(MakeUnicodeStep(form->second));
  } else if (type == "Prepend") {
    step.AllowMembers({"type", "prepend"});
    steps->push_back(MakePrependStep(step["prepend"].String()));
  } else if (type == "Replace") {
    step.AllowMembers({"type", "pattern", "content"});
    step["pattern"].AllowMembers({"String"});
    std::string pattern = step["pattern"]["String"].String();
    std::string content = step["content"].String();
    if (pattern.empty()) return step["pattern"]["String"].Expected("a string that is not empty");
    steps->push_back(MakeReplaceStep(std::move(pattern), std::move(content)));
  } else {
    step["type"].Unsupported("NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
  }
}

PreTokenizer TokenizerJson::ReadPreTokenizer() {
  std::vector<std::unique_ptr<PreTokenizerStep>> steps;
  const auto read_step = [&](const JsonValue& step, const std::string& type) {
    if (type == "Digits") {
      step.AllowMembers({"type", "individual_digits"});
      steps.push_back(MakeDigitsStep(step["individual_digits"].Bool()));
    } else if (type == "ByteLevel") {
      step.AllowMembers({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      steps.push_back(
          MakeByteLevelStep(step["add_prefix_space"].Bool(), step["use_regex"].BoolOr(true)));
    } else if (type == "Split") {
      if (auto split = ReadSplitStep(step)) steps.push_back(std::move(split));
    } else {
      step["type"].Unsupported("ByteLevel, Digits, Split, Sequence");
    }
  };
  ForEachStep(root_["pre_tokenizer"], "pretokenizers", read_step);
  return PreTokenizer(std::move(steps));
}

std::unique_ptr<PreTokenizerStep> TokenizerJson::ReadSplitStep(const JsonValue& step) {
  static const std::unordered_map<std::string, SplitBehavior> kBehaviors = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"Contiguous", SplitBehavior::kContiguous},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext}};
  step.AllowMembers({"type", "pattern", "behavior", "invert"});
  const JsonValue pattern = step["pattern"];
  pattern.AllowMembers({"Regex", "String"});
  const bool literal = pattern["Regex"].absent_or_null();
  const JsonValue source = pattern[literal ? "String" : "Regex"];
  std::string expression = source.String();
  if (literal) expression = EscapeForRegex(expression);
  const bool invert = step["invert"].BoolOr(false);
  const auto behavior = kBehaviors.find(step["behavior"].String());
  if (behavior == kBehaviors.end()) {
    step["behavior"].Unsupported(
        "Removed, Isolated, Contiguous, MergedWithPrevious, MergedWithNext");
  }
  if (!errors_->ok()) return nullptr;
  absl::StatusOr<Regex> regex = Regex::Compile(expression);
  if (!regex.ok()) {
    const std::string message = absl::StrCat(source.key(), ": ", regex.status().message());
    absl::IsUnimplemented(regex.status()) ? errors_->Unsupported(message)
                                          : errors_->Invalid(message);
    return nullptr;
  }
  return MakeSplitStep(*std::move(regex), behavior->second, invert);
}

void TokenizerJson::SpellToken(TokenId id, const std::string& spelling) {
  const size_t at = static_cast<size_t>(id);
  if (at >= spellings_.size()) {
    spellings_.resize(at + 1);
    taken_.resize(at + 1);
  }
  spellings_[at] = spelling;
  taken_[at] = true;
}

BpeModel::Vocabulary TokenizerJson::ReadVocabulary(const JsonValue& vocab) {
  BpeModel::Vocabulary vocabulary;
  const JsonNode object = vocab.Object();
  if (object.size() == 0) vocab.Expected("at least one token");
  vocabulary.reserve(object.size());
  for (const auto& [name, node] : object) {
    const JsonValue entry(node, absl::StrCat(vocab.key(), "[", ShownText(name), "]"), errors_);
    const TokenId id = static_cast<TokenId>(entry.Int(0, kMaxTokenId));
    if (!errors_->ok()) break;
    if (static_cast<size_t>(id) < taken_.size() && taken_[static_cast<size_t>(id)]) {
      entry.Expected(absl::StrCat(
          "an id of its own (", ShownText(spellings_[static_cast<size_t>(id)]), " has the same)"));
      break;
    }
    SpellToken(id, std::string(name));
    vocabulary.emplace(name, id);
  }
  return vocabulary;
}

std::vector<std::pair<std::string, std::string>> TokenizerJson::ReadMerges(
    const JsonValue& merges) {
  std::vector<std::pair<std::string, std::string>> pairs;
  const JsonNode array = merges.Array();
  pairs.reserve(array.size());
  for (const auto& [name, merge] : array) {
    if (merge.is_string()) {
      const std::string_view text = merge.string();
      const size_t space = text.find(' ');
      if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
        pairs.emplace_back(text.substr(0, space), text.substr(space + 1));
        continue;
      }
    } else if (merge.size() == 2 && merge.Element(0).is_string() && merge.Element(1).is_string()) {
      pairs.emplace_back(merge.Element(0).string(), merge.Element(1).string());
      continue;
    }
    merges.Element(pairs.size(), merge).Expected("two tokens, as \"a b\" or [\"a\", \"b\"]");
    break;
  }
  return pairs;
}

BpeOptions TokenizerJson::ReadBpeOptions(const JsonValue& model) {
  model.AllowMembers({"type", "dropout", "unk_token", "continuing_subword_prefix",
                      "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                      "merges"});
  if (!model["type"].absent_or_null() && model["type"].String() != "BPE") {
    model["type"].Unsupported("BPE");
  }
  if (!model["dropout"].absent_or_null()) model["dropout"].Unsupported("null");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model[affix].absent_or_null() && !model[affix].String().empty()) {
      model[affix].Unsupported("null");
    }
  }
  BpeOptions options;
  if (!model["unk_token"].absent_or_null()) options.unknown_token = model["unk_token"].String();
  options.fuse_unknown = model["fuse_unk"].BoolOr(false);
  options.byte_fallback = model["byte_fallback"].BoolOr(false);
  options.ignore_merges = model["ignore_merges"].BoolOr(false);
  if (options.byte_fallback) model["byte_fallback"].Unsupported("false");
  return options;
}

std::optional<BpeModel> TokenizerJson::ReadModel() {
  const JsonValue model = root_["model"];
  BpeOptions options = ReadBpeOptions(model);
  BpeModel::Vocabulary vocabulary = ReadVocabulary(model["vocab"]);
  const auto merges = ReadMerges(model["merges"]);
  if (!errors_->ok()) return std::nullopt;
  absl::StatusOr<BpeModel> built =
      BpeModel::Create(std::move(vocabulary), merges, std::move(options));
  if (built.ok()) return *std::move(built);
  errors_->Invalid(std::string(built.status().message()));
  return std::nullopt;
}

std::vector<AddedToken> TokenizerJson::ReadAddedTokens() {
  std::vector<AddedToken> tokens;
  const JsonValue list = root_["added_tokens"];
  if (list.absent_or_null()) return tokens;
  std::unordered_set<std::string> contents;
  for (const auto& [name, node] : list.Array()) {
    if (!errors_->ok()) break;
    const JsonValue entry = list.Element(tokens.size(), node);
    entry.AllowMembers(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = static_cast<TokenId>(entry["id"].Int(0, kMaxTokenId));
    token.content = entry["content"].String();
    token.single_word = entry["single_word"].BoolOr(false);
    token.lstrip = entry["lstrip"].BoolOr(false);
    token.rstrip = entry["rstrip"].BoolOr(false);
    token.special = entry["special"].BoolOr(false);
    token.normalized = entry["normalized"].BoolOr(!token.special);
    if (!contents.insert(token.content).second)
      entry["content"].Expected("a token not listed before");
    PlaceAddedToken(entry, token);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// An added token repeats an entry of the vocabulary or has an id of its own.
void TokenizerJson::PlaceAddedToken(const JsonValue& entry, const AddedToken& token) {
  if (!errors_->ok()) return;
  const size_t at = static_cast<size_t>(token.id);
  if (at < taken_.size() && taken_[at]) {
    if (spellings_[at] == token.content) return;
    return entry["id"].Expected(
        absl::StrCat("an id of its own (", ShownText(spellings_[at]), " has the same)"));
  }
  const auto in_vocabulary = root_["model"]["vocab"][token.content];
  if (!in_vocabulary.absent_or_null()) {
    return entry["id"].Expected(absl::StrCat("the id of ", in_vocabulary.key()));
  }
  SpellToken(token.id, token.content);
}

PostProcessor TokenizerJson::ReadPostProcessor() {
  std::vector<SequenceTemplate> templates;
  ForEachStep(root_["post_processor"], "processors",
              [&](const JsonValue& step, const std::string& type) {
                if (type == "TemplateProcessing") {
                  templates.push_back(ReadTemplate(step));
                } else if (type == "ByteLevel") {  // moves offsets only
                  step.AllowMembers({"type", "add_prefix_space", "trim_offsets", "use_regex"});
                } else {
                  step["type"].Unsupported("ByteLevel, TemplateProcessing, Sequence");
                }
              });
  return PostProcessor(std::move(templates));
}

SequenceTemplate TokenizerJson::ReadTemplate(const JsonValue& step) {
  step.AllowMembers({"type", "single", "pair", "special_tokens"});
  SequenceTemplate result;
  const JsonValue single = step["single"];
  size_t sequences = 0;
  size_t position = 0;
  for (const auto& [name, node] : single.Array()) {
    if (!errors_->ok()) break;
    if (position == kMaxSteps) single.Unsupported(absl::StrCat("at most ", kMaxSteps, " elements"));
    const JsonValue piece = single.Element(position++, node);
    piece.AllowMembers({"SpecialToken", "Sequence"});
    if (!piece["Sequence"].absent_or_null()) {
      if (piece["Sequence"]["id"].String() != "A") piece["Sequence"]["id"].Unsupported("\"A\"");
      ++sequences;
      continue;
    }
    const JsonValue ids = step["special_tokens"][piece["SpecialToken"]["id"].String()]["ids"];
    std::vector<TokenId>* side = sequences == 0 ? &result.before : &result.after;
    for (const auto& [unused, id] : ids.Array()) {
      if (side->size() == kMaxSteps) ids.Unsupported(absl::StrCat("at most ", kMaxSteps, " ids"));
      if (!errors_->ok()) break;
      const int64_t highest = static_cast<int64_t>(spellings_.size()) - 1;
      side->push_back(static_cast<TokenId>(
          ids.Element(side->size(), id).Int(0, std::max<int64_t>(highest, 0))));
    }
  }
  if (sequences != 1) single.Unsupported("templates with the sequence \"A\" once");
  return result;
}

void TokenizerJson::ReadDecoder() {
  const JsonValue decoder = root_["decoder"];
  if (decoder.absent_or_null()) return decoder.Unsupported("ByteLevel");
  if (decoder["type"].String() != "ByteLevel") return decoder["type"].Unsupported("ByteLevel");
  decoder.AllowMembers({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

std::unique_ptr<Tokenizer> TokenizerJson::Build() {
  root_.AllowMembers({"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"});
  for (const char* section : {"truncation", "padding"}) {
    if (!root_[section].absent_or_null()) root_[section].Unsupported("null");
  }
  Normalizer normalizer = ReadNormalizer();
  PreTokenizer pre_tokenizer = ReadPreTokenizer();
  ReadDecoder();
  std::optional<BpeModel> model = ReadModel();
  const std::vector<AddedToken> added = ReadAddedTokens();
  PostProcessor post_processor = ReadPostProcessor();
  if (!errors_->ok()) return nullptr;
  absl::StatusOr<AddedTokens> added_tokens = AddedTokens::Create(added, normalizer);
  if (!added_tokens.ok()) {
    errors_->Invalid(std::string(added_tokens.status().message()));
    return nullptr;
  }
  std::vector<bool> special(spellings_.size());
  for (const AddedToken& token : added) {
    if (token.special) special[static_cast<size_t>(token.id)] = true;
    // Hugging Face (0.23) spells a normalized token as it is looked for.
    if (token.normalized) SpellToken(token.id, normalizer.Apply(token.content));
  }
  std::vector<std::string> token_bytes;
  token_bytes.reserve(spellings_.size());
  for (const std::string& spelling : spellings_) token_bytes.push_back(BytesOfByteLevel(spelling));
  return std::make_unique<PipelineTokenizer>(TokenizerParts{
      std::move(normalizer), *std::move(added_tokens), std::move(pre_tokenizer), *std::move(model),
      std::move(post_processor), std::move(token_bytes), std::move(special)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& tokenizer_json_path) {
  const absl::StatusOr<JsonDocument> document =
      JsonDocument::Read(tokenizer_json_path, kMaxFileBytes);
  if (!document.ok()) return document.status();
  JsonErrors errors(tokenizer_json_path);
  std::unique_ptr<Tokenizer> tokenizer = TokenizerJson(document->root(), &errors).Build();
  if (!errors.ok()) return errors.status();
  return tokenizer;
}

}  // namespace augur::engine
