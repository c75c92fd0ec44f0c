#include "server/state/byte_codec.h"
#include "server/state/history_codec.h"

namespace lossgauge::state {
namespace {

constexpr std::uint64_t kPolicyVersion = 1;

}  // namespace

std::string EncodePolicy(const PolicyView& policy) {
  ByteWriter out;
  out.U64(kPolicyVersion);
  out.String(policy.version);
  out.String(policy.mode);
  out.U64(policy.thresholds.size());
  for (const PolicyView::Threshold& threshold : policy.thresholds) {
    out.String(threshold.section);
    out.String(threshold.key);
    out.F64(threshold.value);
  }
  return out.Take();
}

std::optional<PolicyView> DecodePolicy(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.U64() != kPolicyVersion) return std::nullopt;
  PolicyView policy;
  policy.version = in.String();
  policy.mode = in.String();
  for (std::size_t left = in.Count(); left > 0 && in.ok(); --left) {
    PolicyView::Threshold& threshold = policy.thresholds.emplace_back();
    threshold.section = in.String();
    threshold.key = in.String();
    threshold.value = in.F64();
  }
  if (!in.ok() || !in.at_end()) return std::nullopt;
  return policy;
}

}  // namespace lossgauge::state
