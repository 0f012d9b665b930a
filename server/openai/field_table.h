// The fields of /v1/chat/completions, /v1/completions and /v1/responses: fields that are read one by one, fields that
// cannot change the answer, and fields of which the server supports only neutral values. The parser, the schemas and
// the table in docs/reference/api.md are made from this table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai/field_reader.h"
#include "server/openai/schemas.h"

namespace smartkv::openai {

enum class FieldUse : uint8_t {
  kHonoured,  // supported; read by the parser of its endpoint
  kIdle,      // accepted, and without effect on the answer
  kNeutral,   // accepted only at values that ask for nothing; any other value is a 400
};

struct FieldRow {
  std::string_view names;  // one name, or several with the same properties, separated by commas
  FieldUse use;
  std::vector<Body> bodies;                  // bodies that have the field
  std::string_view note = {};                // text for docs/reference/api.md
  std::vector<Json> neutral = {};            // accepted values of a neutral field, besides null
  Json::value_t type = Json::value_t::null;  // type of an idle field; null for any type

  bool is_of(Body body) const;  // whether `body` has the field
};

const std::vector<FieldRow>& field_table();

std::vector<std::string> field_names(const FieldRow& row);  // returns the row's names, one by one

// Reads the idle and neutral fields of a body, except best_of. Throws ApiError.
void read_table_fields(FieldReader& fields, Body body);

std::string field_table_markdown();  // returns the table for docs/reference/api.md

}  // namespace smartkv::openai
