#include "client/cpp/examples/pipeline_8b/shared_exchange.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "client/cpp/examples/pipeline_8b/bf16.h"
#include "client/cpp/examples/train_text/all_reduce.h"

namespace lossgauge::pipeline_8b {

std::unique_ptr<SharedExchange> SharedExchange::Create(train_text::RankGroup* group, std::int64_t most_bytes, std::string* error) {
  const auto bytes = static_cast<std::size_t>(2 * group->ranks() * most_bytes);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    *error = "cannot get " + std::to_string(bytes) + " bytes of shared memory: " + std::strerror(errno);
    return nullptr;
  }
  return std::unique_ptr<SharedExchange>(new SharedExchange(group, static_cast<unsigned char*>(memory), most_bytes));
}

SharedExchange::~SharedExchange() { munmap(memory_, static_cast<std::size_t>(2 * group_->ranks() * most_bytes_)); }

std::string SharedExchange::Gather(int rank, const void* part, void* gathered, std::int64_t bytes) {
  if (bytes > most_bytes_) return "an exchange of " + std::to_string(bytes) + " bytes has no room";
  // Two places take turns: a rank writes to one of them only after all have been at the barrier between, and so have read what was there before.
  unsigned char* const place = memory_ + turn_ * group_->ranks() * most_bytes_;
  turn_ ^= 1;
  std::memcpy(place + rank * most_bytes_, part, static_cast<std::size_t>(bytes));
  if (std::string error = group_->Barrier(rank); !error.empty()) return error;
  for (int r = 0; r < group_->ranks(); ++r) {
    std::memcpy(static_cast<unsigned char*>(gathered) + r * bytes, place + r * most_bytes_, static_cast<std::size_t>(bytes));
  }
  return "";
}

std::string SharedExchange::SumBf16(int rank, std::uint16_t* values, std::int64_t count) {
  std::vector<float> sum(static_cast<std::size_t>(std::min(count, kFloatsAtOnce)));
  for (std::int64_t first = 0; first < count; first += kFloatsAtOnce) {
    const auto now = static_cast<std::size_t>(std::min(count - first, kFloatsAtOnce));
    std::transform(values + first, values + first + now, sum.begin(), FromBf16);
    if (std::string error = group_->Sum(rank, std::span<float>(sum.data(), now)); !error.empty()) return error;
    std::transform(sum.begin(), sum.begin() + static_cast<std::ptrdiff_t>(now), values + first, ToBf16);
  }
  return "";
}

}  // namespace lossgauge::pipeline_8b
