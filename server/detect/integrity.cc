#include "server/detect/integrity.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/tensor_group.h"

namespace lossgauge::detect {
namespace {

using Group = std::vector<const state::RankSample*>;

constexpr int kMass = 0;
constexpr int kTargetHits = 1;
constexpr int kAgreement = 2;
constexpr int kCoverage = 3;
constexpr int kExchange = 4;
static_assert(state::kIntegrityKinds[kMass] == state::kKindMass && state::kIntegrityKinds[kTargetHits] == state::kKindTargetHits &&
              state::kIntegrityKinds[kAgreement] == state::kKindAgreement && state::kIntegrityKinds[kCoverage] == state::kKindCoverage &&
              state::kIntegrityKinds[kExchange] == state::kKindExchange && state::kIntegrityKinds[kExactKinds] == state::kKindShard);

constexpr double kMassAbsolute = 0.25;  // tokens
constexpr double kMassRelative = 2e-6;

const lg_step_record& R(const state::RankSample* sample) { return sample->record; }
const lg_layout& L(const state::RankSample* sample) { return sample->producer->layout; }
bool AllHave(const Group& group, std::uint64_t bits) {
  return std::all_of(group.begin(), group.end(), [bits](const auto* s) { return (R(s).present & bits) == bits; });
}
std::string Name(const Group& group) {
  if (group.size() == 1) return absl::StrCat("rank ", L(group[0]).rank);
  return absl::StrCat("tensor-parallel group of ranks ", L(group.front()).rank, " to ", L(group.back()).rank);
}
double ToDouble(lg_fixed128 value) { return lg_fixed128_to_double(value); }
bool Equal(lg_fixed128 a, lg_fixed128 b) { return lg_fixed128_compare(a, b) == 0; }

// Each check returns false if the group's records do not allow it.
bool CheckMass(const Group& group, std::vector<IntegrityBreak>& breaks) {
  if (!AllHave(group, LG_HAS_MASS)) return false;
  lg_fixed128 sum = lg_fixed128_from_int64(0);
  const state::RankSample* with_errors = nullptr;
  int ranks_with_errors = 0;
  std::uint64_t error_rows = 0;
  for (const auto* sample : group) {
    sum = lg_fixed128_add(sum, R(sample).probability_mass);
    if (R(sample).mass_error_rows > 0) {
      error_rows += R(sample).mass_error_rows;
      ++ranks_with_errors;
      with_errors = sample;
    }
  }
  const double tokens = static_cast<double>(R(group[0]).finite_tokens);
  const double mass = ToDouble(sum);
  if (std::fabs(mass - tokens) <= kMassAbsolute + kMassRelative * tokens && error_rows == 0) return true;
  IntegrityBreak result{kMass, std::nullopt,
                        absl::StrFormat("Probabilities of %s add up to %.6g tokens instead of %.0f: a stale maximum, or a partial sum "
                                        "missing or counted twice; the loss may still look plausible",
                                        Name(group), mass, tokens),
                        {{"probability_mass", mass, "tokens", ""}, {"finite_tokens", tokens, "tokens", ""},
                         {"mass_error_rows", static_cast<double>(error_rows), "rows", ""}}};
  if (ranks_with_errors == 1) {
    result.rank = L(with_errors).rank;
    absl::StrAppend(&result.summary, "; only rank ", *result.rank, " has rows off their share");
  }
  breaks.push_back(std::move(result));
  return true;
}

bool CheckTargetHits(const Group& group, std::vector<IntegrityBreak>& breaks) {
  if (!AllHave(group, LG_HAS_LOGITS)) return false;
  std::uint64_t hits = 0;
  for (const auto* sample : group) hits += R(sample).target_hits;
  const std::uint64_t tokens = R(group[0]).finite_tokens;
  if (hits == tokens) return true;
  const bool gathered = group.size() > 1 && tokens > 0 && hits == tokens * group.size();
  breaks.push_back({kTargetHits, std::nullopt,
                    absl::StrCat("Targets found in the shards of ", Name(group), ": ", hits, ", positions with a loss: ", tokens, "; ",
                                 gathered ? absl::StrCat("exactly ", group.size(), " times: every rank seems to hold the full vocabulary "
                                                         "(gathered logits in a vocabulary-parallel loss, too high by ln ",
                                                         group.size(), ")")
                                          : std::string("a wrong shard offset")),
                    {{"target_hits", static_cast<double>(hits), "tokens", ""}, {"finite_tokens", static_cast<double>(tokens), "tokens", ""}}});
  return true;
}

// The name of the first value in which two records of a group differ, or "".
std::string_view Difference(const lg_step_record& a, const lg_step_record& b) {
  if (a.unmasked_tokens != b.unmasked_tokens) return "unmasked_tokens";
  if (a.nonfinite_rows != b.nonfinite_rows) return "nonfinite_rows";
  if ((a.present & b.present & LG_HAS_LOSS) && !Equal(a.nll_sum, b.nll_sum)) return "nll_sum";
  if (a.present & b.present & LG_HAS_LOGITS) {
    if (!Equal(a.log_z_sum, b.log_z_sum)) return "log_z_sum";
    if (a.mask_fingerprint != b.mask_fingerprint) return "mask_fingerprint";
    if (a.target_fingerprint != b.target_fingerprint) return "target_fingerprint";
  }
  return "";
}

bool CheckAgreement(const Group& group, std::vector<IntegrityBreak>& breaks) {
  if (group.size() < 2) return true;
  for (const auto* sample : group) {
    const std::string_view name = Difference(R(group[0]), R(sample));
    if (name.empty()) continue;
    IntegrityBreak result{kAgreement, std::nullopt, "", {}};
    // With three ranks or more the one that stands alone is at fault.
    const state::RankSample* other = sample;
    if (group.size() >= 3) {
      for (const auto* candidate : group) {
        const auto agrees = std::count_if(group.begin(), group.end(), [&](const auto* s) { return Difference(R(s), R(candidate)).empty(); });
        if (agrees == 1) {
          if (result.rank) {  // more than one stands alone: nobody can be named
            result.rank.reset();
            break;
          }
          result.rank = L(candidate).rank;
          other = candidate;
        }
      }
    }
    const auto* against = other == group[0] ? group[1] : group[0];
    const double difference = ToDouble(lg_fixed128_subtract(R(other).nll_sum, R(against).nll_sum));
    result.summary = absl::StrFormat("Ranks %d and %d share the same tokens but differ in %s (loss sums differ by %.3g nats); equal "
                                     "inputs must give equal bits%s",
                                     L(against).rank, L(other).rank, std::string(name), difference,
                                     result.rank ? absl::StrFormat("; rank %d stands alone", *result.rank) : std::string());
    result.evidence = {{"differs", 0, "", std::string(name)},
                       {"nll_sum_difference", difference, "nats", ""},
                       {"unmasked_tokens_first", static_cast<double>(R(against).unmasked_tokens), "tokens", ""},
                       {"unmasked_tokens_second", static_cast<double>(R(other).unmasked_tokens), "tokens", ""}};
    breaks.push_back(std::move(result));
    return true;
  }
  return true;
}

bool CheckCoverage(const Group& group, std::vector<IntegrityBreak>& breaks) {
  const std::int64_t vocab = L(group[0]).vocab_size;
  if (vocab <= 0 || !AllHave(group, LG_HAS_LOGITS)) return false;
  Group shards = group;
  std::stable_sort(shards.begin(), shards.end(), [](const auto* a, const auto* b) { return L(a).shard_offset < L(b).shard_offset; });
  // Widths are untrusted: summed as doubles, they cannot overflow.
  double width = 0;
  bool tiled = true;
  std::int64_t next = 0;
  for (const auto* shard : shards) {
    const std::int64_t columns = L(shard).shard_columns;
    width += static_cast<double>(columns);
    tiled = tiled && columns >= 0 && L(shard).shard_offset == next && columns <= vocab - next;
    if (tiled) next += columns;
  }
  if (tiled && next == vocab) return true;
  const bool gathered = group.size() > 1 && width == static_cast<double>(vocab) * static_cast<double>(group.size());
  breaks.push_back({kCoverage, std::nullopt,
                    gathered ? absl::StrCat("Each of the ", group.size(), " ranks of ", Name(group), " declares all ", vocab,
                                            " columns: gathered logits in a vocabulary-parallel loss, which is then too high by ln ", group.size())
                             : absl::StrFormat("Shards of %s do not tile the vocabulary: %.0f columns declared of %d", Name(group), width, vocab),
                    {{"columns", width, "", ""}, {"vocab_size", static_cast<double>(vocab), "", ""},
                     {"tensor_parallel", static_cast<double>(group.size()), "", ""}}});
  return true;
}

bool CheckExchange(const Group& group, std::vector<IntegrityBreak>& breaks) {
  const state::RankSample* worst = nullptr;
  std::uint64_t rows = 0;
  bool given = false;
  for (const auto* sample : group) {
    given = given || (R(sample).present & LG_HAS_EXCHANGE) != 0;
    if ((R(sample).present & LG_HAS_EXCHANGE) == 0 || R(sample).exchange_bad_rows == 0) continue;
    rows += R(sample).exchange_bad_rows;
    if (worst == nullptr || R(sample).exchange_bad_rows > R(worst).exchange_bad_rows) worst = sample;
  }
  if (worst == nullptr) return given;
  IntegrityBreak result{kExchange, std::nullopt,
                        absl::StrCat("Partial sums that arrived wrong, stale or not at all in ", Name(group), ": ", rows, " rows"),
                        {{"exchange_bad_rows", static_cast<double>(rows), "rows", ""}}};
  if (R(worst).exchange_bad_sender < group.size()) {
    result.rank = L(group[R(worst).exchange_bad_sender]).rank;
    absl::StrAppend(&result.summary, "; most from rank ", *result.rank);
  }
  breaks.push_back(std::move(result));
  return true;
}

}  // namespace

std::vector<IntegrityBreak> CheckIntegrity(const state::JoinedStep& joined, KindsJudged* judged) {
  std::vector<IntegrityBreak> breaks;
  KindsJudged can_judge;
  can_judge.fill(joined.summary.missing_ranks.empty());
  bool any_group = false;
  const auto check = [&](const Group& group) {
    any_group = true;
    const auto note = [&can_judge](int kind, bool could) { can_judge[static_cast<std::size_t>(kind)] &= could; };
    note(kCoverage, CheckCoverage(group, breaks));
    const std::size_t before = breaks.size();
    note(kExchange, CheckExchange(group, breaks));
    if (breaks.size() != before) {
      // Rows that arrived wrong are in no sum of whoever received them so: what follows would name symptoms.
      for (const int kind : {kMass, kTargetHits, kAgreement}) note(kind, false);
      return;
    }
    note(kMass, CheckMass(group, breaks));
    note(kTargetHits, CheckTargetHits(group, breaks));
    note(kAgreement, CheckAgreement(group, breaks));
  };
  if (joined.layout.tp.size <= 1) {  // the common case, without a map
    Group group(1);
    for (const state::RankSample& sample : joined.samples) {
      if ((sample.record.present & (LG_HAS_LOGITS | LG_HAS_MASS)) == 0) continue;
      group[0] = &sample;
      check(group);
      if (breaks.empty()) continue;
      can_judge.fill(false);  // the ranks behind this one were not looked at
      break;
    }
  } else {
    std::map<state::TensorGroup, Group> groups;
    for (const state::RankSample& sample : joined.samples) {
      const lg_layout& layout = sample.producer->layout;
      if (layout.has_loss == 0) continue;
      groups[state::TensorGroupOf(layout)].push_back(&sample);
    }
    for (auto& [key, group] : groups) {
      if (group.size() != joined.layout.tp.size) {
        can_judge.fill(false);
        continue;
      }
      std::sort(group.begin(), group.end(), [](const auto* a, const auto* b) { return L(a).tp.index < L(b).tp.index; });
      check(group);
    }
  }
  if (!any_group) can_judge.fill(false);
  if (judged != nullptr) *judged = can_judge;
  std::vector<IntegrityBreak> first;
  for (IntegrityBreak& found : breaks) {
    const bool seen = std::any_of(first.begin(), first.end(), [&found](const IntegrityBreak& b) { return b.kind == found.kind; });
    if (!seen) first.push_back(std::move(found));
  }
  return first;
}

void IntegrityDetector::OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book) {
  KindsJudged judged{};
  std::vector<IntegrityBreak> breaks = CheckIntegrity(*signals.joined, &judged);
  for (std::size_t kind = 0; kind < streaks_.size(); ++kind) {
    const auto found = std::find_if(breaks.begin(), breaks.end(), [kind](const IntegrityBreak& b) { return b.kind == static_cast<int>(kind); });
    if (found == breaks.end() && !judged[kind]) continue;  // neither good nor bad
    Streak& streak = streaks_[kind];
    streak.Push(found != breaks.end(), signals.moment.step);
    const IncidentBook::Slot slot{state::Condition::kIntegrity, state::kIntegrityKinds[kind]};
    if (found == breaks.end()) {
      if (streak.bad_steps > 0 && streak.clean >= policy.loss_close_steps) {
        book.Resolve(slot, signals.moment, streak.last_bad_step - streak.onset_step + 1);
        streak = Streak();
      }
      continue;
    }
    const int broken = streak.BadOfLast(static_cast<int>(policy.integrity_window_steps));
    Finding finding;
    finding.condition = state::Condition::kIntegrity;
    finding.kind = std::string(state::kIntegrityKinds[kind]);
    finding.severity = broken >= policy.integrity_halt_steps ? state::Severity::kCritical : state::Severity::kWarning;
    finding.onset_step = streak.onset_step;
    finding.peak_step = streak.onset_step;
    finding.rank = found->rank;
    finding.summary = absl::StrCat(found->summary, "; ", streak.bad_steps, streak.bad_steps == 1 ? " step" : " steps", " since step ",
                                   streak.onset_step);
    finding.evidence = std::move(found->evidence);
    finding.evidence.push_back({"broken_steps", static_cast<double>(broken), "steps",
                                absl::StrCat("of the last ", static_cast<int>(policy.integrity_window_steps))});
    book.Report(slot, std::move(finding), signals.moment);
  }
}

int IntegrityDetector::BrokenSteps(const Policy& policy) const {
  int most = 0;
  for (const Streak& streak : streaks_) most = std::max(most, streak.BadOfLast(static_cast<int>(policy.integrity_window_steps)));
  return most;
}

void IntegrityDetector::Save(StateWriter& out) const {
  for (const Streak& streak : streaks_) streak.Save(out);
}

void IntegrityDetector::Restore(StateReader& in) {
  for (Streak& streak : streaks_) streak.Restore(in);
}

}  // namespace lossgauge::detect
