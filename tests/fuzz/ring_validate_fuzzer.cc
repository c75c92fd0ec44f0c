// Header and record validators over arbitrary bytes: no crash, no read beyond the input, and what they call valid keeps its
// bounds.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "proto/lossgauge/ring/ring_validate.h"

namespace {

template <class T>
T Take(const std::uint8_t* data, std::size_t size) {
  T value{};
  if (size != 0) std::memcpy(&value, data, std::min(size, sizeof value));
  return value;
}

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lossgauge::ring;
  // The first 16 bytes are the file's size and the ready word, the rest is an identity; and the whole is a record of either
  // kind.
  const auto file_bytes = Take<std::uint64_t>(data, size);
  const auto ready = size > 8 ? Take<std::uint64_t>(data + 8, size - 8) : 0;
  const auto identity = size > 16 ? Take<lg_ring_identity>(data + 16, size - 16) : lg_ring_identity{};
  const HeaderState state = ValidateHeader(file_bytes, ready, identity);
  Require(!DescribeHeader(state, file_bytes, identity).empty());
  if (state == HeaderState::kValid) {
    Require(identity.header_bytes + std::uint64_t{identity.slot_bytes} * identity.slot_count <= file_bytes);
    Require(identity.slot_count > 0 && identity.slot_bytes <= LG_MAX_SLOT_BYTES &&
            identity.record_words * 8 == identity.slot_bytes);
  }
  Require(FieldText(identity.run, sizeof identity.run).size() <= sizeof identity.run);
  Require(FieldText(identity.attempt, sizeof identity.attempt).size() <= sizeof identity.attempt);
  for (const auto& name : identity.block_names) Require(FieldText(name, sizeof name).size() <= sizeof name);

  const auto step = Take<lg_step_record>(data, size);
  if (ValidateRecord(step) == RecordState::kValid) {
    Require(step.block < LG_BLOCK_COUNT && step.step >= 0 && step.finite_tokens <= step.tokens);
  }
  const auto event = Take<lg_event_record>(data, size);
  if (ValidateRecord(event) == RecordState::kValid) Require(event.step >= -1);
  Require(FieldText(event.text, sizeof event.text).size() <= sizeof event.text);
  return 0;
}
