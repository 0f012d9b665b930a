#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "server/openai/field_table.h"

namespace smartkv::openai {
namespace {

TEST(FieldTable, IsTheDocumentedOne) {
  std::ifstream file(SMARTKV_SOURCE "/docs/reference/api.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_NE(text.str().find(field_table_markdown()), std::string::npos)
      << "docs/reference/api.md: expected what `smartkv serve --print-fields` prints:\n" << field_table_markdown();
}

}  // namespace
}  // namespace smartkv::openai
