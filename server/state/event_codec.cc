#include "server/state/byte_codec.h"
#include "server/state/history_codec.h"

namespace lossgauge::state {
namespace {

constexpr std::uint64_t kEventVersion = 1;

}  // namespace

void PutEvent(const ProducerEvent& event, ByteWriter* out) {
  out->U64(event.kind);
  out->I64(event.step);
  out->U64(event.phase);
  out->F64(event.value);
  out->U64(event.count);
  out->String(event.text);
  out->U64(event.publication);
  out->I64(event.producer_wall_ns);
}

void GetEvent(ByteReader* in, ProducerEvent* event) {
  event->kind = in->U64();
  event->step = in->I64();
  event->phase = in->U64();
  event->value = in->F64();
  event->count = in->U64();
  event->text = in->String();
  event->publication = in->U64();
  event->producer_wall_ns = in->I64();
}

std::string EncodeEvent(const ProducerEvent& event) {
  ByteWriter out;
  out.U64(kEventVersion);
  out.String(event.producer ? event.producer->run : "");
  out.String(event.producer ? event.producer->attempt : "");
  out.U64(event.producer ? event.producer->layout.rank : 0);
  PutEvent(event, &out);
  out.I64(event.receive_time_ns);
  return out.Take();
}

std::optional<ProducerEvent> DecodeEvent(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.U64() != kEventVersion) return std::nullopt;
  auto producer = std::make_shared<ProducerInfo>();
  producer->run = in.String();
  producer->attempt = in.String();
  producer->layout.rank = static_cast<std::uint32_t>(in.U64());
  ProducerEvent event;
  event.producer = std::move(producer);
  GetEvent(&in, &event);
  event.receive_time_ns = in.I64();
  if (!in.ok() || !in.at_end()) return std::nullopt;
  return event;
}

}  // namespace lossgauge::state
