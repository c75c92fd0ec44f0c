// What goes wrong in a simulated fleet, and what a judge of the whole job must say of it.
#ifndef LOSSGAUGE_TESTS_BENCH_FLEET_FAULTS_H_
#define LOSSGAUGE_TESTS_BENCH_FLEET_FAULTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lossgauge::fleet {

enum class FaultKind {
  // Of a rank: each is an incident with that rank named.
  kDenominator,  // divides by `amount` times the right count
  kLoss,         // its loss, and that of its whole tensor-parallel group, is `amount` nats off
  kAgreement,    // its loss alone is `amount` nats off: its tensor-parallel peers have another one
  kMissing,      // lives, but publishes nothing
  kDies,         // its process goes without a word at `first`
  // Of a node's sidecar, or of the way to the daemon: none is an incident.
  kDrop,         // the connection breaks at every step of the span
  kSkew,         // the node's clock is `amount` seconds off, from the beginning on
  kRestart,      // the sidecar is started again at `first`: what was not acknowledged comes again
  kDuplicate,    // every batch of the span is sent twice
  kReorder,      // the items of a batch come in another order of producers, and the node's batches up to `amount` steps late
  kCount
};

const char* FaultName(FaultKind kind);
bool IsOfRank(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kCount;
  std::uint32_t at = 0;  // rank or node
  std::int64_t first = 0;
  std::int64_t last = 0;  // included
  double amount = 0;

  bool Covers(std::int64_t step) const { return step >= first && step <= last; }
};

// "KIND@NUMBER:FIRST-LAST[:AMOUNT]", several with commas between; NUMBER is a rank or a node. INVALID_ARGUMENT names the word and what was expected.
absl::StatusOr<std::vector<Fault>> ParseFaults(std::string_view text);

// An incident as a judge must report it.
struct Expected {
  std::string condition;
  std::string kind;  // empty: any
  std::optional<std::uint32_t> rank;
  std::optional<std::int64_t> onset_step;  // a death is found out by the clock
};
std::optional<Expected> ExpectedOf(const Fault& fault, std::uint32_t tensor_parallel);

// What a run must go through so that everything above is tried: rank faults one after the other, far enough apart that each is judged by itself.
std::vector<Fault> StandardFaults(std::uint32_t ranks, std::uint32_t tensor_parallel, std::uint32_t nodes);
// The last step that they touch.
std::int64_t LastStep(const std::vector<Fault>& faults);

}  // namespace lossgauge::fleet

#endif  // LOSSGAUGE_TESTS_BENCH_FLEET_FAULTS_H_
