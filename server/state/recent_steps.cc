#include "server/state/recent_steps.h"

#include <utility>

namespace lossgauge::state {

void RecentSteps::Push(std::shared_ptr<const StepSummary> step) {
  open_.push_back(std::move(step));
  ++size_;
  if (open_.size() == kChunk) {
    full_.push_back(std::make_shared<const StepChunk>(std::move(open_)));
    open_ = {};
    open_.reserve(kChunk);
  }
}

void RecentSteps::Replace(std::shared_ptr<const StepSummary> step) {
  const auto replace = [&step](StepChunk* chunk) {
    for (auto& kept : *chunk) {
      if (kept->sequence == step->sequence) kept = step;
    }
  };
  for (auto& chunk : full_) {
    if (chunk->back()->sequence < step->sequence) continue;
    auto changed = std::make_shared<StepChunk>(*chunk);
    replace(changed.get());
    chunk = std::move(changed);
    return;
  }
  replace(&open_);
}

void RecentSteps::Trim(std::size_t max_steps) {
  while (size_ > max_steps && !full_.empty()) {
    size_ -= full_.front()->size();
    full_.pop_front();
  }
}

std::vector<std::shared_ptr<const StepChunk>> RecentSteps::Chunks() const {
  std::vector<std::shared_ptr<const StepChunk>> chunks(full_.begin(), full_.end());
  if (!open_.empty()) chunks.push_back(std::make_shared<const StepChunk>(open_));
  return chunks;
}

}  // namespace lossgauge::state
