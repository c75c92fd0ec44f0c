// Which ranks hold shards of the same tokens' logits: the one definition behind sums, integrity and accounting.
#ifndef LOSSGAUGE_SERVER_STATE_TENSOR_GROUP_H_
#define LOSSGAUGE_SERVER_STATE_TENSOR_GROUP_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "server/state/records.h"

namespace lossgauge::state {

// Equal for the ranks of one tensor-parallel group of a job, and different for any two groups.
using TensorGroup = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;

// Expert parallelism usually reuses the ranks of other axes; it is an axis of its own only where the world's size says so.
inline bool ExpertsAreAnAxis(const lg_layout& layout) {
  const auto plain = std::uint64_t{layout.dp.size} * layout.tp.size * layout.pp.size * layout.cp.size;
  return layout.ep.size > 1 && plain != layout.world_size && plain * layout.ep.size == layout.world_size;
}

inline TensorGroup TensorGroupOf(const lg_layout& layout) {
  return {layout.dp.index, layout.cp.index, layout.pp.index, ExpertsAreAnAxis(layout) ? layout.ep.index : 0};
}

// The lowest rank present of each group, among those that own a loss: all ranks of a group report the same sums. In the order of `samples`,
// which must outlive the result.
std::vector<const RankSample*> CountedSamples(const std::vector<RankSample>& samples);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_TENSOR_GROUP_H_
