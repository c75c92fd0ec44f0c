// The faults of pipeline_8b in the build for tests. In place of the example's no_faults.cc.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "client/cpp/examples/pipeline_8b/faults.h"
#include "kernels/host/vocab_parallel_contribution.h"

namespace lossgauge::pipeline_8b {
namespace {

enum class Kind {
  kNone,
  kMissingRank,
  kStaleContribution,
  kStaleMaximum,
  kSumTwice,
  kBitFlip,
  kWrongOffset,
  kSwappedShards,
  kOtherLayer,
  kGatheredLogits,
  kOtherMask,
  kOtherLabels,
};
struct Named {
  const char* name;
  Kind kind;
  const char* help;
};
constexpr Named kFaults[] = {
    {"none", Kind::kNone, ""},
    {"missing_rank", Kind::kMissingRank, "what the rank sends never arrives at the others"},
    {"stale_contribution", Kind::kStaleContribution, "what it sent at the step before arrives"},
    {"stale_max", Kind::kStaleMaximum, "it subtracts the maximum of the step before"},
    {"sum_twice", Kind::kSumTwice, "its partial sum is added twice"},
    {"bit_flip", Kind::kBitFlip, "a bit flips on its way to rank 0"},
    {"wrong_offset", Kind::kWrongOffset, "its shard offset is one too large"},
    {"swapped_shards", Kind::kSwappedShards, "it and the next rank have each other's shard of the head"},
    {"other_layer", Kind::kOtherLayer, "its shard is of another layer"},
    {"gathered_logits", Kind::kGatheredLogits, "every rank has the whole head and says that it is its part (from the first step on)"},
    {"other_mask", Kind::kOtherMask, "it masks other tokens"},
    {"other_labels", Kind::kOtherLabels, "it has the labels of other rows"},
};

const Named* Find(const std::string& name) {
  const auto* found = std::find_if(std::begin(kFaults), std::end(kFaults), [&](const Named& fault) { return name == fault.name; });
  return found == std::end(kFaults) ? nullptr : found;
}

// Tags again what has been changed, as a rank would that believes in it.
void TagAgain(unsigned char* contribution, std::int64_t rows) {
  lg_shard_header header;
  std::memcpy(&header, contribution, sizeof header);
  const std::uint64_t salt = lg_shard_salt(header.step, header.micro_batch, header.sender);
  for (std::int64_t i = 0; i < rows; ++i) {
    unsigned char* const at = contribution + LG_SHARD_HEADER_BYTES + i * LG_SHARD_ROW_BYTES;
    std::uint64_t words[LG_SHARD_ROW_BYTES / 8];
    std::memcpy(words, at, sizeof words);
    words[LG_SHARD_ROW_BYTES / 8 - 1] = lg_shard_row_tag(salt, i, words);
    std::memcpy(at, words, sizeof words);
  }
}

class InjectedFaults final : public Faults {
 public:
  InjectedFaults(const Options& options, Kind kind) : options_(options), kind_(kind) {}

  void Spoil(std::int64_t, int rank, RankPart* part) const override {
    const int odd = static_cast<int>(options_.fault_rank), ranks = static_cast<int>(options_.ranks), next = (odd + 1) % ranks;
    const auto first_of = [&](std::int64_t r) { return options_.vocab_size * r / options_.ranks; };
    if (kind_ == Kind::kGatheredLogits) {
      part->vocab_size = options_.ranks * options_.vocab_size;
      part->shard_offset = rank * options_.vocab_size;
      part->shard_columns = options_.vocab_size;
      part->first_row = 0;
    }
    if (kind_ == Kind::kSwappedShards && rank == odd) part->first_row = first_of(next);
    if (kind_ == Kind::kSwappedShards && rank == next) part->first_row = first_of(odd);
    if (rank != odd) return;
    if (kind_ == Kind::kWrongOffset) part->shard_offset += 1;
    if (kind_ == Kind::kOtherLayer) part->head_seed += 1000;
    if (kind_ == Kind::kOtherMask) {
      for (std::size_t row = 1; row < part->targets.size(); row += 3) part->targets[row] = -100;
    }
    if (kind_ == Kind::kOtherLabels) {
      // Among the unmasked ones: the mask stays.
      std::vector<std::size_t> live;
      for (std::size_t row = 0; row < part->targets.size(); ++row) {
        if (part->targets[row] != -100) live.push_back(row);
      }
      for (std::size_t i = 0; i + 1 < live.size(); i += 2) std::swap(part->targets[live[i]], part->targets[live[i + 1]]);
    }
  }

