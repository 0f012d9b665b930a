// A guard for results that jobs of a backend still write to the caller's memory. If an exception is thrown before
// wait(), the destructor waits for the jobs. REQUIRES: it is created after that memory, so that it is destroyed first.
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
    } catch (...) {  // No more results will come.
    }
  }

  // Waits until all results are there. Throws what KvBackend::finish() throws. REQUIRES: called at most once.
  void wait() {
    KvBackend& backend = *backend_;
    backend_ = nullptr;
    backend.finish();
  }

 private:
  KvBackend* backend_;
};

}  // namespace smartkv::kernels
