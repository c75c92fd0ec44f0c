#include "server/state/journal_producers.h"

#include <array>
#include <bit>
#include <cstring>

#include "proto/lossgauge/ring/ring_validate.h"

namespace lossgauge::state {
namespace {

constexpr std::size_t kWords = sizeof(lg_step_record) / sizeof(std::uint64_t);
constexpr std::size_t kFirstWord = 1, kLastWord = kWords - 1;  // between sequence and checksum, which belong to the ring
static_assert(kLastWord - kFirstWord <= 2 * 64);
using Words = std::array<std::uint64_t, kWords>;

}  // namespace

void PutProducer(const ProducerInfo& info, ByteWriter* out) {
  out->Fixed64(info.segment.words[0]);
  out->Fixed64(info.segment.words[1]);
  out->String(info.attempt);
  out->I64(info.attempt_start_ns);
  const lg_layout& l = info.layout;
  out->U64(l.world_size);
  out->U64(l.rank);
  for (const lg_axis* axis : {&l.dp, &l.tp, &l.pp, &l.cp, &l.ep}) {
    out->U64(axis->size);
    out->U64(axis->index);
  }
  out->U64(l.has_loss);
  out->U64(l.gradient_reduction);
  out->I64(l.shard_offset);
  out->I64(l.shard_columns);
  out->I64(l.vocab_size);
  out->F64(info.label_smoothing);
  out->F64(info.z_loss_weight);
}

std::shared_ptr<const ProducerInfo> GetProducer(const std::string& run, ByteReader* in) {
  auto info = std::make_shared<ProducerInfo>();
  info->run = run;
  info->segment.words[0] = in->Fixed64();
  info->segment.words[1] = in->Fixed64();
  info->attempt = in->String();
  info->attempt_start_ns = in->I64();
  lg_layout& l = info->layout;
  l.world_size = static_cast<std::uint32_t>(in->U64());
  l.rank = static_cast<std::uint32_t>(in->U64());
  for (lg_axis* axis : {&l.dp, &l.tp, &l.pp, &l.cp, &l.ep}) {
    axis->size = static_cast<std::uint32_t>(in->U64());
    axis->index = static_cast<std::uint32_t>(in->U64());
  }
  l.has_loss = static_cast<std::uint32_t>(in->U64());
  l.gradient_reduction = static_cast<std::uint32_t>(in->U64());
  l.shard_offset = in->I64();
  l.shard_columns = in->I64();
  l.vocab_size = in->I64();
  info->label_smoothing = in->F64();
  info->z_loss_weight = in->F64();
  if (!in->ok() || info->attempt.size() > 256) return nullptr;
  return info;
}

std::uint64_t JournalProducers::Number(const std::shared_ptr<const ProducerInfo>& producer, bool* is_new) {
  *is_new = false;
  if (producer == nullptr) return 0;
  const auto [it, inserted] = numbers_.try_emplace(producer.get(), known_.size() + 1);
  if (inserted) known_.push_back({producer, {}});
  *is_new = inserted;
  return it->second;
}

void JournalProducers::PutRecord(std::uint64_t number, const lg_step_record& record, ByteWriter* out) {
  lg_step_record& last = known_[number - 1].last;
  const auto now = std::bit_cast<Words>(record), before = std::bit_cast<Words>(last);
  std::uint64_t changed[2] = {0, 0};
  for (std::size_t i = kFirstWord; i < kLastWord; ++i) {
    if (now[i] != before[i]) changed[(i - kFirstWord) / 64] |= std::uint64_t{1} << (i - kFirstWord) % 64;
  }
  out->U64(changed[0]);
  out->U64(changed[1]);
  for (std::size_t part = 0; part < 2; ++part) {
    for (std::uint64_t left = changed[part]; left != 0; left &= left - 1) {
      const std::size_t i = kFirstWord + 64 * part + static_cast<std::size_t>(std::countr_zero(left));
      out->U64(now[i] ^ before[i]);  // numbers that rise, and doubles that stay near, differ in their low bits
    }
  }
  last = record;
}

void JournalProducers::Add(std::shared_ptr<const ProducerInfo> producer) { known_.push_back({std::move(producer), {}}); }

std::shared_ptr<const ProducerInfo> JournalProducers::Find(std::uint64_t number) const {
  return number > 0 && number <= known_.size() ? known_[number - 1].producer : nullptr;
}

bool JournalProducers::GetRecord(std::uint64_t number, ByteReader* in, lg_step_record* record) {
  if (number == 0 || number > known_.size()) return false;
  lg_step_record& last = known_[number - 1].last;
  auto words = std::bit_cast<Words>(last);
  const std::uint64_t changed[2] = {in->U64(), in->U64()};
  for (std::size_t part = 0; part < 2; ++part) {
    for (std::uint64_t left = changed[part]; left != 0; left &= left - 1) {
      const std::size_t i = kFirstWord + 64 * part + static_cast<std::size_t>(std::countr_zero(left));
      if (i >= kLastWord) return false;
      words[i] ^= in->U64();
    }
  }
  last = std::bit_cast<lg_step_record>(words);
  *record = last;
  return in->ok() && ring::ValidateRecord(last) == ring::RecordState::kValid;
}

void JournalProducers::Clear() {
  known_.clear();
  numbers_.clear();
}

}  // namespace lossgauge::state
