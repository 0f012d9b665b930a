// Errors as OpenAI's API reports them: a status and {"error": {message, type, param, code}}.
// Source: OpenAI API reference, "Error codes".
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace smartkv::openai {

using Json = nlohmann::ordered_json;

constexpr int kClientClosedRequest = 499;  // nginx's code for a client that left; only metrics and the log show it

// An error to be sent to the client. what() is its message.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, std::string type, const std::string& message, std::string param = "", std::string code = "",
           int retry_after_s = 0);

  Json body() const;  // {"error": {...}}; an empty param or code is null

  int status;
  std::string type;
  std::string param;
  std::string code;
  int retry_after_s;  // value of the Retry-After header in seconds; 0 for no such header
};

// Make errors; the number is the status.
ApiError invalid_request(const std::string& param, const std::string& message);  // 400
ApiError model_not_found(const std::string& model);                              // 404
ApiError unknown_url(const std::string& method, const std::string& path);        // 404
ApiError server_error(const std::string& message);                               // 500
ApiError out_of_memory(const std::string& message);                              // 503
ApiError lost(const std::string& message);                                       // 503
ApiError draining();                                                             // 503
ApiError to_api_error(const RequestError& error);
ApiError internal_error(const std::exception& error);  // 500; out_of_memory() for std::bad_alloc

// Serialises `json`. Bytes that are not UTF-8 become U+FFFD, and exact integers (engine/text/exact_integer.h) are
// written with all their digits.
std::string dump(const Json& json);

}  // namespace smartkv::openai
