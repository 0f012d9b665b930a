// LibTorch's errors as ours.
#pragma once

#include <c10/util/Exception.h>

#include <stdexcept>
#include <string>

namespace smartkv {

// f(); an error of LibTorch's comes without the stack that it prints, as std::runtime_error.
template <typename F>
auto plain_errors(const F& f) {
  try {
    return f();
  } catch (const c10::Error& error) {
    throw std::runtime_error(std::string("LibTorch: ") + error.what_without_backtrace());
  }
}

}  // namespace smartkv
