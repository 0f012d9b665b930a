// Config files and files of API keys. The first byte chooses between them.
#include "server/commands/common.h"
#include "server/http/api_keys.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace smartkv;
  if (size == 0) return 0;
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  try {
    if (data[0] % 2 == 0) {
      http::parse_api_keys(text, "keys.json");
    } else {
      ServerOptions options;
      read_config(text, "config.json", &options);
      complete(&options);
      config_text(options);
    }
  } catch (const ConfigError&) {
  } catch (const http::KeyFileError&) {
  }
  return 0;
}
