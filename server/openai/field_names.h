// The names that fields of one API have in another: a request of /v1/responses becomes one of chat, whose errors have to name
// the fields that the client sent.
#pragma once

#include <map>
#include <string>

#include "server/openai/error.h"

namespace smartkv::openai {

class FieldNames {
 public:
  // The field `inner` ("messages[2].content"), and all within it, is `outer` ("input[1].output") and what is within that.
  void add(const std::string& inner, const std::string& outer) { outer_[inner] = outer; }

  // Returns the outer name of a path, by the longest inner name that it begins with; the path itself if it begins with none.
  std::string outer(const std::string& path) const;
  // Returns the error with its param renamed, also where the message names that.
  ApiError outer(const ApiError& error) const;

 private:
  std::map<std::string, std::string> outer_;  // by inner name
};

}  // namespace smartkv::openai
