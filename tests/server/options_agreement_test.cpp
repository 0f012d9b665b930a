// `config check` accepts a file exactly if the program starts with it, and both report the same errors.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/commands/command.h"
#include "tests/server/command_runner.h"
#include "tests/server/tiny_model_folder.h"

namespace smartkv {
namespace {

using nlohmann::json;
using test::Ran;
using test::run;
using ::testing::HasSubstr;

class Agreement : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = new test::TinyModelFolder("agreement_model"); }
  static void TearDownTestSuite() { delete model_; }

  // Returns what a command reports about the options, or "" if it accepts them.
  std::string said_by(const Ran& ran) const {
    if (ran.code == kOk) return "";
    std::string said = ran.error;
    for (const std::string& begin : {std::string("smartkv: "), file_ + ": "}) {
      if (said.starts_with(begin)) said.erase(0, begin.size());
    }
    return said;
  }
  std::string checked(const json& config) const {
    std::ofstream(file_) << config;
    return said_by(run({"config", "check", file_.c_str()}));
  }
  std::string started(const json& config) const {
    std::ofstream(file_) << config;
    return said_by(run({"generate", "--model", path_.c_str(), "--config", file_.c_str(), "--prompt", "a",
                        "--max-tokens", "1", "--log-level", "error"}));
  }
  std::string served(const json& config) const {
    std::ofstream(file_) << config;
    return said_by(
        run({"serve", "--port", "0", "--model", path_.c_str(), "--config", file_.c_str(), "--log-level", "error"}));
  }
  // This program has no module of backend torch, so options that are accepted for torch are not started. Returns
  // whether the options were accepted.
  bool expect_agreement(json config) const {
    config["kv_cache_bytes"] = 1 << 24;
    const std::string refusal = checked(config);
    if (!refusal.empty() || config.value("backend", "native") != "torch") {
      // A start ends with the first error; the check continues.
      const std::string first = refusal.empty() ? "" : refusal.substr(0, refusal.find('\n') + 1);
      EXPECT_EQ(started(config), first) << config;
    }
    return refusal.empty();
  }

  static test::TinyModelFolder* model_;
  const std::string path_ = model_->path(), file_ = ::testing::TempDir() + "agreement.json";
};
test::TinyModelFolder* Agreement::model_ = nullptr;

TEST_F(Agreement, TypesAndBackends) {
  int accepted = 0;
  for (const char* dtype : {"auto", "bf16", "f16", "f32"}) {
    for (const char* weights : {"auto", "file", "bf16", "f32", "int8", "int4"}) {
      for (const char* backend : {"native", "torch"}) {
        for (const char* draft_weights : {"none", "int4"}) {
          for (const int ranks : {1, 2}) {
            accepted += expect_agreement({{"dtype", dtype},
                                          {"weights", weights},
                                          {"backend", backend},
                                          {"draft_weights", draft_weights},
                                          {"tensor_parallel", ranks}});
          }
        }
      }
    }
  }
  // native accepts 10 combinations with bf16 activations, each with and without drafts of int4, and 3 of f32. torch
  // accepts 5 of 16 bits, each alone, with drafts and with ranks, and 3 of f32, each alone and with ranks.
  EXPECT_EQ(accepted, 2 * 10 + 3 + 3 * 5 + 2 * 3);
}

TEST_F(Agreement, DevicesAndGraphs) {
  for (const char* backend : {"native", "torch"}) {
    for (const char* device : {"cpu", "cuda:0", "cuda:x", "tpu"}) {
      for (const char* graphs : {"auto", "on", "off"}) {
        for (const int ranks : {1, 2}) {
          expect_agreement(
              {{"backend", backend}, {"device", device}, {"cuda_graphs", graphs}, {"tensor_parallel", ranks}});
        }
      }
    }
  }
}

