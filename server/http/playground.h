// The playground: a page at / that talks to the model through the public API. Its files, server/playground/, are built
// into the program, and it loads nothing from elsewhere.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "server/http/http_server.h"

namespace smartkv::http {

// A file that is built into the program.
struct PlaygroundFile {
  std::string_view name;  // "index.html"
  std::span<const std::byte> bytes;
};

std::vector<PlaygroundFile> playground_files();

// Returns the routes GET / (index.html) and GET /playground/NAME (the other files). They need no API key; the page asks
// for it. Their headers keep the page from running or loading anything but these files, and from being framed.
std::vector<Route> playground_routes();

}  // namespace smartkv::http
