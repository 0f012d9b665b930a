// Processes that compute one model together (tensor parallelism), each of them a part. Rank 0 serves; the others follow
// it.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace smartkv {

// A tensor-parallel rank is gone or does not answer. The ranks cannot continue.
class RankError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The place of a rank in its group, and where the ranks meet.
struct RankPlace {
  int rank = 0, size = 1;
  uint16_t port = 0;  // port of the loopback interface where the ranks meet
  int listener = -1;  // rank 0 only: a socket that listens on the port; the group takes ownership
};

// Communication between the tensor-parallel ranks. All functions are collective: every rank calls the same ones in the
// same order, one at a time. All of them throw RankError.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Sends a message to all other ranks, which receive messages in order. Returns before they have it. Called by rank 0
  // only.
  virtual void send(std::span<const uint8_t> message) = 0;
  // Waits for the next message, however long it takes. Called by all ranks except 0.
  virtual std::vector<uint8_t> receive() = 0;
  // Returns the bytes that each rank passed as `own`, by rank number.
  virtual std::vector<std::vector<uint8_t>> gather(std::span<const uint8_t> own) = 0;
  // Replaces each element by the largest value that a rank has in its place. `patient` lets the call wait for a rank
  // that is still loading its model.
  virtual void max(std::span<int64_t> values, bool patient = false) = 0;
};

}  // namespace smartkv
