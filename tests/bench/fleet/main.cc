// Plays a fleet of sidecars against a running daemon, and checks what the daemon makes of it.
//
//   fleet --daemon=HOST:PORT [--ranks=256] [--nodes=32] [--tensor_parallel=4] [--steps=260] [--rate=20] [--faults=standard|none|LIST] [--run=fleet]
//         [--attempt=1] [--seed=1] [--compress=1] [--end=1] [--lossgauge=HOST:PORT] [--allow=CONDITION,...]
//
// rate: steps a second. LIST: see faults.h. allow: incidents that may be there though no fault asks for them. --lossgauge: where the API is, if elsewhere (a relay may stand before --daemon). Standard error: progress.
// Standard output: one JSON object with figures and findings. Exit code: 0 all right, 1 something differs (named), 2 wrong use.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tests/bench/fleet/observer.h"
#include "tests/bench/fleet/percentile.h"
#include "tests/bench/fleet/sidecar.h"

namespace lossgauge::fleet {
namespace {

struct Flags {
  std::string daemon, lossgauge, faults = "standard", run = "fleet", attempt = "1", allow;
  std::uint32_t ranks = 256, nodes = 32, tensor_parallel = 4;
  std::int64_t steps = 260, seed = 1;
  double rate = 20;
  bool compress = true, end = true;
};

int WrongUse(const std::string& what) {
  std::fprintf(stderr, "fleet: %s\n", what.c_str());
  return 2;
}

std::string Read(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
    bool good = equals != std::string::npos && !value.empty();
    if (name == "--daemon") flags->daemon = value;
    else if (name == "--lossgauge") flags->lossgauge = value;
    else if (name == "--faults") flags->faults = value;
    else if (name == "--allow") flags->allow = value;
    else if (name == "--run") flags->run = value;
    else if (name == "--attempt") flags->attempt = value;
    else if (name == "--ranks") good = good && absl::SimpleAtoi(value, &flags->ranks);
    else if (name == "--nodes") good = good && absl::SimpleAtoi(value, &flags->nodes);
    else if (name == "--tensor_parallel") good = good && absl::SimpleAtoi(value, &flags->tensor_parallel);
    else if (name == "--steps") good = good && absl::SimpleAtoi(value, &flags->steps);
    else if (name == "--seed") good = good && absl::SimpleAtoi(value, &flags->seed);
    else if (name == "--rate") good = good && absl::SimpleAtod(value, &flags->rate) && flags->rate > 0;
    else if (name == "--compress") good = good && absl::SimpleAtob(value, &flags->compress);
    else if (name == "--end") good = good && absl::SimpleAtob(value, &flags->end);
    else return absl::StrCat("unknown ", word);
    if (!good) return absl::StrCat("bad value: ", word);
  }
  if (flags->daemon.empty()) return "--daemon=HOST:PORT is needed";
  if (flags->tensor_parallel == 0 || flags->ranks == 0 || flags->ranks % flags->tensor_parallel != 0) return "--ranks is to be a multiple of --tensor_parallel";
  if (flags->nodes == 0 || flags->ranks % flags->nodes != 0) return "--ranks is to be a multiple of --nodes";
  if (flags->lossgauge.empty()) flags->lossgauge = flags->daemon;
  return "";
}

class Fleet {
 public:
  Fleet(const Flags& flags, const std::vector<Fault>& faults)
      : flags_(flags), faults_(faults), job_(OptionsOf(flags), faults), observer_(flags.lossgauge, flags.run) {
    for (std::uint32_t node = 0; node < flags.nodes; ++node) {
      SidecarOptions options;
      options.daemon = flags.daemon;
      options.node = node;
      options.ranks = flags.ranks / flags.nodes;
      options.first_rank = node * options.ranks;
      options.compress = flags.compress;
      options.step_ns = static_cast<std::int64_t>(1e9 / flags.rate);
      for (const Fault& fault : faults) {
        if (fault.kind == FaultKind::kSkew && fault.at == node) options.skew_seconds = fault.amount;
      }
      sidecars_.push_back(std::make_unique<Sidecar>(options, job_, &counters_));
    }
  }

