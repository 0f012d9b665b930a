// Translates LibTorch's exceptions.
#pragma once

#include <c10/util/Exception.h>

#include <stdexcept>
#include <string>

namespace smartkv {

// Returns f(). Rethrows an error of LibTorch as std::runtime_error, without the stack trace in its message.
template <typename F>
auto plain_errors(const F& f) {
  try {
    return f();
  } catch (const c10::Error& error) {
    throw std::runtime_error(std::string("LibTorch: ") + error.what_without_backtrace());
  }
}

}  // namespace smartkv
