// Files made to hurt, of a megabyte each: refused or read, in less than a second, and with no more
// than 16 times their bytes of memory. What is said of them is one line.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/json/json_document.h"
#include "engine/model/checkpoint.h"
#include "engine/model/model_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/kernels/kernel_test_data.h"
#include "tests/support/allocation_count.h"
#include "tests/support/checkpoint_writer.h"

namespace augur::engine {
namespace {

using tests::ReadWhole;
using tests::ScratchFolder;
using tests::WriteWhole;

constexpr size_t kBytes = 1 << 20;
constexpr int64_t kMostTimes = 16;
// Tables that are there whatever the file says: single characters, a buffer, the expressions.
constexpr int64_t kFixedBytes = 128 << 10;
constexpr double kMostSeconds = kernels::kSanitized ? 20.0 : 1.0;

double CpuSeconds() {
  timespec now = {};
  EXPECT_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// `unit` with a running number for every '#', ten more for '@', twice as much for '%'; up to
// `bytes`, with commas between.
std::string Many(const std::string& unit, size_t bytes = kBytes) {
  std::string text;
  for (size_t i = 0; text.size() < bytes; ++i) {
    if (i > 0) text += ',';
    for (const char c : unit) {
      if (c == '#') text += std::to_string(i);
      if (c == '@') text += std::to_string(i + 10);
      if (c == '%') text += std::to_string(2 * i);
      if (c != '#' && c != '@' && c != '%') text += c;
    }
  }
  return text;
}

std::string Repeated(const std::string& unit, size_t bytes = kBytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

struct Named {
  std::string name;
  std::string text;
};

// JSON that is dense in what a reader keeps, with any parser of it in mind.
std::vector<Named> DenseJson() {
  return {{"numbers", "[" + Many("0") + "]"},
          {"floats", "[" + Many("1e5") + "]"},
          {"empty arrays", "[" + Many("[]") + "]"},
          {"empty objects", "[" + Many("{}") + "]"},
          {"empty strings", "[" + Many("\"\"") + "]"},
          {"one-letter strings", "[" + Many("\"a\"") + "]"},
          {"keys", "{" + Many("\"#\":0") + "}"},
          {"the same key", "{" + Many("\"\":0") + "}"},
          {"objects of one", "[" + Many("{\"\":0}") + "]"},
          {"nested", "[" + Many(std::string(60, '[') + std::string(60, ']')) + "]"},
          {"one string", "[\"" + std::string(kBytes, 'x') + "\"]"},
          {"escapes", "[\"" + Repeated("\\u0041") + "\"]"},
          {"escaped keys", "{" + Many("\"\\n#\":\"\\u2581\"") + "}"},
          {"one number", "[" + std::string(kBytes, '1') + "]"},
          {"literals", "[" + Many("true,null") + "]"},
          {"brackets", std::string(kBytes, '[')},
          {"commas", "[" + std::string(kBytes, ',')},
          {"open objects", Repeated("{\"a\":")},
          {"white space", std::string(kBytes, ' ') + "0"},
          {"zeros", std::string(kBytes, '\0')},
          {"broken UTF-8", "[\"" + std::string(kBytes, '\xE4') + "\"]"}};
}

class HostileFiles : public testing::Test {
 protected:
  // Runs `read` on a file of that text; whether it was accepted.
  bool Read(const Named& file, const std::string& path,
            const std::function<absl::Status(const std::string&)>& read) {
    SCOPED_TRACE(file.name);
    WriteWhole(path, file.text);
    const int64_t bytes = static_cast<int64_t>(file.text.size());
    const double begin = CpuSeconds();
    const tests::AllocationPeak peak;
    const absl::Status status = read(path);
    const int64_t most = peak.bytes();
    const double seconds = CpuSeconds() - begin;
    worst_times_ = std::max(worst_times_, static_cast<double>(most) / static_cast<double>(bytes));
    worst_seconds_ = std::max(worst_seconds_, seconds);
    EXPECT_LE(most, kMostTimes * bytes + kFixedBytes);
    EXPECT_LT(seconds, kMostSeconds);
    EXPECT_EQ(status.message().find('\n'), std::string_view::npos);
    EXPECT_LT(status.message().size(), 1000u);
    return status.ok();
  }

  void TearDown() override {
    if (worst_times_ > 0) {
      std::printf("at most %.2f times a file's size, at most %.0f ms\n", worst_times_,
                  worst_seconds_ * 1e3);
    }
  }

  ScratchFolder scratch_;
  double worst_times_ = 0;
  double worst_seconds_ = 0;
};

absl::Status ReadTokenizer(const std::string& path) { return LoadTokenizer(path).status(); }
absl::Status ReadConfig(const std::string& path) { return LoadModelConfigFile(path).status(); }
absl::Status ReadCheckpoint(const std::string& path) { return Checkpoint::OpenFile(path).status(); }

// A tokenizer.json around these sections.
std::string TokenizerFile(const std::string& vocab, const std::string& merges,
                          const std::string& added, const std::string& more = "") {
  return R"({"model":{"type":"BPE","vocab":{)" + vocab + R"(},"merges":[)" + merges +
         R"(]},"decoder":{"type":"ByteLevel"},"added_tokens":[)" + added + "]" + more + "}";
}

std::vector<Named> HostileTokenizers() {
  const std::string few = R"("a":0,"b":1,"ab":2)";
  const std::string sequence = R"({"type":"Sequence","normalizers":[)";
  // Sequences of sequences: 16 to the power of 60 steps, were they all taken.
  std::string bomb = R"({"type":"NFC"})";
  for (int depth = 0; depth < 30 && bomb.size() < kBytes; ++depth) {
    bomb = sequence + bomb + "," + bomb + "]}";
  }
  // Every split of runs of one letter: the most merges for the least vocabulary.
  std::string runs;
  std::string splits;
  for (size_t length = 1; splits.size() < kBytes; ++length) {
    runs += (length > 1 ? ",\"" : "\"") + std::string(length, 'a') + "\":" + std::to_string(length);
    for (size_t left = 1; left < length; ++left) {
      splits += (splits.empty() ? "\"" : ",\"") + std::string(left, 'a') + " " +
                std::string(length - left, 'a') + "\"";
    }
  }
  const std::string flags = R"(,"special":true})";
  return {
      {"short tokens", TokenizerFile(Many("\"#\":#"), "", "")},
      {"long tokens", TokenizerFile(Many("\"" + std::string(1000, 'x') + "#\":#"), "", "")},
      {"one merge", TokenizerFile(few, Many("\"a b\""), "")},
      {"one merge, listed", TokenizerFile(few, Many(R"(["a","b"])"), "")},
      {"many merges", TokenizerFile(runs, splits, "")},
      {"added tokens", TokenizerFile(few, "", Many(R"({"id":@,"content":"#"})"))},
      {"special tokens", TokenizerFile(few, "", Many(R"({"id":@,"content":"<#>")" + flags))},
      {"long added tokens",
       TokenizerFile(few, "", Many(R"({"id":@,"content":")" + Repeated("xyz", 900) + R"(#"})"))},
      {"the same added token", TokenizerFile(few, "", Many(R"({"id":@,"content":"x"})"))},
      {"a hole", TokenizerFile(few + R"(,"c":4194303)", "", "")},
      {"an added hole", TokenizerFile(few, "", R"({"id":4194303,"content":"x"})")},
      {"every other id", TokenizerFile(Many("\"#\":%"), "", "")},
      {"growing added tokens",
       TokenizerFile(few, "", Many(R"({"id":@,"content":"ﷺﷺﷺﷺ#","normalized":true})"),
                     R"(,"normalizer":{"type":"NFKD"})")},
      {"sequences", TokenizerFile(few, "", "", ",\"normalizer\":" + bomb)},
      {"steps", TokenizerFile(few, "", "",
                              ",\"normalizer\":" + sequence + Many(R"({"type":"NFC"})") + "]}")},
      {"template", TokenizerFile(few, "", "",
                                 R"(,"post_processor":{"type":"TemplateProcessing",)"
                                 R"("special_tokens":{},"single":[)" +
                                     Many(R"({"Sequence":{"id":"A"}})") + "]}")},
      {"template ids", TokenizerFile(few, "", "",
                                     R"(,"post_processor":{"type":"TemplateProcessing","single":[)"
                                     R"({"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],)"
                                     R"("special_tokens":{"x":{"id":"x","ids":[)" +
                                         Many("0") + "]}}}")},
      {"a pattern", TokenizerFile(few, "", "",
                                  R"(,"pre_tokenizer":{"type":"Split","behavior":)"
                                  R"("Isolated","pattern":{"Regex":")" +
                                      std::string(kBytes, '(') + "\"}}")},
      {"a literal", TokenizerFile(few, "", "",
                                  R"(,"pre_tokenizer":{"type":"Split","behavior":)"
                                  R"("Isolated","pattern":{"String":")" +
                                      std::string(kBytes, '(') + "\"}}")},
      {"unknown keys", TokenizerFile(few, "", "", "," + Many("\"#\":{}"))}};
}

TEST_F(HostileFiles, TokenizersAreBounded) {
  for (const Named& file : DenseJson()) Read(file, scratch_.path() + "/t.json", ReadTokenizer);
  // The others must be read: what is refused at its first token shows nothing.
  const std::set<std::string> refused = {"the same added token",
                                         "a hole",
                                         "an added hole",
                                         "growing added tokens",
                                         "sequences",
                                         "steps",
                                         "template",
                                         "template ids",
                                         "a pattern",
                                         "a literal",
                                         "unknown keys"};
  for (const Named& file : HostileTokenizers()) {
    EXPECT_EQ(Read(file, scratch_.path() + "/t.json", ReadTokenizer), !refused.contains(file.name))
        << file.name;
  }
}

TEST_F(HostileFiles, ConfigsAreBounded) {
  for (const Named& file : DenseJson()) {
    Read(file, scratch_.path() + "/config.json", ReadConfig);
    if (file.text[0] != '[') continue;
    for (const char* key : {"eos_token_id", "architectures", "rope_scaling"}) {
      const std::string text =
          R"({"model_type":"llama","vocab_size":9,"hidden_size":64,"intermediate_size":64,)"
          R"("num_hidden_layers":1,"num_attention_heads":1,")" +
          std::string(key) + "\":" + file.text + "}";
      Read({file.name + std::string(", ") + key, text}, scratch_.path() + "/config.json",
           ReadConfig);
    }
  }
}

std::string SafetensorsFile(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header +
         std::string(data_bytes, '\0');
}

TEST_F(HostileFiles, CheckpointsAreBounded) {
  std::vector<Named> headers = DenseJson();
  for (const auto& [name, unit] :
       {std::pair("no data", R"("#":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})"),
        std::pair("long shapes", R"("#":{"dtype":"F32","shape":[0,0,0,0,0,0,0,0,0,0,0,0]})"),
        std::pair("metadata", R"("__metadata__":{"#":""})"),
        std::pair("tensors of numbers", R"("#":0)")}) {
    headers.push_back({name, "{" + Many(unit) + "}"});
  }
  for (const Named& header : headers) {
    Read({header.name, SafetensorsFile(header.text, 0)}, scratch_.path() + "/a", ReadCheckpoint);
  }
  // 16 MiB are read, and a byte more is not.
  const size_t most = 16 << 20;
  const std::string spaces = "{" + std::string(most - 2, ' ') + "}";
  Read({"the longest header", SafetensorsFile(spaces, 0)}, scratch_.path() + "/a", ReadCheckpoint);
  EXPECT_TRUE(ReadCheckpoint(scratch_.path() + "/a").ok());
  Read({"a longer header", SafetensorsFile(spaces + " ", 0)}, scratch_.path() + "/a",
       ReadCheckpoint);
  EXPECT_FALSE(ReadCheckpoint(scratch_.path() + "/a").ok());
}

TEST_F(HostileFiles, IndicesAreBounded) {
  const std::string path = scratch_.path() + "/model.safetensors.index.json";
  const auto open = [this](const std::string&) {
    return Checkpoint::Open(scratch_.path()).status();
  };
  for (const Named& file : DenseJson()) {
    Read(file, path, open);
    Read({file.name + ", mapped", R"({"weight_map":)" + file.text + "}"}, path, open);
  }
  Read({"many tensors", R"({"weight_map":{)" + Many("\"#\":\"a\"") + "}}"}, path, open);
  Read({"many shards", R"({"weight_map":{)" + Many("\"#\":\"#\"") + "}}"}, path, open);
}

// The data is read when it is asked for: a file that became shorter is an error, not a fault.
TEST_F(HostileFiles, AFileCutWhileItIsRead) {
  const std::string path = scratch_.path() + "/model.safetensors";
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[65536],"data_offsets":[0,262144]},)"
      R"("b":{"dtype":"F32","shape":[65536],"data_offsets":[262144,524288]}})";
  WriteWhole(path, SafetensorsFile(header, 524288));
  const auto checkpoint = Checkpoint::OpenFile(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_TRUE((*checkpoint)->Read("b", {65536}).ok());
  for (const off_t size : {off_t{300000}, off_t{4096}, off_t{0}}) {
    ASSERT_EQ(truncate(path.c_str(), size), 0);
    const auto data = (*checkpoint)->Read("b", {65536});
    ASSERT_FALSE(data.ok());
    EXPECT_NE(data.status().message().find("found the end"), std::string_view::npos)
        << data.status();
  }
}

// All files of a folder, cut at every 4 KiB and near their ends.
TEST_F(HostileFiles, CutAnywhere) {
  const std::string golden = std::string(AUGUR_SOURCE_DIR) + "/tests/golden/";
  const std::pair<std::string, std::function<absl::Status(const std::string&)>> files[] = {
      {golden + "tokenizers/llama2/tokenizer.json", ReadTokenizer},
      {golden + "tokenizers/qwen2/tokenizer.json", ReadTokenizer},
      {golden + "models/llama/config.json", ReadConfig},
      {golden + "models/llama/model.safetensors", ReadCheckpoint}};
  for (const auto& [source, read] : files) {
    SCOPED_TRACE(source);
    const std::string whole = ReadWhole(source);
    const std::string path = scratch_.path() + "/cut";
    std::vector<size_t> sizes;
    for (size_t size = 0; size < whole.size(); size += 4096) sizes.push_back(size);
    for (size_t less = 2; less < 20; ++less) sizes.push_back(whole.size() - less);
    for (const size_t size : sizes) {
      WriteWhole(path, whole.substr(0, size));
      const absl::Status status = read(path);
      EXPECT_FALSE(status.ok()) << size;
      EXPECT_EQ(status.message().find('\n'), std::string_view::npos);
    }
    WriteWhole(path, whole);
    EXPECT_TRUE(read(path).ok()) << read(path);
  }
}

TEST_F(HostileFiles, AnIndexNamesTheShardOfEachTensor) {
  const std::string folder = scratch_.path();
  const tests::TensorMap tensors = {{"a", {.dtype = "F32", .shape = {1}, .bytes = "1234"}},
                                    {"b", {.dtype = "F32", .shape = {1}, .bytes = "5678"}}};
  tests::WriteShards(folder, tensors, 2);
  EXPECT_TRUE(Checkpoint::Open(folder).ok());
  const auto refused = [&](const std::string& index, const std::string& words) {
    WriteWhole(folder + "/model.safetensors.index.json", index);
    const auto checkpoint = Checkpoint::Open(folder);
    ASSERT_FALSE(checkpoint.ok()) << index;
    EXPECT_NE(checkpoint.status().message().find(words), std::string_view::npos)
        << checkpoint.status();
  };
  refused(R"({"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors"}})",
          "tensor \"a\": expected in \"model-1.safetensors\"");
  refused(R"({"weight_map":{"a":"model-1.safetensors","b":"model-0.safetensors"}})",
          "tensor \"a\": expected in \"model-1.safetensors\", found in");
  refused(R"({"weight_map":{"a":"model-0.safetensors","a":"model-0.safetensors"}})",
          "found twice: \"a\"");
  WriteWhole(folder + "/model-1.safetensors", ReadWhole(folder + "/model-0.safetensors"));
  refused(R"({"weight_map":{"a":"model-0.safetensors","b":"model-1.safetensors"}})",
          "tensor \"a\": found twice");
}

}  // namespace
}  // namespace augur::engine
