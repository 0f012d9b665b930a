#include "server/commands/inspect.h"

#include <iomanip>
#include <map>
#include <ostream>

#include <nlohmann/json.hpp>

#include "engine/model/model_options.h"
#include "engine/text/chat_template_files.h"
#include "engine/text/tokenizer.h"
#include "engine/weights/model_fingerprint.h"
#include "engine/weights/padded_weights.h"
#include "engine/weights/weights.h"

namespace smartkv {
namespace {

nlohmann::ordered_json describe(const std::filesystem::path& path) {
  const std::unique_ptr<Weights> weights = Weights::open(path);
  const ModelConfig& c = weights->config();
  struct Kind {
    int64_t tensors = 0, parameters = 0, bytes = 0;
  };
  std::map<std::string, Kind> kinds;
  int64_t parameters = 0;
  for (const std::string& tensor_name : weights->names()) {
    const TensorView tensor = *weights->find(tensor_name);
    Kind& kind = kinds[std::string(tensor_type_info(tensor.type).name)];
    ++kind.tensors;
    kind.parameters += tensor.elements();
    kind.bytes += tensor.bytes();
    parameters += tensor.elements();
  }
  nlohmann::ordered_json json = {
      {"name", c.name},
      {"identity", model_identity(*weights)},
      {"format", weights->format()},
      {"architecture", c.architecture},
      {"parameters", parameters},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"n_layers", c.n_layers},
      {"n_heads", c.n_heads},
      {"n_kv_heads", c.n_kv_heads},
      {"head_dim", c.head_dim},
      {"vocab_size", c.vocab_size},
      {"context_length", c.context_length},
      {"sliding_window", c.sliding_window},
      {"window_layers", c.n_window_layers()},
      {"rope_theta", c.rope.theta},
      {"rope_scaling", name(c.rope.scaling)},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"kv_bytes_per_token_bf16", 4 * c.n_full_layers() * c.n_kv_heads * padded_config(c).head_dim}};
  if (c.n_experts > 0) {
    json["experts"] = {{"number", c.n_experts},
                       {"of_a_token", c.experts_per_token},
                       {"size", c.expert_size},
                       {"shared_size", c.shared_expert_size}};
  }
  for (const auto& [type, kind] : kinds) {
    json["tensors"][type] = {{"tensors", kind.tensors}, {"parameters", kind.parameters}, {"bytes", kind.bytes}};
  }
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(*weights, path);
  const auto special = [&](std::optional<TokenId> id) -> nlohmann::ordered_json {
    return id ? nlohmann::ordered_json(tokenizer->token_content(*id)) : nlohmann::ordered_json(nullptr);
  };
  json["tokenizer"] = {{"tokens", tokenizer->vocab_size()},
                       {"bos", special(tokenizer->bos())},
                       {"eos", special(tokenizer->eos())},
                       {"chat_template", !load_chat_templates(*weights, path).sources.empty()}};
  return json;
}

// Prints the members of an object line by line. Nested objects are indented below their key.
void print_description(const nlohmann::ordered_json& json, int indent, std::ostream& out) {
  for (const auto& [key, value] : json.items()) {
    out << std::string(static_cast<size_t>(indent), ' ') << std::left << std::setw(28 - indent) << key;
    if (value.is_object()) {
      out << '\n';
      print_description(value, indent + 2, out);
    } else {
      out << (value.is_string() ? value.get<std::string>() : value.dump()) << '\n';
    }
  }
}

}  // namespace

int inspect(const std::filesystem::path& model, bool json, std::ostream& out) {
  const nlohmann::ordered_json description = describe(model);
  if (json) {
    out << description.dump(2) << '\n';
  } else {
    print_description(description, 0, out);
  }
  return 0;
}

}  // namespace smartkv
