#include "server/openai/stored_responses.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/openai/api_request.h"
#include "server/openai/json_body.h"

namespace smartkv::openai {

namespace {

// Returns whether a text is an id as the server makes them. No other text reaches the store, which may name files.
bool is_response_id(std::string_view id) {
  static constexpr std::string_view kPrefix = "resp_";
  return id.size() == kPrefix.size() + kIdCharacters && id.starts_with(kPrefix) &&
         std::ranges::all_of(id.substr(kPrefix.size()),
                             [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'); });
}

constexpr size_t kRecordDepth = 2;  // a stored response lies so much deeper than the fields of its request

bool is_list_of_objects(const Json& json) {
  return json.is_array() && std::ranges::all_of(json, [](const Json& item) { return item.is_object(); });
}

}  // namespace

StoredResponses::StoredResponses(std::unique_ptr<TextStore> texts, int64_t max_conversation_bytes)
    : texts_(std::move(texts)), max_conversation_bytes_(max_conversation_bytes) {}

bool StoredResponses::put(const StoredResponse& stored) {
  return texts_->put(stored.response.at("id"),
                     dump({{"owner", stored.owner}, {"input", stored.input}, {"response", stored.response}}));
}

std::optional<StoredResponse> StoredResponses::find(const std::string& id, const std::string& owner, int64_t* bytes) {
  if (!is_response_id(id)) return std::nullopt;
  const std::optional<std::string> text = texts_->get(id);
  if (!text) return std::nullopt;
  *bytes += static_cast<int64_t>(text->size());
  try {  // the file may be damaged
    Json stored = parse_json(*text, {.max_depth = kMaxJsonDepth + kRecordDepth});
    Json &input = stored.at("input"), &response = stored.at("response");
    if (stored.at("owner") != owner || response.at("id") != id) return std::nullopt;
    if (!is_list_of_objects(input) || !is_list_of_objects(response.at("output"))) return std::nullopt;
    return StoredResponse{owner, std::move(input), std::move(response)};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

StoredResponse StoredResponses::get(const std::string& id, const std::string& owner) {
  int64_t bytes = 0;
  std::optional<StoredResponse> found = find(id, owner, &bytes);
  if (!found) throw response_not_found(id);
  return std::move(*found);
}

void StoredResponses::erase(const std::string& id, const std::string& owner) {
  get(id, owner);
  if (!texts_->erase(id)) throw response_not_found(id);
}

Json StoredResponses::input_items(StoredResponse last) {
  const Json& before = last.response["previous_response_id"];
  Json items = Json::array();
  if (before.is_string()) {
    try {
      items = conversation(before, last.owner);
    } catch (const ApiError& error) {
      throw ApiError(error.status, error.type, error.what(), "response_id", error.code);
    }
  }
  for (Json& item : last.input) items.push_back(std::move(item));
  return items;
}

Json StoredResponses::conversation(const std::string& id, const std::string& owner) {
  const auto refuse = [](const std::string& message, const char* code) {
    return ApiError(400, "invalid_request_error", message, "previous_response_id", code);
  };
  std::vector<StoredResponse> turns;  // the last first, so that the first is the most recently used: it is deleted last
  int64_t bytes = 0;
  for (std::optional<std::string> next = id; next;) {
    std::optional<StoredResponse> turn = find(*next, owner, &bytes);
    if (!turn) {
      throw refuse("Previous response with id '" + *next + "' not found" +
                       (*next == id ? "" : ": it is part of the conversation before '" + id + "'"),
                   "previous_response_not_found");
    }
    if (bytes > max_conversation_bytes_) {
      throw refuse("'previous_response_id': the conversation has more than " + std::to_string(max_conversation_bytes_) +
                       " bytes (max_body_bytes)",
                   "request_too_large");
    }
    const Json& before = turn->response["previous_response_id"];
    next = before.is_string() ? std::optional(before.get<std::string>()) : std::nullopt;
    turns.push_back(std::move(*turn));
  }
  Json items = Json::array();
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    for (Json* part : {&turn->input, &turn->response["output"]}) {
      for (Json& item : *part) items.push_back(std::move(item));
    }
  }
  return items;
}

Json page_of_items(Json items, const Json& query) {
  FieldReader fields(query);
  const auto limit = static_cast<size_t>(fields.integer("limit", 20, 1, 100));
  const std::string order = fields.string("order").value_or("desc");
  if (order != "asc" && order != "desc")
    throw invalid_request("order", "'order': expected asc or desc, found " + dump(order));
  const std::string after = fields.string("after").value_or("");
  fields.find("include");  // names parts that this server never makes
  fields.finish();
  if (order == "desc") std::reverse(items.begin(), items.end());
  auto first = items.begin();
  if (!after.empty()) {
    first = std::ranges::find_if(items, [&](const Json& item) { return item.value("id", "") == after; });
    if (first == items.end()) throw invalid_request("after", "'after': no item has the id " + dump(after));
    ++first;
  }
  const auto left = static_cast<size_t>(items.end() - first);
  Json data = Json::array();
  for (auto item = first; data.size() < std::min(limit, left); ++item) data.push_back(*item);
  const auto id_of = [&](size_t index) { return data.empty() ? Json(nullptr) : data[index]["id"]; };
  Json page = {{"object", "list"}, {"has_more", left > data.size()}};
  page["first_id"] = id_of(0);
  page["last_id"] = id_of(data.size() - 1);
  page["data"] = std::move(data);
  return page;
}

ApiError response_not_found(const std::string& id) {
  return ApiError(404, "invalid_request_error", "Response with id '" + id + "' not found", "response_id");
}

}  // namespace smartkv::openai
