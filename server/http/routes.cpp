#include "server/http/routes.h"

#include <malloc.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <mutex>

#include "server/http/playground.h"
#include "server/openai/memory.h"
#include "server/openai/openapi.h"
#include "server/openai/tokenize.h"
#include "server/version.h"

namespace smartkv::http {

using openai::ApiError;
using openai::Json;

namespace {

// Tells a load balancer whether to send requests here: not while the server drains, nor while all requests fail.
void ready(const Service& service, const Request&, Response& response) {
  const bool draining = service.draining() || service.engine.draining();
  const char* status = draining ? "draining" : service.streams.failing() ? "failing" : "ok";
  response.status = status == std::string_view("ok") ? 200 : 503;
  send_json(response, {{"status", status}, {"model", service.model.names.front()}, {"version", kVersion}});
}

// Tells a supervisor whether to keep the process: it answers, and no process of its model is lost.
void alive(const Service& service, const Request&, Response& response) {
  const bool lost = !service.engine.lost().empty();
  response.status = lost ? 503 : 200;
  send_json(response,
            {{"status", lost ? "lost" : "alive"}, {"model", service.model.names.front()}, {"version", kVersion}});
}

// Returns a Unix time as RFC 3339 writes it.
std::string utc_time(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts = {};
  ::gmtime_r(&time, &parts);
  std::array<char, 32> text = {};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

Json model_json(const Service& service, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", service.created},
          {"owned_by", "smartkv"},
          // Members of Anthropic's API.
          {"type", "model"},
          {"display_name", name},
          {"created_at", utc_time(service.created)},
          {"lifecycle", "active"},
          {"max_input_tokens", service.engine.context_length()},
          {"max_tokens", service.engine.context_length()},
          {"root", service.engine.config().name},
          {"max_model_len", service.engine.context_length()},
          {"details", service.engine.describe()}};
}

void list_models(const Service& service, const Request&, Response& response) {
  Json data = Json::array();
  for (const std::string& name : service.model.names) data.push_back(model_json(service, name));
  send_json(response, {{"object", "list"},
                       {"data", std::move(data)},
                       {"has_more", false},
                       {"first_id", service.model.names.front()},
                       {"last_id", service.model.names.back()}});
}

// Returns what the "*" of a route "/v1/FOLDER/*" or "/v1/FOLDER/*/PART" stands for.
std::string name_in(const Request& request, std::string_view folder, std::string_view part = "") {
  std::string_view name = request.path;
  if (name.ends_with('/')) name.remove_suffix(1);
  name.remove_suffix(part.size());
  return std::string(name.substr(name.find(folder) + folder.size()));
}

void show_model(const Service& service, const Request& request, Response& response) {
  const std::string name = name_in(request, "/models/");
  const auto& names = service.model.names;
  if (std::find(names.begin(), names.end(), name) == names.end()) throw openai::model_not_found(name);
  send_json(response, model_json(service, name));
}

void refuse_embeddings(const Service&, const Request&, Response&) {
  throw ApiError(501, "invalid_request_error", "This server does not support embeddings", "", "not_supported");
}

// Returns the query parameters of a request: integers, strings, and a list NAME of the values of "NAME[]". Throws
// ApiError.
Json read_parameters(const Request& request) {
  Json given = Json::object();
  for (const auto& [key, value] : request.parameters()) {
    if (key.ends_with("[]")) {
      Json& list = given[key.substr(0, key.size() - 2)];
      if (!list.is_null() && !list.is_array()) throw openai::invalid_request(key, "'" + key + "' is given twice");
      list.push_back(value);
      continue;
    }
    if (given.contains(key)) throw openai::invalid_request(key, "'" + key + "' is given twice");
    const auto number = Json::parse(value, nullptr, false);
    given[key] = number.is_number_integer() ? number : Json(value);
  }
  return given;
}

// Reads `name`, the only query parameter of a request, an integer from `least` to `most`. Throws ApiError.
int64_t read_parameter(const Request& request, const char* name, int64_t fallback, int64_t least, int64_t most) {
  const Json given = read_parameters(request);
  openai::FieldReader fields(given);
  const int64_t value = fields.integer(name, fallback, least, most);
  fields.finish();
  return value;
}

void live(const Service& service, const Request& request, Response& response) {
  const int64_t number = read_parameter(request, "layer", -1, 0, openai::FieldReader::kNoLimit);
  const std::optional<int64_t> layer = number < 0 ? std::nullopt : std::optional(number);
  try {
    send_json(response, openai::live_json(service.engine.live(layer), service.engine.stats(), layer));
  } catch (const RequestError& error) {
    throw openai::to_api_error(error);
  }
}

void prefixes(const Service& service, const Request& request, Response& response) {
  const int64_t limit = read_parameter(request, "limit", 100, 1, kMostPrefixListings);
  send_json(response, openai::prefixes_json(service.engine.prefixes(limit), service.engine.stats()));
}

void metrics(const Service& service, const Request&, Response& response) {
  response.body = metrics_text(service.engine.stats(), service.model.names.front(), service.requests);
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
}

void send_version(const Service&, const Request&, Response& response) { send_json(response, {{"version", kVersion}}); }

void send_openapi(const Service&, const Request&, Response& response) { send_json(response, openai::openapi()); }

void send_plan(const Service& service, const Request& request, Response& response) {
  send_json(response, openai::plan(request.body, service.model));
}

// Tokens of a text outside of a generation take up to a hundred times its bytes. So large texts take turns, and give
// the memory back to the system.
class TextTurn {
 public:
  TextTurn(Service& service, const Request& request) {
    constexpr size_t kLarge = size_t{1} << 20;
    if (request.body.size() >= kLarge) turn_ = std::unique_lock(service.large_texts);
  }
  ~TextTurn() {
    if (turn_.owns_lock()) ::malloc_trim(0);
  }
  TextTurn(const TextTurn&) = delete;
  TextTurn& operator=(const TextTurn&) = delete;

