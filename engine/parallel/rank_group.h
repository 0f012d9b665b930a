// Processes that run one model together, each a part of it: rank 0 is the one that serves, the others follow it.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace smartkv {

// A rank that is gone or does not answer. What the ranks computed together cannot go on.
class RankError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A rank's place, and where the ranks meet: a port of the loopback interface.
struct RankPlace {
  int rank = 0, size = 1;
  uint16_t port = 0;
  int listener = -1;  // rank 0's: a socket that listens there. The group takes it over
};

// Collective: every rank calls the same functions in the same order, one at a time. Each throws RankError.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Rank 0: a message for all others, which they get in order. Returns before they have it.
  virtual void send(std::span<const uint8_t> message) = 0;
  // All others: the next message, however long it takes.
  virtual std::vector<uint8_t> receive() = 0;
  // What each rank gives, in order of ranks.
  virtual std::vector<std::vector<uint8_t>> gather(std::span<const uint8_t> own) = 0;
  // Each place becomes the greatest value that a rank has there. patient: a rank may take as long as a model takes to load.
  virtual void max(std::span<int64_t> values, bool patient = false) = 0;
};

}  // namespace smartkv