  void Run() {
    observer_.Start();
    auto next = Clock::now();
    auto next_liveness = next;
    for (std::int64_t step = 0; step < flags_.steps; ++step) {
      job_.BeginStep(step);
      for (std::uint32_t node = 0; node < sidecars_.size(); ++node) Play(node, step);
      StepTruth truth = job_.truth();
      Correct(&truth);
      observer_.Published(step, truth);
      AddToTotals(truth);
      if (Clock::now() >= next_liveness) {
        for (auto& sidecar : sidecars_) sidecar->TellLiveness(job_, step);
        next_liveness = Clock::now() + std::chrono::seconds(1);
      }
      next += std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 / flags_.rate));
      if (Clock::now() > next + std::chrono::seconds(1)) late_by_ = std::max(late_by_, std::chrono::duration<double>(Clock::now() - next).count());
      if (step % 50 == 49) std::fprintf(stderr, "fleet: step %" PRId64 ", joined %" PRId64 "\n", step, observer_.last_joined());
      do {
        for (auto& sidecar : sidecars_) sidecar->Tick();
        std::this_thread::sleep_until(std::min(next, Clock::now() + std::chrono::milliseconds(50)));
      } while (Clock::now() < next);
    }
    if (flags_.end) {
      for (auto& sidecar : sidecars_) sidecar->End(job_, flags_.steps - 1);
    }
    WaitUntilKept();
  }

  int Report() {
    std::vector<std::string> differences = observer_.WrongSteps();
    if (!everything_kept_) differences.push_back(absl::StrCat("not everything was acknowledged; last error: ", LastError()));
    CompareTotals(&differences);
    CompareIncidents(&differences);
    observer_.Stop();
    std::string verdicts;
    for (const auto& [action, count] : observer_.verdicts()) absl::StrAppend(&verdicts, verdicts.empty() ? "" : ", ", "\"", action, "\": ", count);
    const auto lags = observer_.join_lags(), times = observer_.verdict_times();
    std::printf("{\"ranks\": %u, \"nodes\": %u, \"steps\": %" PRId64 ", \"records\": %" PRIu64 ", \"join_lag_s\": {\"p50\": %.4f, \"p99\": %.4f, \"max\": %.4f}, "
                "\"verdict_s\": {\"p50\": %.6f, \"p99\": %.6f, \"max\": %.6f}, \"verdicts\": {%s}, \"connections\": %" PRIu64 ", \"batches\": %" PRIu64
                ", \"megabytes\": %.1f, \"most_unacknowledged\": %" PRIu64 ", \"fleet_late_s\": %.2f, \"differences\": %zu}\n",
                flags_.ranks, flags_.nodes, flags_.steps, records_, Percentile(lags, 0.5), Percentile(lags, 0.99), Percentile(lags, 1), Percentile(times, 0.5),
                Percentile(times, 0.99), Percentile(times, 1), verdicts.c_str(), counters_.connections.load(), counters_.batches.load(),
                static_cast<double>(counters_.bytes.load()) / 1e6, counters_.most_unacknowledged.load(), late_by_, differences.size());
    for (const std::string& difference : differences) std::fprintf(stderr, "fleet: DIFFERS: %s\n", difference.c_str());
    return differences.empty() ? 0 : 1;
  }

 private:
  static JobOptions OptionsOf(const Flags& flags) {
    JobOptions options;
    options.run = flags.run;
    options.attempt = flags.attempt;
    options.ranks = flags.ranks;
    options.tensor_parallel = flags.tensor_parallel;
    options.seed = static_cast<std::uint64_t>(flags.seed);
    return options;
  }

  void Play(std::uint32_t node, std::int64_t step) {
    bool twice = false, shuffled = false, late = false;
    for (const Fault& fault : faults_) {
      if (IsOfRank(fault.kind) || fault.at != node || !fault.Covers(step)) continue;
      if (fault.kind == FaultKind::kDrop) sidecars_[node]->BreakConnection();
      if (fault.kind == FaultKind::kRestart) sidecars_[node]->Restart();
      twice = twice || fault.kind == FaultKind::kDuplicate;
      shuffled = shuffled || fault.kind == FaultKind::kReorder;
      // Released with the last step of the span, at the latest.
      late = late || (fault.kind == FaultKind::kReorder && step != fault.last && (step - fault.first) % (static_cast<std::int64_t>(fault.amount) + 1) != 0);
    }
    sidecars_[node]->Publish(job_, step, twice, shuffled, late);
  }

  // The truth of the job is over all ranks; what is missing is not in the daemon's sums, and a rank that disagrees is, if it stands for its group.
  void Correct(StepTruth* truth) {
    const std::uint32_t tp = flags_.tensor_parallel;
    for (std::uint32_t dp = 0; dp < job_.data_parallel(); ++dp) {
      std::uint32_t published = 0;
      for (std::uint32_t index = 0; index < tp; ++index) published += job_.Publishes(dp * tp + index) ? 1 : 0;
      records_ += published;
      if (published > 0) continue;
      const StepTruth missing = job_.ShareOf(dp);
      truth->nll_nats -= missing.nll_nats;
      truth->unmasked_tokens -= missing.unmasked_tokens;
      truth->target_fingerprint -= missing.target_fingerprint;
    }
  }

  void AddToTotals(const StepTruth& truth) {
    nll_nats_ += truth.nll_nats;
    unmasked_tokens_ += truth.unmasked_tokens;
  }

  void WaitUntilKept() {
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while (Clock::now() < deadline && !everything_kept_) {
      for (auto& sidecar : sidecars_) sidecar->Tick();
      everything_kept_ = observer_.last_joined() >= flags_.steps - 1 &&
                         std::all_of(sidecars_.begin(), sidecars_.end(), [](auto& sidecar) { return sidecar->unacknowledged() == 0; });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));  // the verdict on the last step
  }

  std::string LastError() {
    for (auto& sidecar : sidecars_) {
      if (!sidecar->last_error().empty()) return sidecar->last_error();
    }
    return "none";
  }

  void CompareTotals(std::vector<std::string>* differences) {
    const v1::RunTotals totals = observer_.Run().totals();
    if (totals.unmasked_tokens() != unmasked_tokens_) {
      differences->push_back(absl::StrFormat("the run's unmasked tokens are %d, right are %d", totals.unmasked_tokens(), unmasked_tokens_));
    }
    if (std::fabs(totals.nll_nats() - nll_nats_) > 1e-9 * nll_nats_) {
      differences->push_back(absl::StrFormat("the run's sum of NLL is %.15g, right is %.15g", totals.nll_nats(), nll_nats_));
    }
    if (totals.records_lost() != 0) differences->push_back(absl::StrFormat("%d records counted as lost", totals.records_lost()));
  }

  void CompareIncidents(std::vector<std::string>* differences) {
    std::vector<v1::Incident> left = observer_.Incidents();
    // Symptoms of another one that is there.
    std::erase_if(left, [](const v1::Incident& incident) { return !incident.hidden_by().empty(); });
    for (const Fault& fault : faults_) {
      const std::optional<Expected> expected = ExpectedOf(fault, flags_.tensor_parallel);
      if (!expected || fault.first >= flags_.steps) continue;
      const auto found = std::find_if(left.begin(), left.end(), [&](const v1::Incident& incident) {
        return incident.condition() == expected->condition && (expected->kind.empty() || incident.kind() == expected->kind) && incident.has_rank() &&
               incident.rank() == *expected->rank && incident.onset_step() == expected->onset_step.value_or(incident.onset_step());
      });
      if (found == left.end()) {
        differences->push_back(absl::StrFormat("%s of rank %d at step %d was not named", FaultName(fault.kind), *expected->rank, fault.first));
      } else {
        left.erase(found);
      }
    }
    const std::vector<std::string> allowed = absl::StrSplit(flags_.allow, ',');
    for (const v1::Incident& incident : left) {
      if (std::find(allowed.begin(), allowed.end(), incident.condition()) != allowed.end()) continue;
      differences->push_back(absl::StrFormat("further incident: %s/%s rank %s since step %d: %s", incident.condition(), incident.kind(),
                                             incident.has_rank() ? absl::StrCat(incident.rank()) : "-", incident.onset_step(), incident.summary()));
    }
  }

  const Flags flags_;
  const std::vector<Fault> faults_;
  Job job_;
  SidecarCounters counters_;
  Observer observer_;
  std::vector<std::unique_ptr<Sidecar>> sidecars_;
  std::uint64_t records_ = 0;
  double nll_nats_ = 0;
  std::uint64_t unmasked_tokens_ = 0;
  double late_by_ = 0;  // the fleet itself was too slow
  bool everything_kept_ = false;
};

int Main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", 0);
  Flags flags;
  if (const std::string wrong = Read(argc, argv, &flags); !wrong.empty()) return WrongUse(wrong);
  std::vector<Fault> faults;
  if (flags.faults == "standard") {
    faults = StandardFaults(flags.ranks, flags.tensor_parallel, flags.nodes);
    flags.steps = std::max(flags.steps, LastStep(faults) + 35);
  } else if (flags.faults != "none") {
    auto parsed = ParseFaults(flags.faults);
    if (!parsed.ok()) return WrongUse(std::string(parsed.status().message()));
    faults = *std::move(parsed);
  }
  Fleet fleet(flags, faults);
  fleet.Run();
  return fleet.Report();
}

}  // namespace
}  // namespace lossgauge::fleet

int main(int argc, char** argv) { return lossgauge::fleet::Main(argc, argv); }
