// Broken and unsupported tokenizer.json files: always a status that says where, never a crash.
#include <functional>
#include <random>

#include "tests/engine/tokenizer_fixture.h"

namespace augur::engine {
namespace {

using nlohmann::json;

// A whole small file: every section there is, few tokens.
json SmallFile() {
  json file = ReadJson(GoldenTokenizerPath("qwen2"));
  file["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}, {"<s>", 3}};
  file["model"]["merges"] = json::array({json::array({"a", "b"})});
  file["added_tokens"] = json::array({{{"id", 3},
                                       {"content", "<s>"},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}},
                                      {{"id", 4},
                                       {"content", "<x>"},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", true},
                                       {"special", false}}});
  file["post_processor"] = json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}})");
  return file;
}

// The message of the status that the changed file gives.
std::string ErrorOf(const std::function<void(json*)>& change) {
  json file = SmallFile();
  change(&file);
  const auto tokenizer = LoadFromText(file.dump());
  EXPECT_FALSE(tokenizer.ok()) << file.dump();
  return tokenizer.ok() ? "" : std::string(tokenizer.status().message());
}

void ExpectError(const std::function<void(json*)>& change, const std::string& where) {
  const std::string message = ErrorOf(change);
  EXPECT_NE(message.find(".json: " + where), std::string::npos)
      << message << "\nexpected: " << where;
}

TEST(TokenizerJson, SmallFileLoads) {
  const auto tokenizer = LoadFromText(SmallFile().dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("ab<x>a", {}), (std::vector<TokenId>{3, 2, 4, 0}));
  EXPECT_EQ((*tokenizer)->vocab_size(), 5);
}

