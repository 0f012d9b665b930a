// The fields of /v1/chat/completions and /v1/completions that are not read one by one: those that cannot change the
// answer, and those that this server has only at their neutral values. With the others they make the README's table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai/field_reader.h"

namespace smartkv::openai {

enum class FieldUse : uint8_t {
  kHonoured,  // read elsewhere; here for the table
  kIdle,      // taken, and without a say in the answer
  kNeutral,   // taken at the values that ask for nothing; any other is a 400
};

struct FieldRow {
  std::string_view names;  // one, or several that are alike, by commas
  FieldUse use;
  bool chat = true, completions = true;
  std::string_view note = {};
  std::vector<Json> neutral = {};  // besides null
  Json::value_t type = Json::value_t::null;  // of an idle field; null: any
};

const std::vector<FieldRow>& field_table();

std::vector<std::string> field_names(const FieldRow& row);

// Reads the idle and neutral fields of a request. Throws ApiError.
void read_table_fields(FieldReader& fields, bool chat);

std::string field_table_markdown();  // for the README

}  // namespace smartkv::openai
