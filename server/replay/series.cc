#include "server/replay/series.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "server/replay/log_point.h"

namespace lossgauge::replay {
namespace {

struct Candidate {
  std::size_t order = 0;  // of its first record
  int rank = 0;
  std::size_t with_step = 0;
  std::size_t without_step = 0;
  std::size_t fields = 0;
  std::vector<double> steps;

  std::size_t points() const { return std::max(with_step, without_step); }
  double FieldsEach() const { return static_cast<double>(fields) / static_cast<double>(with_step + without_step); }
};

double MedianSpacing(const std::vector<double>& steps) {
  std::vector<double> differences;
  for (std::size_t i = 1; i < steps.size(); ++i) {
    if (steps[i] > steps[i - 1]) differences.push_back(steps[i] - steps[i - 1]);
  }
  if (differences.empty()) return 1;
  const auto middle = differences.begin() + static_cast<std::ptrdiff_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  return std::max(1.0, *middle);
}

}  // namespace

std::optional<Series> ChooseSeries(const std::vector<LogRecord>& records) {
  std::map<std::pair<std::string, std::string>, Candidate> candidates;  // by grammar and name
  for (std::size_t i = 0; i < records.size(); ++i) {
    const LogRecord& record = records[i];
    if (record.is_evaluation) continue;
    const LogField* step = record.Best(Meaning::kStep);
    for (const LogField& field : record.fields) {
      if (field.known.meaning != Meaning::kTrainingLoss) continue;
      const auto [it, inserted] = candidates.try_emplace({std::string(record.shape), field.name});
      Candidate& candidate = it->second;
      if (inserted) {
        candidate.order = i;
        candidate.rank = field.known.rank;
      }
      ++(step != nullptr ? candidate.with_step : candidate.without_step);
      candidate.fields += record.fields.size();
      // Within the largest, a thousand spacings of points are still a number of steps.
      if (step != nullptr && step->value >= 0 && step->value <= static_cast<double>(kLargestStep)) candidate.steps.push_back(step->value);
    }
  }
  if (candidates.empty()) return std::nullopt;
  std::size_t most = 0;
  bool any_steps = false;
  for (const auto& [key, candidate] : candidates) any_steps = any_steps || candidate.with_step > 0;
  const auto size_of = [any_steps](const Candidate& c) { return any_steps ? c.with_step : c.without_step; };
  for (const auto& [key, candidate] : candidates) most = std::max(most, size_of(candidate));

  // A good name outweighs many points, but not one line of a summary against a whole curve.
  const std::pair<const std::pair<std::string, std::string>, Candidate>* best = nullptr;
  const auto worth = [&](const Candidate& c) {
    const std::size_t size = size_of(c);
    const bool is_curve = size * 20 >= most && size > 0;
    const bool is_whole = size * 10 >= most * 9;
    const int grade = c.rank >= kSideLoss ? 2 : c.rank >= kSomeLoss ? 1 : 0;
    // Of two lines for each step the fuller one.
    return std::make_tuple(!is_curve, grade, !is_whole, is_whole ? 0 : most - size, -static_cast<int>(c.FieldsEach() / 2), c.rank, c.order);
  };
  for (const auto& entry : candidates) {
    if (best == nullptr || worth(entry.second) < worth(best->second)) best = &entry;
  }
  Series series;
  series.shape = best->first.first;
  series.loss_name = best->first.second;
  series.has_steps = best->second.with_step > 0;
  series.spacing = MedianSpacing(best->second.steps);
  return series;
}

}  // namespace lossgauge::replay
