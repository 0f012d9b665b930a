#pragma once

#include <stdexcept>

namespace smartkv {

// A model cannot be fetched. The message says what to do.
class HubError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The hub cannot be reached.
class HubUnreachable : public HubError {
  using HubError::HubError;
};

}  // namespace smartkv
