// Chat templates and special tokens from models' files, in every place where they may stand.
#include "engine/text/chat_template_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "engine/weights/gguf.h"
#include "engine/weights/weights.h"
#include "tests/weights/gguf_keys.h"
#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// A model that consists of metadata only.
class MetadataOnly final : public Weights {
 public:
  explicit MetadataOnly(const GgufFile* file) : file_(file) {}
  const ModelConfig& config() const override { return config_; }
  const GgufFile* gguf() const override { return file_; }
  std::string format() const override { return ""; }
  std::vector<std::string> names() const override { return {}; }
  std::optional<TensorView> find(std::string_view) const override { return std::nullopt; }
  int64_t file_row(std::string_view, int64_t row) const override { return row; }

 private:
  ModelConfig config_;
  const GgufFile* file_;
};

class ChatTemplateFilesTest : public ::testing::Test {
 protected:
  ChatTemplateFilesTest() : folder_(std::filesystem::path(::testing::TempDir()) / "chat_template_files") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "additional_chat_templates");
  }
  ~ChatTemplateFilesTest() override { std::filesystem::remove_all(folder_); }

  void write(const char* name, const std::string& text) { std::ofstream(folder_ / name, std::ios::binary) << text; }
  ChatTemplateFiles load() const { return load_chat_templates(MetadataOnly(nullptr), folder_); }
  std::string error() const {
    try {
      load();
    } catch (const TokenizerError& error) {
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path folder_;
};

TEST_F(ChatTemplateFilesTest, OfAConfigWithOneOrSeveral) {
  EXPECT_TRUE(load().sources.empty());
  write("tokenizer_config.json", R"({"chat_template": "a"})");
  EXPECT_THAT(load().sources, ElementsAre(Pair("default", "a")));
  write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}, {"name": "rag", "template": "c"}]})");
  EXPECT_THAT(load().sources, ElementsAre(Pair("default", "a"), Pair("rag", "c"), Pair("tool_use", "b")));
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "a"}, {"template": "b"}]})");
  EXPECT_THAT(error(), HasSubstr("tokenizer_config.json: chat_template[1]: expected an object with the strings"));
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "x", "template": "a"}, {"name": "x", "template": "b"}]})");
  EXPECT_THAT(error(), HasSubstr("chat_template[1]: the name \"x\" appears twice"));
  write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THAT(error(), HasSubstr("chat_template: expected a string, or an array"));
}

TEST_F(ChatTemplateFilesTest, OfAFolderCountBeforeThoseOfTheConfig) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "c"}]})");
  write("chat_template.jinja", "file");
  write("additional_chat_templates/tool_use.jinja", "tools");
  write("additional_chat_templates/notes.txt", "x");
  EXPECT_THAT(load().sources, ElementsAre(Pair("default", "file"), Pair("tool_use", "tools")));
}

TEST_F(ChatTemplateFilesTest, NameTheSpecialTokens) {
  write(
      "tokenizer_config.json",
      R"({"pad_token": "<pad>", "unk_token": {"content": "<unk>", "lstrip": false}, "cls_token": null, "bos_token": "<s>"})");
  write("special_tokens_map.json", R"({"pad_token": "other", "mask_token": {"content": "<mask>"}})");
  EXPECT_THAT(load().variables,
              ElementsAre(Pair("mask_token", "<mask>"), Pair("pad_token", "<pad>"), Pair("unk_token", "<unk>")));
}

TEST_F(ChatTemplateFilesTest, OfGgufKeys) {
  std::string text = "GGUF";
  const auto number = [&](auto value) { text.append(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto string = [&](const std::string& value) {
    number(uint64_t{value.size()});
    text += value;
  };
  number(uint32_t{3});
  number(uint64_t{0});
  number(uint64_t{1});
  string("tokenizer.ggml.tokens");
  for (const uint32_t type : {9, 8}) number(type);  // an array of strings
  number(uint64_t{2});
  string("x");
  string("<pad>");
  text = GgufKeys()
             .string("tokenizer.chat_template", "a")
             .string("tokenizer.chat_template.tool_use", "b")
             .string("tokenizer.chat_templates", "no template")
             .integer("tokenizer.ggml.padding_token_id", 1)
             .integer("tokenizer.ggml.unknown_token_id", UINT32_MAX)
             .in(text);
  const GgufFile file = GgufFile::parse(bytes_of(text), "m.gguf");
  const ChatTemplateFiles files = load_chat_templates(MetadataOnly(&file), "m.gguf");
  EXPECT_THAT(files.sources, ElementsAre(Pair("default", "a"), Pair("tool_use", "b")));
  EXPECT_THAT(files.variables, ElementsAre(Pair("pad_token", "<pad>")));
}

using OrderedJson = nlohmann::ordered_json;

TEST(NamedChatTemplates, ToolUseRendersWhatHasToDoWithTools) {
  const ChatTemplate both(ChatTemplateFiles{{{"default", "default{{ pad_token + unk_token|default('-') }}"},
                                             {"tool_use", "tools{{ tools|length }}{{ pad_token }}"}},
                                            {{"pad_token", "P"}}});
  const OrderedJson user = {{"role", "user"}, {"content", "a"}};
  const OrderedJson call = {{"role", "assistant"}, {"tool_calls", OrderedJson::array()}},
                    result = {{"role", "tool"}, {"content", "r"}};
  const OrderedJson tool = {{"type", "function"}};
  const auto render = [&](OrderedJson messages, OrderedJson tools) {
    return both.render({{"messages", std::move(messages)}, {"tools", std::move(tools)}});
  };
  EXPECT_EQ(render({user}, nullptr), "defaultP-");
  EXPECT_EQ(render({user}, OrderedJson::array()), "defaultP-");
  EXPECT_EQ(render({user}, {tool}), "tools1P");
  EXPECT_EQ(render({user, call}, OrderedJson::array()), "tools0P");
  EXPECT_EQ(render({user, result}, OrderedJson::array()), "tools0P");
  EXPECT_EQ(both.render({{"messages", {user}}, {"pad_token", "own"}}), "defaultown-");
}

TEST(NamedChatTemplates, FaultsNameTheTemplate) {
  const auto error_of = [](const ChatTemplateFiles& files) {
    try {
      return ChatTemplate(files).render({{"messages", OrderedJson::array()}});
    } catch (const ChatTemplateError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(error_of({{{"default", "a"}, {"tool_use", "{% x %}"}}, {}}),
            "chat template \"tool_use\": line 1: unknown tag \"x\"");
  EXPECT_THAT(error_of({{{"tool_use", "a"}}, {}}), HasSubstr("needs a conversation with tools"));
}

}  // namespace
}  // namespace smartkv
