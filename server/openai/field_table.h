// The fields of /v1/chat/completions, /v1/completions and /v1/responses: those that are read one by one, those that cannot
// change the answer, and those that this server has only at their neutral values. The parser, the schemas and the table in
// docs/reference/api.md are made of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai/field_reader.h"
#include "server/openai/schemas.h"

namespace smartkv::openai {

enum class FieldUse : uint8_t {
  kHonoured,  // read elsewhere
  kIdle,      // taken, and without a say in the answer
  kNeutral,   // taken at the values that ask for nothing; any other is a 400
};

struct FieldRow {
  std::string_view names;  // one, or several that are alike, by commas
  FieldUse use;
  std::vector<Body> bodies;  // that take it
  std::string_view note = {};
  std::vector<Json> neutral = {};  // besides null
  Json::value_t type = Json::value_t::null;  // of an idle field; null: any

  bool is_of(Body body) const;
};

const std::vector<FieldRow>& field_table();

std::vector<std::string> field_names(const FieldRow& row);

// Reads the idle and neutral fields of a body. Throws ApiError.
void read_table_fields(FieldReader& fields, Body body);

std::string field_table_markdown();  // for docs/reference/api.md

}  // namespace smartkv::openai
