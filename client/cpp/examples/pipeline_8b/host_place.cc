// Ranks on the CPU backend: host memory, and exchanges through memory that the processes share.
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "client/cpp/examples/pipeline_8b/bf16.h"
#include "client/cpp/examples/pipeline_8b/place.h"
#include "client/cpp/examples/train_text/all_reduce.h"
#include "client/cpp/examples/train_text/random.h"

namespace lossgauge::pipeline_8b {
namespace {

using train_text::RandomNormal;

double Head(std::uint64_t seed, std::int64_t row, std::int64_t k) {
  return RandomNormal(seed, 100 + static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(k));
}

class HostPlace final : public Place {
 public:
  HostPlace(int rank, SharedExchange* exchange) : rank_(rank), exchange_(exchange) {}

  void* stream() const override { return nullptr; }
  void* Allocate(std::int64_t bytes) override {
    void* memory = std::aligned_alloc(256, static_cast<std::size_t>((bytes + 256) / 256 * 256));
    if (memory == nullptr) std::abort();
    return memory;
  }
  void Free(void* memory) override { std::free(memory); }
  void Clear(void* memory, std::int64_t bytes) override { std::memset(memory, 0, static_cast<std::size_t>(bytes)); }
  void Write(void* to, const void* from, std::int64_t bytes) override { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }
  void Read(void* to, const void* from, std::int64_t bytes) override { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }
  void FillHead(void* head, std::int64_t first, std::int64_t rows, std::int64_t width, std::uint64_t seed) override {
    auto* to = static_cast<std::uint16_t*>(head);
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t k = 0; k < width; ++k) *to++ = ToBf16(static_cast<float>(scale * Head(seed, first + i, k)));
    }
  }
  void FillHidden(void* hidden, const std::int64_t* targets, std::int64_t rows, std::int64_t width, double lead, std::uint64_t seed,
                  std::uint64_t head_seed) override {
    auto* to = static_cast<std::uint16_t*>(hidden);
    const double pull = lead / std::sqrt(static_cast<double>(width));
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t k = 0; k < width; ++k) {
        const double noise = RandomNormal(seed, 7, static_cast<std::uint64_t>(i * width + k));
        *to++ = ToBf16(static_cast<float>(noise + (targets[i] >= 0 ? pull * Head(head_seed, targets[i], k) : 0)));
      }
    }
  }
  void Finish() override {}

  std::string SumHidden(void* grad, std::int64_t count) override {
    return exchange_->SumBf16(rank_, static_cast<std::uint16_t*>(grad), count);
  }
  std::string Gather(const void* contribution, void* gathered, std::int64_t bytes, const SpoilGathered& spoil) override {
    std::string error = exchange_->Gather(rank_, contribution, gathered, bytes);
    if (error.empty() && spoil) spoil(static_cast<unsigned char*>(gathered), bytes);
    return error;
  }
  void* communicator() const override { return nullptr; }
  double TimeExchange(std::int64_t chunks, std::int64_t bytes) override {
    std::vector<unsigned char> part(static_cast<std::size_t>(bytes)), gathered(part.size() * static_cast<std::size_t>(exchange_->group()->ranks()));
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < chunks; ++i) (void)exchange_->Gather(rank_, part.data(), gathered.data(), bytes);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }
  std::int64_t PeakBytes() override {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  }
  const char* PeakName() const override { return "resident memory of the process"; }

 private:
  const int rank_;
  SharedExchange* const exchange_;
};

}  // namespace

std::unique_ptr<Place> MakeHostPlace(int rank, SharedExchange* exchange) { return std::make_unique<HostPlace>(rank, exchange); }

}  // namespace lossgauge::pipeline_8b
