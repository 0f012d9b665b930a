// Responses that POST /v1/responses keeps, for `previous_response_id` and GET. A response has its own input and a
// reference to the one before it, so a conversation takes bytes that grow with its length. Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/openai/error.h"
#include "server/openai/text_store.h"

namespace smartkv::openai {

struct StoredResponse {
  std::string owner;  // name of the API key that it belongs to; empty on a server without keys
  Json input;         // an array of items: the input of its own request
  Json response;      // as GET returns it
};

class StoredResponses {
 public:
  // A conversation whose stored texts have more than `max_conversation_bytes` in all cannot be continued.
  StoredResponses(std::unique_ptr<TextStore> texts, int64_t max_conversation_bytes);

  // Stores a response under its id. Returns false if there is no room for it.
  bool put(const StoredResponse& stored);
  // The others throw ApiError (404) if there is no such response that belongs to `owner`.
  StoredResponse get(const std::string& id, const std::string& owner);
  void erase(const std::string& id, const std::string& owner);
  // Returns the items of all turns before the output of a response. Throws as conversation() does, naming
  // `response_id`.
  Json input_items(StoredResponse last);
  // Returns the items, inputs and outputs, of all turns up to the response `id`. Throws ApiError (400) that names
  // `previous_response_id` if one of them is not stored.
  Json conversation(const std::string& id, const std::string& owner);

 private:
  std::optional<StoredResponse> find(const std::string& id, const std::string& owner, int64_t* bytes);

  std::unique_ptr<TextStore> texts_;
  int64_t max_conversation_bytes_;
};

// Returns a page of items, as OpenAI's API lists them. `query` has the parameters `limit`, `order`, `after` and
// `include`. Throws ApiError.
Json page_of_items(Json items, const Json& query);

ApiError response_not_found(const std::string& id);  // 404

}  // namespace smartkv::openai
