// Maps field names of one API to those of another. A request of /v1/responses is turned into a chat request; the errors
// of that chat request have to name the fields that the client sent.
#pragma once

#include <map>
#include <string>

#include "server/openai/error.h"

namespace smartkv::openai {

class FieldNames {
 public:
  // Maps the field `inner` ("messages[2].content") to `outer` ("input[1].output"), and fields within it accordingly.
  void add(const std::string& inner, const std::string& outer) { outer_[inner] = outer; }

  // Returns the outer name of a path, according to the longest inner name that it begins with. Returns the path itself
  // if it begins with no inner name.
  std::string outer(const std::string& path) const;
  // Returns the error with its param renamed, in its message too.
  ApiError outer(const ApiError& error) const;

 private:
  std::map<std::string, std::string> outer_;  // by inner name
};

}  // namespace smartkv::openai
