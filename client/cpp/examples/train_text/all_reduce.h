// Sums over the ranks of one machine through anonymous shared memory. A dead or absent rank never hangs the others: every wait has a timeout,
// and the error names the ranks that did not come.
//
// Create before the fork; each rank then calls the same operations in the same order. Sums are formed in rank order, so every rank gets the
// same bits.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_ALL_REDUCE_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_ALL_REDUCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lossgauge::train_text {

inline constexpr int kMaxRanks = 64;

class RankGroup {
 public:
  static constexpr std::size_t kMaxScalars = 16;

  // Null on failure, with `error` set.
  static std::unique_ptr<RankGroup> Create(int ranks, std::size_t max_floats, double timeout_seconds, std::string* error);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int ranks() const { return ranks_; }
  // Each returns "" or why the group is broken. Once broken it stays so, for all ranks.
  [[nodiscard]] std::string Barrier(int rank);
  [[nodiscard]] std::string Sum(int rank, std::span<float> values);           // at most max_floats
  [[nodiscard]] std::string Sum(int rank, std::span<double> values);         // at most kMaxScalars
  [[nodiscard]] std::string Sum(int rank, std::span<std::uint64_t> values);  // mod 2^64, at most kMaxScalars

  // For the launcher: this rank will not come any more. Wakes those who wait for it.
  void MarkGone(int rank);

 private:
  struct Shared;
  RankGroup(Shared* shared, std::size_t bytes, int ranks, std::size_t max_floats, double timeout_seconds);
  template <typename T>
  std::string SumScalars(int rank, std::span<T> values);
  std::string WhyBroken() const;
  float* Slot(int rank) const;  // of each rank; Slot(ranks_) holds the sum

  Shared* shared_;
  std::size_t bytes_;
  int ranks_;
  std::size_t max_floats_;
  double timeout_seconds_;
};

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_ALL_REDUCE_H_
