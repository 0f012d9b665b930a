#include "server/http/playground.h"

namespace smartkv::http {

namespace {

// Trusted Types keep every script from turning text into markup, so text that a model writes stays text.
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

std::string content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  throw std::logic_error("the playground's file " + std::string(name) + " has no content type");
}

void send_file(const PlaygroundFile& file, const std::string& type, Response& response) {
  response.add_header("Content-Security-Policy", kContentSecurityPolicy);
  response.add_header("X-Content-Type-Options", "nosniff");
  response.add_header("Referrer-Policy", "no-referrer");
  response.add_header("Cross-Origin-Opener-Policy", "same-origin");
  response.add_header("Cache-Control", "no-cache");  // another version of the program may have different files
  response.body.assign(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
  response.content_type = type;
}

}  // namespace

std::vector<Route> playground_routes() {
  std::vector<Route> routes;
  for (const PlaygroundFile& file : playground_files()) {
    routes.push_back({.method = "GET",
                      .path = file.name == "index.html" ? "/" : "/playground/" + std::string(file.name),
                      .handler = [file, type = content_type(file.name)](
                                     const Request&, Response& response) { send_file(file, type, response); },
                      .open = true});
  }
  return routes;
}

}  // namespace smartkv::http
