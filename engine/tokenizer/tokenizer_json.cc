// tokenizer.json to a PipelineTokenizer: one Read function a section. A section, step or key that
// is not known here is an error by name: what it would change is not known either.
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/json/json_value.h"
#include "engine/tokenizer/pipeline_tokenizer.h"
#include "engine/tokenizer/token_decoder.h"
#include "engine/tokenizer/token_table.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace augur::engine {
namespace {

// Tables are indexed by id: a vocabulary may have holes, but not be made of them.
constexpr size_t kMaxTokenId = (1 << 22) - 1;
constexpr size_t kFreeHoles = 1024;
constexpr size_t kMaxSteps = 16;
constexpr size_t kMaxTemplate = 64;  // elements of a template, ids on one side of the text
// What all Replace steps of a section may lengthen text together. Three is a space as Metaspace's
// character; more would let a small file take any amount of memory.
constexpr size_t kMaxGrowth = 8;
constexpr size_t kMaxPrependBytes = 256;
constexpr size_t kMaxPatternBytes = 32 << 10;
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

// How far a decoder has come: its steps are known in this order only.
enum class DecoderStage { kReplace, kMetaspace, kByteFallback, kFuse, kStrip, kByteLevel };

// What PipelineTokenizer decodes with.
TokenTable SpellTokens(const TokenTable& vocabulary, const AddedTokens& added,
                       const TokenDecoder& decoder, size_t ids) {
  TokenTable tokens;
  tokens.Reserve(ids, 0);
  const auto set = [&](TokenId id, std::string_view spelling) {
    decoder.metaspace.empty() ? tokens.Set(id, decoder.BytesOf(spelling, /*first=*/false))
                              : tokens.Set(id, spelling);
  };
  for (TokenId id = 0; static_cast<size_t>(id) < vocabulary.size(); ++id) {
    if (vocabulary.Has(id)) set(id, vocabulary.Text(id));
  }
  // Hugging Face (0.23) spells a normalized token as it is looked for.
  for (const AddedToken& token : added.tokens()) set(token.id, token.content);
  return tokens;
}

class TokenizerJson {
 public:
  TokenizerJson(JsonNode document, JsonErrors* errors)
      : root_(document, "", errors), errors_(errors) {}

  std::unique_ptr<Tokenizer> Build();

 private:
  Normalizer ReadNormalizer();
  void ReadNormalizerStep(const JsonValue& step, const std::string& type, size_t* growth,
                          std::vector<std::unique_ptr<NormalizerStep>>* steps);
  std::pair<std::string, std::string> ReadReplace(const JsonValue& step, size_t* growth);
  PreTokenizer ReadPreTokenizer();
  std::unique_ptr<PreTokenizerStep> ReadPreTokenizerStep(const JsonValue& step,
                                                         const std::string& type);
  std::unique_ptr<PreTokenizerStep> ReadSplitStep(const JsonValue& step);
  std::unique_ptr<PreTokenizerStep> ReadMetaspaceStep(const JsonValue& step);
  std::optional<BpeModel> ReadModel();
  BpeOptions ReadBpeOptions(const JsonValue& model);
  TokenTable ReadVocabulary(const JsonValue& vocab, size_t added_tokens);
  void ReadMerges(const JsonValue& merges, BpeModel* model);
  std::vector<AddedToken> ReadAddedTokens(const TokenTable& vocabulary);
  void CheckContentsDiffer(const JsonValue& list, const std::vector<AddedToken>& tokens);
  PostProcessor ReadPostProcessor();
  SequenceTemplate ReadTemplate(const JsonValue& step);
  TokenDecoder ReadDecoder();
  void ReadDecoderStep(const JsonValue& step, const std::string& type, size_t* growth,
                       DecoderStage* stage, TokenDecoder* decoder);
  PrependScheme ReadPrependScheme(const JsonValue& step);
  std::string ReadCharacter(const JsonValue& value);

