// Results of a backend's jobs that are on their way to memory of the caller's: made after that memory, it waits for them where
// something throws before wait().
#pragma once

#include "kernels/kv_backend.h"

namespace smartkv::kernels {

class PendingResults {
 public:
  explicit PendingResults(KvBackend& backend) : backend_(&backend) {}
  PendingResults(const PendingResults&) = delete;
  PendingResults& operator=(const PendingResults&) = delete;
  ~PendingResults() {
    if (backend_ == nullptr) return;
    try {
      backend_->finish();
    } catch (...) {  // nothing comes any more
    }
  }

  void wait() {
    KvBackend& backend = *backend_;
    backend_ = nullptr;
    backend.finish();
  }

 private:
  KvBackend* backend_;
};

}  // namespace smartkv::kernels
