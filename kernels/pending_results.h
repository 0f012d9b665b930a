// A guard for results that jobs of a backend still write to the caller's memory. If an exception is thrown before
// wait(), the destructor waits for the jobs. REQUIRES: it is created after that memory, so that it is destroyed first.
#pragma once

#include "kernels/page_ops.h"

namespace smartkv::kernels {

class PendingResults {
 public:
  explicit PendingResults(PageOps& pages) : pages_(&pages) {}
  PendingResults(const PendingResults&) = delete;
  PendingResults& operator=(const PendingResults&) = delete;
  ~PendingResults() {
    if (pages_ == nullptr) return;
    try {
      pages_->finish();
    } catch (...) {  // No more results will come.
    }
  }

  // Waits until all results are there. Throws what PageOps::finish() throws. REQUIRES: called at most once.
  void wait() {
    PageOps& pages = *pages_;
    pages_ = nullptr;
    pages.finish();
  }

 private:
  PageOps* pages_;
};

}  // namespace smartkv::kernels