 private:
  std::unique_lock<std::mutex> turn_;
};

void send_tokens(Service& service, const Request& request, Response& response) {
  const TextTurn turn(service, request);
  send_json(response, openai::tokenize(request.body, service.model));
}

void send_text(Service& service, const Request& request, Response& response) {
  const TextTurn turn(service, request);
  send_json(response, openai::detokenize(request.body, service.model));
}

void send_tokenizer_info(const Service& service, const Request&, Response& response) {
  send_json(response, openai::tokenizer_info(service.engine.tokenizer()));
}

void answer_completion(Service& service, const Request& request, ResponseWriter& response) {
  generate(service, openai::parse_completion(request.body, service.model), response);
}

void answer_chat(Service& service, const Request& request, ResponseWriter& response) {
  generate(service, openai::parse_chat(request.body, service.model), response);
}

void answer_responses(Service& service, const Request& request, ResponseWriter& response) {
  openai::StoredResponses* const stored = service.responses == nullptr ? nullptr : &service.responses->stored;
  respond(service,
          std::make_unique<openai::ResponsesRequest>(
              openai::parse_responses(request.body, service.model, stored, response.key_name())),
          response);
}

// Returns the stored responses. Throws ApiError if the server stores none.
ResponseStore& stored_responses(const Service& service, const std::string& id) {
  if (service.responses == nullptr) throw openai::response_not_found(id);
  return *service.responses;
}

constexpr std::string_view kResponses = "/responses/", kInputItems = "/input_items", kCancel = "/cancel";

void show_response(const Service& service, const Request& request, ResponseWriter& response) {
  const std::string id = name_in(request, kResponses);
  const Json parameters = read_parameters(request);
  openai::FieldReader fields(parameters);
  fields.only_default("stream", {"false"});
  fields.find("include");  // names parts that this server never makes
  fields.finish();
  send_json(response, stored_responses(service, id).show(id, response.key_name()));
}

void list_input_items(const Service& service, const Request& request, ResponseWriter& response) {
  const std::string id = name_in(request, kResponses, kInputItems);
  Json items = stored_responses(service, id).input_items(id, response.key_name());
  send_json(response, openai::page_of_items(std::move(items), read_parameters(request)));
}

void delete_response(const Service& service, const Request& request, ResponseWriter& response) {
  const std::string id = name_in(request, kResponses);
  stored_responses(service, id).erase(id, response.key_name());
  send_json(response, {{"id", id}, {"object", "response"}, {"deleted", true}});
}

void cancel_response(const Service& service, const Request& request, ResponseWriter& response) {
  const std::string id = name_in(request, kResponses, kCancel);
  send_json(response, stored_responses(service, id).cancel(id, response.key_name()));
}

// Throws ApiError unless the header anthropic-version is absent or a version of the API with the events of 2023-06-01,
// which later versions have kept. anthropic-beta is ignored: it turns on what this server has in any case, or refuses
// by the fields that ask for it.
void check_version(const Request& request) {
  static constexpr std::string_view kFirst = "2023-06-01";
  const std::string version = request.field("anthropic-version");
  if (version.empty()) return;
  bool date = version.size() == kFirst.size() && version >= kFirst;
  for (size_t i = 0; date && i < version.size(); ++i)
    date = kFirst[i] == '-' ? version[i] == '-' : version[i] >= '0' && version[i] <= '9';
  if (date) return;
  throw openai::invalid_request(
      "", "The header anthropic-version: expected a date from " + std::string(kFirst) + " on, found " + version);
}

void answer_messages(Service& service, const Request& request, ResponseWriter& response) {
  check_version(request);
  send_message(service, anthropic::parse_messages(request.body, service.model), response);
}

void send_token_count(Service& service, const Request& request, Response& response) {
  check_version(request);
  const TextTurn turn(service, request);
  send_json(response, anthropic::count_tokens(request.body, service.model));
}

}  // namespace

std::vector<Route> make_routes(Service& service) {
  const auto with = [s = &service](auto handler) {
    return [s, handler](const Request& request, ResponseWriter& response) { handler(*s, request, response); };
  };
  std::vector<Route> routes = {
      {.method = "GET", .path = "/health", .handler = with(ready), .open = true, .while_draining = true},
      {.method = "GET", .path = "/health/ready", .handler = with(ready), .open = true, .while_draining = true},
      {.method = "GET", .path = "/health/live", .handler = with(alive), .open = true, .while_draining = true},
      {.method = "GET", .path = "/metrics", .handler = with(metrics), .while_draining = true},
      {.method = "GET", .path = "/version", .handler = with(send_version), .open = true},
      {.method = "GET", .path = "/openapi.json", .handler = with(send_openapi), .open = true},
      {.method = "GET", .path = "/v1/kv", .handler = with(live), .while_draining = true},
      {.method = "GET", .path = "/v1/kv/prefixes", .handler = with(prefixes), .while_draining = true},
      {.method = "POST", .path = "/v1/plan", .handler = with(send_plan)},
      {.method = "POST", .path = "/v1/embeddings", .handler = with(refuse_embeddings)},
      {.method = "GET", .path = "/v1/models", .handler = with(list_models)},
      {.method = "GET", .path = "/v1/models/*", .handler = with(show_model)},
      {.method = "POST", .path = "/v1/completions", .handler = with(answer_completion)},
      {.method = "POST", .path = "/v1/chat/completions", .handler = with(answer_chat)},
      {.method = "POST", .path = "/v1/responses", .handler = with(answer_responses)},
      {.method = "GET", .path = "/v1/responses/*/input_items", .handler = with(list_input_items)},
      {.method = "POST",
       .path = "/v1/responses/*/cancel",
       .handler = with(cancel_response),
       .while_draining = true,
       .unlimited = true},
      {.method = "GET", .path = "/v1/responses/*", .handler = with(show_response), .while_draining = true},
      {.method = "DELETE", .path = "/v1/responses/*", .handler = with(delete_response)},
      {.method = "POST", .path = "/v1/messages", .handler = with(answer_messages)},
      {.method = "POST", .path = "/v1/messages/count_tokens", .handler = with(send_token_count)},
      {.method = "POST", .path = "/tokenize", .handler = with(send_tokens)},
      {.method = "POST", .path = "/detokenize", .handler = with(send_text)},
      {.method = "GET", .path = "/tokenizer_info", .handler = with(send_tokenizer_info)},
  };
  for (Route& route : playground_routes()) routes.push_back(std::move(route));
  return routes;
}

}  // namespace smartkv::http
