// The playground: a page at / that talks with the model through the public API. Its files, server/playground/, are
// part of the program; it fetches nothing from elsewhere.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "server/http/http_server.h"

namespace smartkv::http {

struct PlaygroundFile {
  std::string_view name;  // "index.html"
  std::span<const std::byte> bytes;
};

std::vector<PlaygroundFile> playground_files();

// GET / for index.html, GET /playground/NAME for the others. They need no API key: the page asks for it. The headers
// keep the page from running or loading anything that is not one of these files, and from being framed.
std::vector<Route> playground_routes();

}  // namespace smartkv::http
