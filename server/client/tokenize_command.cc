#include "server/client/tokenize_command.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "augur/v1/completions.grpc.pb.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/client/connection.h"
#include "server/client/exit_status.h"
#include "server/client/printing.h"
#include "server/client/prompt_input.h"

namespace augur::client {
namespace {

struct TokenizeOptions {
  ConnectionOptions connection{.server = kDefaultServer, .deadline_s = 60};
  std::string tokenizer;
  std::string file = "-";
  bool no_special_tokens = false;
  bool no_parse_special = false;
};

template <typename Ids>
bool PrintIds(const Ids& ids) {
  std::string line = "{\"ids\":[";
  for (auto it = ids.begin(); it != ids.end(); ++it) {
    if (it != ids.begin()) line += ',';
    line += std::to_string(*it);
  }
  return WriteOut(line + "]}\n");
}

int TokenizeOffline(const TokenizeOptions& options, const std::string& text) {
  const auto tokenizer = engine::LoadTokenizer(options.tokenizer);
  if (!tokenizer.ok()) {
    PrintError(std::string(tokenizer.status().message()));
    return kExitUsage;
  }
  engine::EncodeOptions encode;
  encode.add_special_tokens = !options.no_special_tokens;
  encode.parse_special = !options.no_parse_special;
  return PrintIds((*tokenizer)->Encode(text, encode)) ? kExitOk : kExitFailed;
}

int TokenizeByDaemon(const TokenizeOptions& options, const std::string& text) {
  v1::TokenizeRequest request;
  request.set_text(text);
  if (options.no_special_tokens) request.set_add_special_tokens(false);
  if (options.no_parse_special) request.set_parse_special(false);
  grpc::ClientContext context;
  SetDeadline(options.connection, &context);
  v1::TokenizeResponse response;
  const auto stub = v1::Completions::NewStub(Connect(options.connection));
  const grpc::Status status = stub->Tokenize(&context, request, &response);
  if (!status.ok()) {
    PrintFailure(options.connection, status);
    return kExitFailed;
  }
  return PrintIds(response.ids()) ? kExitOk : kExitFailed;
}

int RunTokenize(const TokenizeOptions& options) {
  const absl::StatusOr<std::string> text = ReadTextFile(options.file);
  if (!text.ok()) {
    PrintError(std::string(text.status().message()));
    return kExitUsage;
  }
  return options.tokenizer.empty() ? TokenizeByDaemon(options, *text)
                                   : TokenizeOffline(options, *text);
}

}  // namespace

void AddTokenizeCommand(CLI::App* app, std::function<int()>* run) {
  CLI::App* command =
      app->add_subcommand("tokenize", "Turn text from standard input into token ids, as JSON");
  const auto options = std::make_shared<TokenizeOptions>();  // shared: CLI11 copies the callback
  command->add_option("-f,--file", options->file, "Text to read, \"-\" for standard input")
      ->type_name("FILE")
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, "Work offline, with this tokenizer.json")
      ->type_name("FILE");
  command->add_flag("--no-special-tokens", options->no_special_tokens, "Add no begin token");
  command->add_flag("--no-parse-special", options->no_parse_special,
                    "Take special tokens that the text spells out as plain text");
  AddConnectionOptions(command, &options->connection);
  command->footer(
      "Prints {\"ids\":[...]}. The text is taken as it is, a line end that closes it included.");
  command->callback([options, run] { *run = [options] { return RunTokenize(*options); }; });
}

}  // namespace augur::client
