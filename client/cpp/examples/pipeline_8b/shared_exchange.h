// An all-gather and a sum between the processes of one machine, through memory that they share by fork. A rank that does not come makes the others give up,
// naming it.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_SHARED_EXCHANGE_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_SHARED_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>

namespace lossgauge::train_text {
class RankGroup;
}

namespace lossgauge::pipeline_8b {

class SharedExchange {
 public:
  // Before the fork. `most_bytes`: of one rank's part. Null on failure, with `error` set.
  static std::unique_ptr<SharedExchange> Create(train_text::RankGroup* group, std::int64_t most_bytes, std::string* error);
  ~SharedExchange();
  SharedExchange(const SharedExchange&) = delete;
  SharedExchange& operator=(const SharedExchange&) = delete;

  // Every rank's `bytes` of `part` into `gathered`, in rank order. "" or why not.
  std::string Gather(int rank, const void* part, void* gathered, std::int64_t bytes);
  // bf16 [count], summed over all ranks in fp32, in rank order. "" or why not.
  std::string SumBf16(int rank, std::uint16_t* values, std::int64_t count);
  // Floats that the group must have room for.
  static constexpr std::int64_t kFloatsAtOnce = std::int64_t{1} << 22;
  train_text::RankGroup* group() const { return group_; }

 private:
  SharedExchange(train_text::RankGroup* group, unsigned char* memory, std::int64_t most_bytes) : group_(group), memory_(memory), most_bytes_(most_bytes) {}

  train_text::RankGroup* const group_;
  unsigned char* const memory_;  // [2][ranks][most_bytes]
  const std::int64_t most_bytes_;
  int turn_ = 0;  // of this process
};

}  // namespace lossgauge::pipeline_8b

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_SHARED_EXCHANGE_H_