  bool spoils_exchange() const override { return kind_ >= Kind::kMissingRank && kind_ <= Kind::kBitFlip; }

  void SpoilExchange(std::int64_t step, std::int64_t chunk, int receiver, int ranks, std::int64_t bytes, unsigned char* gathered) override {
    const auto index = static_cast<std::size_t>(chunk), size = static_cast<std::size_t>(bytes);
    if (before_.size() <= index) before_.resize(index + 1), now_.resize(index + 1);
    before_[index] = std::move(now_[index]);
    now_[index].assign(gathered, gathered + size * static_cast<std::size_t>(ranks));
    if (step < options_.fault_step || before_[index].empty()) return;
    unsigned char* const odd = gathered + options_.fault_rank * bytes;
    const unsigned char* const old = before_[index].data() + options_.fault_rank * bytes;
    const std::int64_t rows = (bytes - LG_SHARD_HEADER_BYTES) / LG_SHARD_ROW_BYTES;
    const bool is_other = receiver != static_cast<int>(options_.fault_rank);
    if (kind_ == Kind::kMissingRank && is_other) std::memset(odd, 0, size);
    if (kind_ == Kind::kStaleContribution && is_other) std::memcpy(odd, old, size);
    if (kind_ == Kind::kBitFlip && receiver == 0 && chunk == 0) odd[LG_SHARD_HEADER_BYTES + 5 * LG_SHARD_ROW_BYTES + 23] ^= 0x40;
    if (kind_ != Kind::kStaleMaximum && kind_ != Kind::kSumTwice) return;
    for (std::int64_t i = 0; i < rows; ++i) {
      lg_shard_row row, old_row;
      std::memcpy(&row, odd + LG_SHARD_HEADER_BYTES + i * LG_SHARD_ROW_BYTES, sizeof row);
      std::memcpy(&old_row, old + LG_SHARD_HEADER_BYTES + i * LG_SHARD_ROW_BYTES, sizeof old_row);
      if (kind_ == Kind::kStaleMaximum) row.max = old_row.max;
      if (kind_ == Kind::kSumTwice) row.others *= 2;
      std::memcpy(odd + LG_SHARD_HEADER_BYTES + i * LG_SHARD_ROW_BYTES, &row, sizeof row);
    }
    TagAgain(odd, rows);  // the rank itself believes in it
  }

 private:
  const Options& options_;
  const Kind kind_;
  std::vector<std::vector<unsigned char>> before_, now_;  // what was gathered for each chunk
};

}  // namespace

std::string CheckFault(const std::string& name, int ranks) {
  if (Find(name) == nullptr) return "--fault=" + name + " is not known; --help lists the faults";
  return name != "none" && ranks < 2 ? "--fault needs --ranks above 1" : "";
}

std::string FaultHelp() {
  std::string text = "\nFaults of --fault_rank, from --fault_step on:\n";
  for (const Named& fault : kFaults) {
    std::string left = std::string("  ") + fault.name;
    left.resize(24, ' ');
    text += left + fault.help + "\n";
  }
  return text;
}

std::unique_ptr<Faults> MakeFaults(const Options& options) {
  const Kind kind = Find(options.fault)->kind;
  return kind == Kind::kNone ? nullptr : std::make_unique<InjectedFaults>(options, kind);
}

}  // namespace lossgauge::pipeline_8b