  JsonValue root_;
  JsonErrors* errors_;
  TokenId highest_id_ = 0;  // as far as it has been read
};

Normalizer TokenizerJson::ReadNormalizer() {
  std::vector<std::unique_ptr<NormalizerStep>> steps;
  size_t growth = 1;
  ForEachStep(root_["normalizer"], "normalizers",
              [&](const JsonValue& step, const std::string& type) {
                ReadNormalizerStep(step, type, &growth, &steps);
              });
  return Normalizer(std::move(steps));
}

void TokenizerJson::ReadNormalizerStep(const JsonValue& step, const std::string& type,
                                       size_t* growth,
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
    std::string prefix = step["prepend"].String();
    if (prefix.size() > kMaxPrependBytes) {
      return step["prepend"].Unsupported(absl::StrCat("at most ", kMaxPrependBytes, " bytes"));
    }
    steps->push_back(MakePrependStep(std::move(prefix)));
  } else if (type == "Replace") {
    auto [pattern, content] = ReadReplace(step, growth);
    if (errors_->ok()) steps->push_back(MakeReplaceStep(std::move(pattern), std::move(content)));
  } else {
    step["type"].Unsupported("NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
  }
}

std::pair<std::string, std::string> TokenizerJson::ReadReplace(const JsonValue& step,
                                                               size_t* growth) {
  step.AllowMembers({"type", "pattern", "content"});
  const JsonValue pattern = step["pattern"];
  pattern.AllowMembers({"String"});
  std::pair<std::string, std::string> replace = {pattern["String"].String(),
                                                 step["content"].String()};
  const auto& [sought, content] = replace;
  if (sought.empty()) {
    pattern["String"].Expected("a string that is not empty");
  } else if (content.size() > sought.size()) {
    // Bounded before it is multiplied: kMaxSteps steps cannot overflow.
    *growth *= std::min(kMaxGrowth + 1, (content.size() + sought.size() - 1) / sought.size());
    if (*growth > kMaxGrowth) {
      step["content"].Unsupported(
          absl::StrCat("steps that lengthen text at most ", kMaxGrowth, " times together"));
    }
  }
  return replace;
}

PreTokenizer TokenizerJson::ReadPreTokenizer() {
  std::vector<std::unique_ptr<PreTokenizerStep>> steps;
  bool byte_level = false;
  ForEachStep(root_["pre_tokenizer"], "pretokenizers",
              [&](const JsonValue& step, const std::string& type) {
                // It spells bytes as characters; a second one would spell those.
                if (type == "ByteLevel" && std::exchange(byte_level, true)) {
                  step["type"].Unsupported("ByteLevel once");
                }
                if (auto made = ReadPreTokenizerStep(step, type)) steps.push_back(std::move(made));
              });
  return PreTokenizer(std::move(steps));
}

std::unique_ptr<PreTokenizerStep> TokenizerJson::ReadPreTokenizerStep(const JsonValue& step,
                                                                      const std::string& type) {
  if (type == "Digits") {
    step.AllowMembers({"type", "individual_digits"});
    return MakeDigitsStep(step["individual_digits"].Bool());
  }
  if (type == "ByteLevel") {
    step.AllowMembers({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return MakeByteLevelStep(step["add_prefix_space"].Bool(), step["use_regex"].BoolOr(true));
  }
  if (type == "Split") return ReadSplitStep(step);
  if (type == "Metaspace") return ReadMetaspaceStep(step);
  step["type"].Unsupported("ByteLevel, Digits, Metaspace, Split, Sequence");
  return nullptr;
}

// One character of UTF-8.
std::string TokenizerJson::ReadCharacter(const JsonValue& value) {
  std::string text = value.String();
  if (text.empty() || StepUtf8(text).length != text.size()) value.Expected("one character");
  return text;
}

PrependScheme TokenizerJson::ReadPrependScheme(const JsonValue& step) {
  static const std::unordered_map<std::string, PrependScheme> kSchemes = {
      {"always", PrependScheme::kAlways},
      {"first", PrependScheme::kFirst},
      {"never", PrependScheme::kNever}};
  PrependScheme prepend = PrependScheme::kAlways;
  if (const JsonValue scheme = step["prepend_scheme"]; !scheme.absent()) {
    const auto known = kSchemes.find(scheme.String());
    known == kSchemes.end() ? scheme.Unsupported("always, first, never")
                            : static_cast<void>(prepend = known->second);
  }
  // Files of before prepend_scheme have this alone.
  const JsonValue legacy = step["add_prefix_space"];
  if (legacy.absent_or_null() || legacy.Bool()) return prepend;
  if (!step["prepend_scheme"].absent() && prepend != PrependScheme::kNever) {
    legacy.Expected("true with this prepend_scheme");
  }
  return PrependScheme::kNever;
}

std::unique_ptr<PreTokenizerStep> TokenizerJson::ReadMetaspaceStep(const JsonValue& step) {
  step.AllowMembers(
      {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const PrependScheme prepend = ReadPrependScheme(step);
  const bool split = step["split"].absent_or_null() || step["split"].Bool();
  std::string replacement = ReadCharacter(step["replacement"]);
  if (!errors_->ok()) return nullptr;
  return MakeMetaspaceStep(std::move(replacement), prepend, split);
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
  if (expression.size() > kMaxPatternBytes) {
    source.Unsupported(absl::StrCat("at most ", kMaxPatternBytes, " bytes"));
    return nullptr;
  }
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

TokenTable TokenizerJson::ReadVocabulary(const JsonValue& vocab, size_t added_tokens) {
  TokenTable table;
  const JsonNode object = vocab.Object();
  if (object.size() == 0) vocab.Expected("at least one token");
  size_t bytes = 0;
  for (const auto& [name, node] : object) bytes += name.size();
  table.Reserve(object.size(), bytes);
  const size_t highest = std::min(kMaxTokenId, 2 * (object.size() + added_tokens) + kFreeHoles);
  for (const auto& [name, node] : object) {
    const JsonValue entry(node, absl::StrCat(vocab.key(), "[", ShownText(name), "]"), errors_);
    const TokenId id = static_cast<TokenId>(entry.Int(0, static_cast<int64_t>(highest)));
    if (!errors_->ok()) break;
    if (table.Has(id)) {
      entry.Expected(
          absl::StrCat("an id of its own (", ShownText(table.Text(id)), " has the same)"));
      break;
    }
    table.Set(id, name);
  }
  table.BuildIndex();
  return table;
}

void TokenizerJson::ReadMerges(const JsonValue& merges, BpeModel* model) {
  size_t rank = 0;
  for (const auto& [name, merge] : merges.Array()) {
    std::string_view left;
    std::string_view right;
    if (merge.is_string()) {
      const std::string_view text = merge.string();
      const size_t space = text.find(' ');
      if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
    } else if (merge.size() == 2 && merge.Element(0).is_string() && merge.Element(1).is_string()) {
      left = merge.Element(0).string();
      right = merge.Element(1).string();
    }
    const JsonValue entry = merges.Element(rank++, merge);
    if (left.empty() || right.empty()) {
      return entry.Expected("two tokens, as \"a b\" or [\"a\", \"b\"]");
    }
    if (const absl::Status added = model->AddMerge(left, right); !added.ok()) {
      return errors_->Invalid(absl::StrCat(entry.key(), ": ", std::string(added.message())));
    }
  }
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
  return options;
}

std::optional<BpeModel> TokenizerJson::ReadModel() {
  const JsonValue model = root_["model"];
  BpeOptions options = ReadBpeOptions(model);
  const JsonValue added = root_["added_tokens"];
  TokenTable vocabulary =
      ReadVocabulary(model["vocab"], added.absent_or_null() ? 0 : added.Array().size());
  if (!errors_->ok()) return std::nullopt;
  highest_id_ = static_cast<TokenId>(vocabulary.size()) - 1;
  absl::StatusOr<BpeModel> built = BpeModel::Create(std::move(vocabulary), std::move(options));
  if (!built.ok()) {
    errors_->Invalid(std::string(built.status().message()));
    return std::nullopt;
  }
  ReadMerges(model["merges"], &*built);
  return *std::move(built);
}

// An added token repeats an entry of the vocabulary or has an id of its own.
std::vector<AddedToken> TokenizerJson::ReadAddedTokens(const TokenTable& vocabulary) {
  std::vector<AddedToken> tokens;
  const JsonValue list = root_["added_tokens"];
  if (list.absent_or_null()) return tokens;
  const JsonNode nodes = list.Array();
  tokens.reserve(nodes.size());
  const size_t highest = std::min(kMaxTokenId, vocabulary.size() + 2 * nodes.size() + kFreeHoles);
  std::unordered_map<TokenId, size_t> places;
  for (const auto& [name, node] : nodes) {
    const JsonValue entry = list.Element(tokens.size(), node);
    entry.AllowMembers(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = static_cast<TokenId>(entry["id"].Int(0, static_cast<int64_t>(highest)));
    token.content = entry["content"].String();
    token.single_word = entry["single_word"].BoolOr(false);
    token.lstrip = entry["lstrip"].BoolOr(false);
    token.rstrip = entry["rstrip"].BoolOr(false);
    token.special = entry["special"].BoolOr(false);
    token.normalized = entry["normalized"].BoolOr(!token.special);
    const TokenId known = vocabulary.Find(token.content);
    const auto [place, fresh] = places.try_emplace(token.id, tokens.size());
    if (known >= 0 && known != token.id) {
      entry["id"].Expected(absl::StrCat(known, ", the id of the same token of model.vocab"));
    } else if (known < 0 && vocabulary.Has(token.id)) {
      entry["id"].Expected(absl::StrCat("an id of its own (", ShownText(vocabulary.Text(token.id)),
                                        " has the same)"));
    } else if (!fresh) {
      entry["id"].Expected(
          absl::StrCat("an id of its own (added_tokens[", place->second, "] has the same)"));
    }
    if (!errors_->ok()) break;
    highest_id_ = std::max(highest_id_, token.id);
    tokens.push_back(std::move(token));
  }
  CheckContentsDiffer(list, tokens);
  return tokens;
}

void TokenizerJson::CheckContentsDiffer(const JsonValue& list,
                                        const std::vector<AddedToken>& tokens) {
  std::vector<uint32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const int difference = tokens[a].content.compare(tokens[b].content);
    return difference != 0 ? difference < 0 : a < b;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const std::string& content = tokens[order[i]].content;
    if (content != tokens[order[i - 1]].content) continue;
    return errors_->Invalid(absl::StrCat(list.key(), "[", order[i],
                                         "].content: expected a token not listed before, found ",
                                         ShownText(content)));
  }
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
    if (position == kMaxTemplate)
      single.Unsupported(absl::StrCat("at most ", kMaxTemplate, " elements"));
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
      if (side->size() == kMaxTemplate)
        ids.Unsupported(absl::StrCat("at most ", kMaxTemplate, " ids"));
      if (!errors_->ok()) break;
      side->push_back(static_cast<TokenId>(ids.Element(side->size(), id).Int(0, highest_id_)));
    }
  }
  if (sequences != 1) single.Unsupported("templates with the sequence \"A\" once");
  return result;
}

TokenDecoder TokenizerJson::ReadDecoder() {
  TokenDecoder decoder;
  const JsonValue section = root_["decoder"];
  if (section.absent_or_null()) section.Unsupported("ByteLevel, Metaspace, Sequence");
  DecoderStage stage = DecoderStage::kReplace;
  size_t growth = 1;
  ForEachStep(section, "decoders", [&](const JsonValue& step, const std::string& type) {
    ReadDecoderStep(step, type, &growth, &stage, &decoder);
  });
  return decoder;
}

void TokenizerJson::ReadDecoderStep(const JsonValue& step, const std::string& type, size_t* growth,
                                    DecoderStage* stage, TokenDecoder* decoder) {
  static const std::unordered_map<std::string, DecoderStage> kStages = {
      {"Replace", DecoderStage::kReplace},
      {"Metaspace", DecoderStage::kMetaspace},
      {"ByteFallback", DecoderStage::kByteFallback},
      {"Fuse", DecoderStage::kFuse},
      {"Strip", DecoderStage::kStrip},
      {"ByteLevel", DecoderStage::kByteLevel}};
  const auto known = kStages.find(type);
  const bool repeats = type == "Replace" || type == "Fuse";
  // Another order would make what one token contributes depend on its neighbours. ByteLevel stands
  // alone; Strip is of the text and not of each token.
  if (known == kStages.end() || known->second < *stage ||
      (known->second == *stage && *stage != DecoderStage::kReplace && !repeats) ||
      (type == "ByteLevel" && *stage != DecoderStage::kReplace) ||
      (type == "Strip" && *stage != DecoderStage::kFuse) || decoder->byte_level ||
      (type == "ByteLevel" && !decoder->replacements.empty())) {
    return step["type"].Unsupported(
        "ByteLevel, or a Sequence of Replace, Metaspace, ByteFallback, Fuse, Strip in this order");
  }
  *stage = known->second;
  if (type == "Replace") {
    decoder->replacements.push_back(ReadReplace(step, growth));
  } else if (type == "Metaspace") {
    step.AllowMembers(
        {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    decoder->metaspace = ReadCharacter(step["replacement"]);
    decoder->metaspace_drops = ReadPrependScheme(step) != PrependScheme::kNever;
  } else if (type == "ByteFallback") {
    step.AllowMembers({"type"});
    decoder->byte_fallback = true;
  } else if (type == "Fuse") {
    step.AllowMembers({"type"});
  } else if (type == "Strip") {
    step.AllowMembers({"type", "content", "start", "stop"});
    decoder->strip.character = ReadCharacter(step["content"]);
    decoder->strip.most = static_cast<int>(step["start"].Int(0, 64));
    // The end of a text is not known while it streams.
    if (step["stop"].Int(0, INT32_MAX) != 0) step["stop"].Unsupported("0");
  } else {
    step.AllowMembers({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    decoder->byte_level = true;
  }
}

std::unique_ptr<Tokenizer> TokenizerJson::Build() {
  root_.AllowMembers({"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"});
  for (const char* section : {"truncation", "padding"}) {
    if (!root_[section].absent_or_null()) root_[section].Unsupported("null");
  }
  Normalizer normalizer = ReadNormalizer();
  PreTokenizer pre_tokenizer = ReadPreTokenizer();
  TokenDecoder decoder = ReadDecoder();
  std::optional<BpeModel> model = ReadModel();
  if (!errors_->ok()) return nullptr;
  std::vector<AddedToken> added = ReadAddedTokens(model->vocabulary());
  PostProcessor post_processor = ReadPostProcessor();
  if (!errors_->ok()) return nullptr;
  const size_t ids = static_cast<size_t>(highest_id_) + 1;
  std::vector<bool> special(ids);
  for (const AddedToken& token : added) special[static_cast<size_t>(token.id)] = token.special;
  absl::StatusOr<AddedTokens> added_tokens = AddedTokens::Create(std::move(added), normalizer);
  if (!added_tokens.ok()) {
    errors_->Invalid(std::string(added_tokens.status().message()));
    return nullptr;
  }
  TokenTable tokens = SpellTokens(model->vocabulary(), *added_tokens, decoder, ids);
  return std::make_unique<PipelineTokenizer>(TokenizerParts{
      std::move(normalizer), *std::move(added_tokens), std::move(pre_tokenizer), *std::move(model),
      std::move(post_processor), std::move(decoder), std::move(tokens), std::move(special)});
}

absl::StatusOr<std::unique_ptr<Tokenizer>> BuildTokenizer(
    const std::string& name, const absl::StatusOr<JsonDocument>& document) {
  if (!document.ok()) return document.status();
  JsonErrors errors(name);
  std::unique_ptr<Tokenizer> tokenizer = TokenizerJson(document->root(), &errors).Build();
  if (!errors.ok()) return errors.status();
  return tokenizer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& tokenizer_json_path) {
  return BuildTokenizer(tokenizer_json_path,
                        JsonDocument::Read(tokenizer_json_path, kMaxFileBytes));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizer(const std::string& name,
                                                          std::string_view json) {
  return BuildTokenizer(name, JsonDocument::Parse(name, json));
}

}  // namespace augur::engine