TEST(TokenizerJson, MissingFile) {
  const auto tokenizer = LoadTokenizer("/nonexistent/tokenizer.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_TRUE(absl::IsNotFound(tokenizer.status())) << tokenizer.status();
  EXPECT_FALSE(LoadTokenizer("/").ok());
}

TEST(TokenizerJson, MissingKeys) {
  ExpectError([](json* f) { f->erase("model"); }, "model: expected an object, found nothing");
  ExpectError([](json* f) { (*f)["model"].erase("vocab"); }, "model.vocab: expected an object");
  ExpectError([](json* f) { (*f)["model"].erase("merges"); }, "model.merges: expected an array");
  ExpectError([](json* f) { f->erase("decoder"); }, "decoder: unsupported value nothing");
  ExpectError([](json* f) { (*f)["added_tokens"][0].erase("id"); },
              "added_tokens[0].id: expected an integer");
  ExpectError([](json* f) { (*f)["added_tokens"][1].erase("content"); },
              "added_tokens[1].content: expected a string");
  ExpectError([](json* f) { (*f)["pre_tokenizer"].erase("type"); },
              "pre_tokenizer.type: expected a string");
  ExpectError([](json* f) { (*f)["pre_tokenizer"].erase("pretokenizers"); },
              "pre_tokenizer.pretokenizers: expected an array");
  ExpectError([](json* f) { (*f)["pre_tokenizer"]["pretokenizers"][0].erase("pattern"); },
              "pre_tokenizer.pretokenizers[0].pattern: expected an object");
  ExpectError([](json* f) { (*f)["post_processor"].erase("special_tokens"); },
              "post_processor.special_tokens: expected");
}

TEST(TokenizerJson, WrongTypesAndValues) {
  ExpectError([](json* f) { *f = json::array(); }, ": expected an object, found an array");
  ExpectError([](json* f) { (*f)["model"] = 7; }, "model: expected an object, found 7");
  ExpectError([](json* f) { (*f)["model"]["vocab"]["b"] = "1"; },
              "model.vocab[\"b\"]: expected an integer from 0");
  ExpectError([](json* f) { (*f)["model"]["vocab"]["b"] = -1; },
              "model.vocab[\"b\"]: expected an integer from 0");
  ExpectError([](json* f) { (*f)["model"]["vocab"]["b"] = 1e300; },
              "model.vocab[\"b\"]: expected an integer from 0");
  ExpectError([](json* f) { (*f)["model"]["vocab"]["b"] = UINT64_MAX; },
              "model.vocab[\"b\"]: expected an integer");
  ExpectError([](json* f) { (*f)["model"]["vocab"]["b"] = 1 << 30; },
              "model.vocab[\"b\"]: expected an integer");
  ExpectError([](json* f) { (*f)["model"]["vocab"] = json::object(); },
              "model.vocab: expected at least one token");
  ExpectError([](json* f) { (*f)["model"]["ignore_merges"] = "yes"; },
              "model.ignore_merges: expected true or false");
  ExpectError([](json* f) { (*f)["model"]["unk_token"] = "<none>"; },
              "model.unk_token: expected a token of model.vocab");
  ExpectError([](json* f) { (*f)["added_tokens"][0]["lstrip"] = 1; },
              "added_tokens[0].lstrip: expected true or false");
  ExpectError([](json* f) { (*f)["added_tokens"][1]["content"] = ""; },
              "added_tokens[1].content: expected 1 to");
  ExpectError([](json* f) { (*f)["post_processor"]["special_tokens"]["<s>"]["ids"][0] = 5; },
              "post_processor.special_tokens.<s>.ids[0]: expected an integer from 0 to 4, found 5");
}

TEST(TokenizerJson, MergesOfUnknownTokens) {
  const auto with_merge = [](json merge) {
    return [merge](json* f) { (*f)["model"]["merges"].push_back(merge); };
  };
  ExpectError(with_merge("a z"), "model.merges[1]: expected tokens of model.vocab, found \"z\"");
  ExpectError(with_merge("b a"), "model.merges[1]: expected tokens of model.vocab, found \"ba\"");
  ExpectError(with_merge("a"), "model.merges[1]: expected two tokens");
  ExpectError(with_merge("a b c"), "model.merges[1]: expected two tokens");
  ExpectError(with_merge(json::array({"a"})), "model.merges[1]: expected two tokens");
  ExpectError(with_merge(json::array({"a", 1})), "model.merges[1]: expected two tokens");
  ExpectError(with_merge(nullptr), "model.merges[1]: expected two tokens");
}

TEST(TokenizerJson, DuplicateIds) {
  ExpectError([](json* f) { (*f)["model"]["vocab"]["b"] = 0; },
              "model.vocab[\"b\"]: expected an id of its own");
  ExpectError([](json* f) { (*f)["added_tokens"][1]["id"] = 3; },
              "added_tokens[1].id: expected an id of its own");
  ExpectError([](json* f) { (*f)["added_tokens"][0]["id"] = 9; },
              "added_tokens[0].id: expected 3, the id of the same token of model.vocab, found 9");
  ExpectError([](json* f) { (*f)["added_tokens"][1] = (*f)["added_tokens"][0]; },
              "added_tokens[1].id: expected an id of its own (added_tokens[0] has the same)");
  ExpectError(
      [](json* f) {
        json again = (*f)["added_tokens"][1];
        again["id"] = 5;
        (*f)["added_tokens"].push_back(again);
      },
      "added_tokens[2].content: expected a token not listed before, found \"<x>\"");
}

TEST(TokenizerJson, UnsupportedIsNamed) {
  const auto expect_unsupported = [](const std::function<void(json*)>& change,
                                     const std::string& key, const std::string& value) {
    ExpectError(change, key + ": unsupported value " + value);
  };
  expect_unsupported([](json* f) { (*f)["model"]["type"] = "Unigram"; }, "model.type",
                     "\"Unigram\"");
  expect_unsupported([](json* f) { (*f)["model"]["dropout"] = 0.1; }, "model.dropout", "0.1");
  expect_unsupported([](json* f) { (*f)["model"]["end_of_word_suffix"] = "</w>"; },
                     "model.end_of_word_suffix", "\"</w>\"");
  expect_unsupported([](json* f) { (*f)["model"]["novelty"] = 1; }, "model.novelty", "1");
  expect_unsupported([](json* f) { (*f)["normalizer"]["type"] = "BertNormalizer"; },
                     "normalizer.type", "\"BertNormalizer\"");
  expect_unsupported(
      [](json* f) {
        (*f)["pre_tokenizer"]["pretokenizers"][1] = {{"type", "Punctuation"}};
      },
      "pre_tokenizer.pretokenizers[1].type", "\"Punctuation\"");
  expect_unsupported([](json* f) { (*f)["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Odd"; },
                     "pre_tokenizer.pretokenizers[0].behavior", "\"Odd\"");
  expect_unsupported([](json* f) { (*f)["decoder"]["type"] = "WordPiece"; }, "decoder.type",
                     "\"WordPiece\"");
  expect_unsupported([](json* f) { (*f)["post_processor"]["type"] = "BertProcessing"; },
                     "post_processor.type", "\"BertProcessing\"");
  expect_unsupported(
      [](json* f) {
        (*f)["truncation"] = {{"max_length", 5}};
      },
      "truncation", "an object");
  expect_unsupported([](json* f) { (*f)["padding"] = {{"length", 5}}; }, "padding", "an object");
  ExpectError(
      [](json* f) {
        (*f)["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "a\\bc"}};
      },
      "pre_tokenizer.pretokenizers[0].pattern.Regex: unsupported regular expression construct "
      "\"\\b\"");
}

json Decoders(const std::vector<std::string>& steps) {
  const json known = json::parse(R"({
      "Replace": {"type": "Replace", "pattern": {"String": "_"}, "content": " "},
      "Metaspace": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": true},
      "ByteFallback": {"type": "ByteFallback"}, "Fuse": {"type": "Fuse"},
      "ByteLevel": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},
      "Strip": {"type": "Strip", "content": " ", "start": 1, "stop": 0},
      "CTC": {"type": "CTC"}})");
  json list = json::array();
  for (const std::string& step : steps) list.push_back(known.at(step));
  return {{"type", "Sequence"}, {"decoders", list}};
}

// Only where a token's text does not depend on what stands beside it.
TEST(TokenizerJson, DecodersInTheOrderThatStreams) {
  using Steps = std::vector<std::string>;
  for (const Steps& steps :
       {Steps{"Replace", "ByteFallback", "Fuse", "Strip"}, Steps{"Replace", "Replace", "Fuse"},
        Steps{"Metaspace"}, Steps{"Metaspace", "ByteFallback"}, Steps{"ByteLevel"}, Steps{}}) {
    json file = SmallFile();
    file["decoder"] = Decoders(steps);
    EXPECT_TRUE(LoadFromText(file.dump()).ok()) << file["decoder"];
  }
  for (const Steps& steps :
       {Steps{"ByteFallback", "Replace"}, Steps{"Strip"}, Steps{"Fuse", "Strip", "Strip"},
        Steps{"ByteLevel", "Fuse"}, Steps{"Replace", "ByteLevel"},
        Steps{"ByteFallback", "ByteLevel"}, Steps{"ByteLevel", "ByteLevel"},
        Steps{"Metaspace", "Metaspace"}, Steps{"CTC"}}) {
    json file = SmallFile();
    file["decoder"] = Decoders(steps);
    const auto tokenizer = LoadFromText(file.dump());
    ASSERT_FALSE(tokenizer.ok()) << file["decoder"];
    EXPECT_TRUE(absl::IsUnimplemented(tokenizer.status())) << tokenizer.status();
    EXPECT_NE(tokenizer.status().message().find(".type: unsupported value"), std::string::npos)
        << tokenizer.status();
  }
  ExpectError(
      [](json* f) {
        (*f)["decoder"] = Decoders({"Fuse", "Strip"});
        (*f)["decoder"]["decoders"][1]["stop"] = 1;
      },
      "decoder.decoders[1].stop: unsupported value 1; supported: 0");
}

TEST(TokenizerJson, MetaspaceMistakes) {
  const auto with = [](const char* key, const json& value) {
    return [key, value](json* f) {
      (*f)["pre_tokenizer"] = Decoders({"Metaspace"})["decoders"][0];
      (*f)["pre_tokenizer"][key] = value;
    };
  };
  ExpectError(with("replacement", "ab"), "pre_tokenizer.replacement: expected one character");
  ExpectError(with("replacement", ""), "pre_tokenizer.replacement: expected one character");
  ExpectError(with("prepend_scheme", "last"), "pre_tokenizer.prepend_scheme: unsupported value");
  ExpectError(with("add_prefix_space", false), "pre_tokenizer.add_prefix_space: expected true");
}

TEST(TokenizerJson, DeepNesting) {
  constexpr int kDepth = 100'000;
  const std::string arrays = std::string(kDepth, '[') + std::string(kDepth, ']');
  std::string objects;
  for (int i = 0; i < kDepth; ++i) objects += "{\"a\":";
  std::string sequences;
  for (int i = 0; i < kDepth; ++i) sequences += R"({"type":"Sequence","pretokenizers":[)";
  for (const std::string& text :
       {arrays, std::string(kDepth, '['), objects, R"({"pre_tokenizer":)" + sequences,
        R"({"normalizer":)" + arrays + "}"}) {
    const auto tokenizer = LoadFromText(text);
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_NE(tokenizer.status().message().find("nested deeper than 64"), std::string::npos)
        << tokenizer.status();
  }
}

TEST(TokenizerJson, ManySteps) {
  json file = SmallFile();
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  file["pre_tokenizer"]["pretokenizers"] = json::array();
  for (int i = 0; i < 100; ++i) file["pre_tokenizer"]["pretokenizers"].push_back(digits);
  EXPECT_FALSE(LoadFromText(file.dump()).ok());
}

TEST(TokenizerJson, TruncatedAnywhere) {
  const std::string text = SmallFile().dump();
  for (size_t length = 0; length < text.size(); length += 1 + length / 200) {
    const auto tokenizer = LoadFromText(text.substr(0, length));
    EXPECT_FALSE(tokenizer.ok()) << length;
  }
}

// Every value in turn becomes something else; files that still load must still work.
TEST(TokenizerJson, EveryValueReplaced) {
  const json flat = SmallFile().flatten();
  int loaded = 0;
  for (const auto& member : flat.items()) {
    for (const json& other : {json(), json(true), json(-1), json(1e99), json("\xC3\xA9"),
                              json::array(), json::object()}) {
      json file = SmallFile();
      file[json::json_pointer(member.key())] = other;
      const auto tokenizer = LoadFromText(file.dump());
      if (!tokenizer.ok()) continue;
      ++loaded;
      (*tokenizer)->Decode((*tokenizer)->Encode("ab <s>\xC3\xA9 <x>", {}), false);
    }
  }
  EXPECT_GT(loaded, 0);
}

TEST(TokenizerJson, DamagedBytes) {
  const std::string whole = SmallFile().dump();
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 1500; ++round) {
    std::string text = whole;
    const size_t changes = 1 + random() % 4;
    for (size_t i = 0; i < changes; ++i) {
      const size_t at = random() % text.size();
      const char* kBytes = "{}[]\",:0\\x\x01\xFF";
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 20);
      } else {
        text[at] = kBytes[random() % 12];
      }
      if (text.empty()) text = "{";
    }
    const auto tokenizer = LoadFromText(text);
    if (tokenizer.ok()) (*tokenizer)->Encode("abab<s>", {});
  }
}

}  // namespace
}  // namespace augur::engine
