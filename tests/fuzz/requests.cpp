// Bytes of a connection. The same requests must come out however they are cut. The first byte sets the size of pieces.
#include "server/http/request_reader.h"
#include "server/openai/error.h"
#include "tests/fuzz/input.h"

namespace smartkv::fuzz {
namespace {

// Reads pieces of `step` bytes. Returns the requests that come out, one after the other, and the status of an error.
std::string read_all(std::string_view bytes, size_t step) {
  std::string seen;
  http::RequestReader reader({.head_bytes = 4096, .line_bytes = 1024, .fields = 16, .body_bytes = 4096});
  try {
    while (!bytes.empty()) {
      std::string_view piece = bytes.substr(0, step);
      bytes.remove_prefix(piece.size());
      while (!piece.empty()) {
        piece.remove_prefix(reader.read(piece));
        if (!reader.done()) continue;
        const http::Request& request = reader.request();
        seen += request.method + ' ' + request.path + '?' + request.query + '\n';
        for (const auto& fields : {request.fields, request.parameters()}) {
          for (const auto& [name, value] : fields) seen += name + ": " + value + '\n';
        }
        seen += request.body + "\n--\n";
        reader.reset();
      }
    }
  } catch (const openai::ApiError& error) {
    seen += std::to_string(error.status);
  }
  return seen;
}

}  // namespace
}  // namespace smartkv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace smartkv::fuzz;
  if (size == 0) return 0;
  const std::string_view bytes = text_of(data + 1, size - 1);
  // The result must not depend on the cuts.
  if (read_all(bytes, 1u + data[0]) != read_all(bytes, bytes.size() + 1)) __builtin_trap();
  return 0;
}
