// Any bytes as a judge's saved state, with the frame and checksum put right so that the body is reached: refused, or a judge that goes on
// working and whose own state can be restored.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/detect/judge.h"

namespace {

lossgauge::state::JoinedStep Step(std::int64_t step, double loss) {
  using namespace lossgauge::state;
  static const auto producer = [] {
    auto info = std::make_shared<ProducerInfo>();
    info->run = "run";
    info->attempt = "1";
    info->layout.world_size = 1;
    info->layout.dp = info->layout.tp = info->layout.pp = info->layout.cp = info->layout.ep = {1, 0};
    info->layout.has_loss = 1;
    return std::shared_ptr<const ProducerInfo>(info);
  }();
  RankSample sample;
  sample.producer = producer;
  sample.record.step = step;
  sample.record.present = LG_HAS_LOSS | LG_HAS_GRAD_NORM;
  sample.record.tokens = sample.record.unmasked_tokens = sample.record.finite_tokens = 100;
  sample.record.nll_sum = lg_fixed128_from_double(100 * loss);
  sample.record.grad_norm = 1;
  sample.receive_time_ns = 1'700'000'000'000'000'000 + step * 1'000'000'000;
  return JoinSamples({sample});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lossgauge;
  const detect::Policy policy = detect::DefaultPolicies().defaults;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  detect::Judge plain("run", policy);
  (void)plain.Restore(bytes);

  std::string framed = detect::Judge("run", policy).Save().substr(0, 8) + bytes;  // magic and version
  const std::uint64_t checksum = detect::StateChecksum(framed);
  framed.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  detect::Judge judge("run", policy);
  const bool restored = judge.Restore(framed).ok();
  for (int i = 0; i < 40; ++i) judge.OnStep(Step(i, i == 35 ? 9 : 2));
  state::Presence presence;
  presence.now_ns = 1'700'000'100'000'000'000;
  presence.newest_attempt = "1";
  judge.OnPresence(presence);
  const state::Verdict verdict = judge.Evaluate(1'700'000'100'000'000'000);
  if (verdict.reason.empty() || verdict.reason_codes.empty()) std::abort();
  if (!restored && judge.Evaluate(0).reason.empty()) std::abort();
  (void)judge.Incidents();
  detect::Judge again("run", policy);
  if (!again.Restore(judge.Save()).ok()) std::abort();
  return 0;
}
