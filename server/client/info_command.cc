#include "server/client/info_command.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "augur/v1/completions.grpc.pb.h"
#include "nlohmann/json.hpp"
#include "server/client/connection.h"
#include "server/client/exit_status.h"
#include "server/client/printing.h"

namespace augur::client {
namespace {

struct InfoOptions {
  ConnectionOptions connection{.server = kDefaultServer, .deadline_s = 10};
  bool json = false;
  bool kv = false;
};

std::string PolicyName(int policy) {
  switch (policy) {
    case v1::ATTENTION_POLICY_DENSE:
      return "dense";
    case v1::ATTENTION_POLICY_SPARSE:
      return "sparse";
    case v1::ATTENTION_POLICY_INFINIGEN:
      return "infinigen";
    case v1::ATTENTION_POLICY_FORECAST:
      return "forecast";
    default:
      return "policy " + std::to_string(policy);
  }
}

nlohmann::ordered_json KvToJson(const v1::KvInfo& kv) {
  nlohmann::ordered_json json;
  json["residency"] = kv.residency();
  json["page_bytes"] = kv.page_bytes();
  json["host_page_bytes"] = kv.host_page_bytes();
  json["slots"] = kv.slots();
  json["full_context"] = kv.full_context();
  json["pools"] = nlohmann::ordered_json::array();
  for (const v1::KvPool& pool : kv.pools()) {
    json["pools"].push_back({{"tier", pool.tier()},
                             {"unit_bytes", pool.unit_bytes()},
                             {"total", pool.total()},
                             {"held", pool.held()},
                             {"cached", pool.cached()},
                             {"free", pool.free()}});
  }
  return json;
}

std::string KvToTable(const v1::KvInfo& kv) {
  std::string text = "kv           " + EscapeControls(kv.residency()) + ", pages of " +
                     WithThousands(kv.page_bytes()) + " bytes";
  if (kv.host_page_bytes() != kv.page_bytes()) {
    text += ", on the host of " + WithThousands(kv.host_page_bytes()) + " bytes (fp8)";
  }
  if (kv.slots() > 0) {
    text += ", " + WithThousands(kv.slots()) + " slots for each layer and KV head";
  }
  text += "\n";
  for (const v1::KvPool& pool : kv.pools()) {
    std::string tier = EscapeControls(pool.tier()) + " pool";
    tier.resize(std::max<size_t>(tier.size(), 13), ' ');
    text += tier + WithThousands(pool.total()) + " x " + WithThousands(pool.unit_bytes()) +
            " bytes: " + WithThousands(pool.held()) + " held, " + WithThousands(pool.cached()) +
            " cached, " + WithThousands(pool.free()) + " free\n";
  }
  return text + "full context " + EscapeControls(kv.full_context()) + "\n";
}

std::string ToJson(const v1::GetModelResponse& model) {
  nlohmann::ordered_json json;
  json["model"] = model.model();
  json["family"] = model.family();
  json["dtype"] = model.dtype();
  json["num_parameters"] = model.num_parameters();
  json["vocab_size"] = model.vocab_size();
  json["max_context"] = model.max_context();
  json["eos_token_ids"] = model.eos_token_ids();
  json["text"] = model.text();
  json["policies"] = nlohmann::ordered_json::array();
  for (const int policy : model.policies()) json["policies"].push_back(PolicyName(policy));
  json["version"] = model.version();
  if (model.has_kv()) json["kv"] = KvToJson(model.kv());
  return json.dump() + "\n";
}

std::string ToTable(const v1::GetModelResponse& model) {
  std::string eos;
  for (const uint32_t id : model.eos_token_ids())
    eos += (eos.empty() ? "" : ", ") + std::to_string(id);
  std::string policies;
  for (const int policy : model.policies())
    policies += (policies.empty() ? "" : ", ") + PolicyName(policy);
  return "model        " + EscapeControls(model.model()) + "\n" + "family       " +
         EscapeControls(model.family()) + "\n" + "weights      " + EscapeControls(model.dtype()) +
         "\n" + "parameters   " + WithThousands(model.num_parameters()) + "\n" + "vocabulary   " +
         WithThousands(model.vocab_size()) + " tokens\n" + "context      " +
         WithThousands(model.max_context()) + " tokens\n" + "ends at      " +
         (eos.empty() ? "no token" : "token " + eos) + "\n" + "speaks       " +
         (model.text() ? "text and token ids" : "token ids only") + "\n" + "attention    " +
         policies + "\n" + "augurd       " + EscapeControls(model.version()) + "\n" +
         (model.has_kv() ? KvToTable(model.kv()) : "");
}

int RunInfo(const InfoOptions& options) {
  grpc::ClientContext context;
  SetDeadline(options.connection, &context);
  const auto stub = v1::Completions::NewStub(Connect(options.connection));
  v1::GetModelRequest request;
  request.set_kv(options.kv);
  v1::GetModelResponse model;
  const grpc::Status status = stub->GetModel(&context, request, &model);
  if (!status.ok()) {
    PrintFailure(options.connection, status);
    return kExitFailed;
  }
  return WriteOut(options.json ? ToJson(model) : ToTable(model)) ? kExitOk : kExitFailed;
}

}  // namespace

void AddInfoCommand(CLI::App* app, std::function<int()>* run) {
  CLI::App* command = app->add_subcommand("info", "Show which model is served, and its limits");
  const auto options = std::make_shared<InfoOptions>();  // shared: CLI11 copies the callback
  command->add_flag("--json", options->json, "One line of JSON");
  command->add_flag("--kv", options->kv, "The pools of KV memory now, and what a request takes");
  AddConnectionOptions(command, &options->connection);
  command->callback([options, run] { *run = [options] { return RunInfo(*options); }; });
}

}  // namespace augur::client