TEST_F(Agreement, DefaultsOfRequests) {
  const std::vector<json> methods = {nullptr,
                                     "off",
                                     "ngram",
                                     "self",
                                     "auto",
                                     "draft_model",
                                     "other",
                                     {{"method", "self"}, {"weights", "int4"}},
                                     {{"method", "self"}, {"kv_cache", "pillar_attn"}},
                                     {{"method", "self"}, {"kv_cache", "pillar_attn"}, {"offload", true}},
                                     {{"method", "self"}, {"kv_cache", "ballanced"}},
                                     {{"method", "auto"}, {"kv_cache", "k4v4"}},
                                     {{"method", "auto"}, {"kv_cache", "pillar_attn"}},
                                     {{"method", "draft_model"}, {"kv_cache", "pillar_attn"}},
                                     {{"method", "ngram"}, {"tokens", 99}}};
  for (const json& method : methods) {
    for (const char* draft_weights : {"none", "int4"})
      expect_agreement({{"speculative", method}, {"draft_weights", draft_weights}});
    expect_agreement({{"speculative", method}, {"allowed_speculation", {"ngram"}}});
    expect_agreement({{"speculative", method}, {"backend", "torch"}, {"tensor_parallel", 2}});
  }
  for (const json& policy : {json(nullptr), json("full"), json("balanced"), json("ballanced"), json("pillar_attn"),
                             json({{"bits", 4}}), json({{"policy", "k4v4"}}), json({{"policy", 3}})}) {
    expect_agreement({{"kv_cache", policy}});
    expect_agreement({{"kv_cache", policy}, {"allowed_policies", {"full", "k4v4"}}});
    expect_agreement({{"kv_cache", policy}, {"allowed_policies", {"fool"}}});
  }
}

TEST_F(Agreement, SizesAndFiles) {
  for (const char* option : {"threads", "tensor_parallel", "kv_offload_bytes", "prefix_cache_bytes",
                             "prefix_cache_dir_bytes", "max_sequences", "max_queue", "prefill_chunk"}) {
    for (const int64_t value : {-2, -1, 0, 1, 64, 65, 1024}) expect_agreement({{option, value}});
  }
  for (const int64_t value : {-1, 0, 1024}) expect_agreement({{"context_length", value}});
  expect_agreement({{"backend", "torch"},
                    {"tensor_parallel", 2},
                    {"prefix_cache_dir", ::testing::TempDir() + "agreement_prefixes"}});
  const std::string chat_template = ::testing::TempDir() + "agreement.jinja";
  for (const char* text : {"", "{{ messages }}", "{% for %}", "{{ unclosed"}) {
    std::ofstream(chat_template) << text;
    expect_agreement({{"chat_template", chat_template}});
  }
  expect_agreement({{"sampling", {{"temperature", -1}}}});
  expect_agreement({{"max_buffered_bytes", 1000}});
}

TEST_F(Agreement, RopeScaling) {
  for (const json& scaling :
       {json(nullptr), json("none"), json("yarn"), json("longrope"), json(3), json({{"type", "stretch"}}),
        json({{"factor", 2}}), json({{"type", "yarn"}, {"factor", 0.5}}), json({{"type", "yarn"}, {"factor", 2}}),
        json({{"rope_type", "linear"}, {"factor", 2}}), json({{"type", "yarn"}, {"other", 1}})}) {
    // A context beyond the model's 1,024 tokens is refused only when the model is loaded, so scaling goes with one.
    const bool scales = scaling.is_object() || scaling == "yarn";
    expect_agreement({{"rope_scaling", scaling}, {"context_length", scales ? 2048 : 1024}});
  }
}

// `serve` refuses these before it loads the model.
TEST_F(Agreement, ServeRefusesWhatTheCheckRefuses) {
  for (const json& config : {json{{"dtype", "f16"}}, json{{"weights", "int4"}, {"dtype", "f32"}},
                             json{{"draft_weights", "int4"}, {"tensor_parallel", 2}, {"backend", "torch"}},
                             json{{"draft_weights", "int2"}}, json{{"rope_scaling", "longrope"}}}) {
    EXPECT_NE(checked(config), "") << config;
    EXPECT_EQ(served(config), checked(config)) << config;
  }
}

TEST_F(Agreement, NamesTheOption) {
  EXPECT_THAT(checked({{"dtype", "f16"}}),
              HasSubstr("dtype: expected auto, bf16 or f32 with backend native, found \"f16\""));
  EXPECT_THAT(checked({{"weights", "int4"}, {"dtype", "f32"}}),
              HasSubstr("weights: expected auto or f32 with dtype f32, found \"int4\""));
  EXPECT_THAT(checked({{"draft_weights", "int4"}, {"tensor_parallel", 2}, {"backend", "torch"}}),
              HasSubstr("draft_weights: expected none with tensor_parallel 2"));
  EXPECT_THAT(checked({{"weights", "f32"}, {"draft_weights", "int4"}}),
              HasSubstr("draft_weights: expected none with f32 activations (dtype auto, weights f32)"));
  EXPECT_THAT(checked({{"threads", 100}}), HasSubstr("threads: expected at most 64 per process, found 100"));
  EXPECT_THAT(checked({{"speculative", "draft_model"}}),
              HasSubstr("speculative.method: the server has loaded no draft model"));
  EXPECT_THAT(checked({{"kv_offload_bytes", 1}}), HasSubstr("kv_offload_bytes: expected 0 on device cpu"));
}

}  // namespace
}  // namespace smartkv
