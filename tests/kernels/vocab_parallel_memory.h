// Bytes for contributions, aligned as they must be and filled with what no contribution looks like.
#ifndef LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_MEMORY_H_
#define LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge::test {

// Of `rows` rows; 0 = refused.
inline std::int64_t ContributionBytes(std::int64_t rows) {
  std::int64_t bytes = 0;
  lg_vocab_parallel_contribution_bytes(rows, &bytes);
  return bytes;
}

class ExchangeMemory {
 public:
  ExchangeMemory() = default;
  explicit ExchangeMemory(std::size_t bytes) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)), bytes_(bytes) {}
  unsigned char* data() { return reinterpret_cast<unsigned char*>(lines_.data()); }
  const unsigned char* data() const { return reinterpret_cast<const unsigned char*>(lines_.data()); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct alignas(64) Line {
    unsigned char bytes[64];
    Line() {
      for (unsigned char& byte : bytes) byte = 0xa5;
    }
  };
  std::vector<Line> lines_;
  std::size_t bytes_ = 0;
};

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_MEMORY_H_
