// Sampling options on the command line: the fields of an API request that have flags in openai/field_table.h.
#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace smartkv {

// The object must outlive the parsing of `app`.
class SamplingFlags {
 public:
  SamplingFlags(CLI::App& app, int64_t max_tokens);             // `max_tokens` is the default of --max-tokens
  const nlohmann::ordered_json& body() const { return body_; }  // max_tokens and the fields that were given

 private:
  nlohmann::ordered_json body_;
};

}  // namespace smartkv
