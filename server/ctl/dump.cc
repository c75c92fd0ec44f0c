#include <algorithm>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "proto/lossgauge/ring/ring_reader.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/json_writer.h"
#include "server/ctl/record_fields.h"
#include "server/ctl/ring_file.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

constexpr std::int64_t kDefaultTail = 10;

std::string NameField(const char* text, std::size_t bytes) { return std::string(ring::FieldText(text, bytes)); }

std::string LayoutText(const lg_layout& layout) {
  std::string text = absl::StrCat("rank ", layout.rank, " of ", layout.world_size);
  const std::pair<const char*, const lg_axis*> axes[] = {
      {"dp", &layout.dp}, {"tp", &layout.tp}, {"pp", &layout.pp}, {"cp", &layout.cp}, {"ep", &layout.ep}};
  for (const auto& [name, axis] : axes) absl::StrAppend(&text, ", ", name, " ", axis->index, "/", axis->size);
  constexpr const char* kReductions[] = {"unknown", "sum", "mean"};
  absl::StrAppend(&text, ", has_loss ", layout.has_loss, ", gradient_reduction ",
                  layout.gradient_reduction < 3 ? kReductions[layout.gradient_reduction] : "invalid");
  return text;
}

std::string ProducerText(const RingFile& file) {
  switch (file.liveness) {
    case Liveness::kAlive: return absl::StrCat("alive: its lock is held", file.lock_holder_pid ? absl::StrCat(" by pid ", file.lock_holder_pid) : "");
    case Liveness::kGone: return "gone: nobody holds its lock";
    case Liveness::kUnknown: break;
  }
  return "unknown: no readable lock file beside the ring";
}

// A boot clock tells an age only in the boot that it belongs to; a producer that lives shares ours.
std::string BootText(const RingFile& file, std::int64_t boot_ns) {
  if (boot_ns == 0) return "never";
  if (file.liveness != Liveness::kAlive) return absl::StrFormat("at %.3f s of its boot clock", static_cast<double>(boot_ns) * 1e-9);
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return Span(absl::DurationFromTimespec(now) - absl::Nanoseconds(boot_ns)) + " ago";
}

void PrintHeader(const RingFile& file, Io& io) {
  const lg_ring_identity& id = file.identity;
  PrintFact(io, "run", Printable(NameField(id.run, sizeof id.run)));
  PrintFact(io, "attempt", absl::StrCat(Printable(NameField(id.attempt, sizeof id.attempt)), ", began ",
                                        Clock(absl::FromUnixNanos(id.attempt_start_wall_ns))));
  PrintFact(io, "segment", absl::StrFormat("%016x%016x", id.segment_id[0], id.segment_id[1]));
  PrintFact(io, "created", absl::StrCat(Clock(absl::FromUnixNanos(id.created_wall_ns)), " by pid ", id.producer_pid, ", uid ", id.producer_uid));
  PrintFact(io, "layout", LayoutText(id.layout));
  PrintFact(io, "vocabulary", absl::StrCat(id.layout.shard_columns, " columns from ", id.layout.shard_offset, " on, of ", id.layout.vocab_size));
  PrintFact(io, "declared", absl::StrFormat("label smoothing %g, z-loss weight %g", id.label_smoothing, id.z_loss_weight));
  std::string blocks;
  for (const auto& name : id.block_names) {
    if (name[0] != 0) absl::StrAppend(&blocks, blocks.empty() ? "" : ", ", Printable(NameField(name, sizeof name)));
  }
  PrintFact(io, "blocks", blocks.empty() ? "-" : blocks);
  PrintFact(io, "slots", absl::StrCat(id.slot_count, " of ", id.slot_bytes, " bytes, ", id.record_words, " words"));
  PrintFact(io, "published", absl::StrCat(file.published_untrusted, " records"));
  PrintFact(io, "producer", ProducerText(file));
  const lg_ring_status& status = file.status;
  PrintFact(io, "status", absl::StrCat("entered step ", status.entered_step, ", enqueued ", status.enqueued_step, ", published ", status.published_step,
                                       "; ", CloseName(status.closed)));
  PrintFact(io, "heartbeat", BootText(file, status.heartbeat_boot_ns));
  PrintFact(io, "last call", absl::StrCat(CallName(status.last_call), " ", BootText(file, status.last_call_boot_ns)));
  PrintFact(io, "phase", absl::StrCat(PhaseName(status.phase), " since ", BootText(file, status.phase_since_boot_ns)));
}

// A whole record of the file as this version knows it: longer ones are cut, shorter ones zero-filled.
template <class Record>
Record RecordOf(const RingFile& file, const Slot& slot) {
  const lg_ring_identity& id = file.identity;
  const std::uint64_t* words = file.words.data() + (id.header_bytes + std::uint64_t{id.slot_bytes} * slot.index) / sizeof(std::uint64_t);
  Record record{};
  const std::size_t payload = std::min<std::size_t>(id.record_words, sizeof(Record) / 8) - 1;
  std::memcpy(&record, words, payload * sizeof(std::uint64_t));
  return record;
}

struct Shown {
  Slot slot;
  std::string state;  // "valid", "torn", "checksum", "misplaced", "bad_step", ...
  lg_step_record step{};
  lg_event_record event{};
  bool has_fields() const { return slot.state == SlotState::kRecord; }
  bool broken() const { return state != "valid" && slot.state != SlotState::kTorn; }
};

Shown Show(const RingFile& file, const Slot& slot) {
  Shown shown{slot, SlotStateName(slot.state)};
  if (slot.state != SlotState::kRecord) return shown;
  if (file.identity.kind == LG_RING_KIND_STEPS) {
    shown.step = RecordOf<lg_step_record>(file, slot);
    shown.state = ring::RecordStateName(ring::ValidateRecord(shown.step));
  } else {
    shown.event = RecordOf<lg_event_record>(file, slot);
    shown.state = ring::RecordStateName(ring::ValidateRecord(shown.event));
  }
  return shown;
}

std::string StateText(const Shown& shown) {
  if (shown.slot.state == SlotState::kTorn) return "torn: it is being written, or its producer died while writing it";
  if (shown.slot.state == SlotState::kChecksum) return "invalid: checksum does not match";
  if (shown.slot.state == SlotState::kMisplaced) return absl::StrCat("invalid: sequence word of another slot in slot ", shown.slot.index);
  return shown.state == "valid" ? "" : absl::StrCat("invalid: ", shown.state);
}

void PrintRecord(const RingFile& file, const Shown& shown, Io& io) {
  const std::string state = StateText(shown);
  std::string head = shown.slot.publication == 0 ? "#?" : absl::StrCat("#", shown.slot.publication);
  const bool steps = file.identity.kind == LG_RING_KIND_STEPS;
  if (shown.has_fields()) absl::StrAppend(&head, "  step ", steps ? shown.step.step : shown.event.step);
  io.out << Coloured(io, Tone::kBold, head);
  if (!state.empty()) io.out << "  " << Coloured(io, shown.broken() ? Tone::kBad : Tone::kWarning, state);
  io.out << "\n";
  if (!shown.has_fields()) return;
  const void* record = steps ? static_cast<const void*>(&shown.step) : static_cast<const void*>(&shown.event);
  std::string line;
  const auto flush = [&] {
    if (!line.empty()) io.out << "   " << line << "\n";
    line.clear();
  };
  for (const Field& field : steps ? StepFields() : EventFields()) {
    if (!HasField(field, shown.step.present)) continue;
    std::string item = absl::StrCat(" ", field.name, "=", FieldText(field, record));
    if (field.type == FieldType::kPresent) {  // a list, and a long one
      for (const std::string& part : Wrap(absl::StrReplaceAll(item, {{",", ", "}}), io.width - 4)) {
        flush();
        line = absl::StrCat(" ", part);
      }
      flush();
      continue;
    }
    if (!line.empty() && DisplayWidth(line) + DisplayWidth(item) + 3 > io.width) flush();
    line += item;
  }
  flush();
}

void WriteHeader(const RingFile& file, JsonWriter& json) {
  const lg_ring_identity& id = file.identity;
  json.OpenObject("header");
  json.Text("abi", absl::StrCat(id.abi_major, ".", id.abi_minor));
  json.Text("kind", id.kind == LG_RING_KIND_STEPS ? "steps" : "events");
  json.Text("run", NameField(id.run, sizeof id.run));
  json.Text("attempt", NameField(id.attempt, sizeof id.attempt));
  json.Text("segmentId", absl::StrFormat("%016x%016x", id.segment_id[0], id.segment_id[1]));
  json.Wide("createdWallNs", id.created_wall_ns);
  json.Wide("attemptStartWallNs", id.attempt_start_wall_ns);
  json.Small("producerPid", id.producer_pid);
  json.Small("producerUid", id.producer_uid);
  json.Small("slotCount", id.slot_count);
  json.Small("slotBytes", id.slot_bytes);
  json.Number("labelSmoothing", id.label_smoothing);
  json.Number("zLossWeight", id.z_loss_weight);
  json.OpenObject("layout");
  json.Small("worldSize", id.layout.world_size);
  json.Small("rank", id.layout.rank);
  const std::pair<const char*, const lg_axis*> axes[] = {
      {"dp", &id.layout.dp}, {"tp", &id.layout.tp}, {"pp", &id.layout.pp}, {"cp", &id.layout.cp}, {"ep", &id.layout.ep}};
  for (const auto& [name, axis] : axes) {
    json.OpenObject(name);
    json.Small("size", axis->size);
    json.Small("index", axis->index);
    json.CloseObject();
  }
  json.Bool("hasLoss", id.layout.has_loss != 0);
  json.Small("gradientReduction", id.layout.gradient_reduction);
  json.Wide("shardOffset", id.layout.shard_offset);
  json.Wide("shardColumns", id.layout.shard_columns);
  json.Wide("vocabSize", id.layout.vocab_size);
  json.CloseObject();
  json.OpenArray("blocks");
  for (const auto& name : id.block_names) {
    if (name[0] != 0) json.Text("", NameField(name, sizeof name));
  }
  json.CloseArray();
  json.CloseObject();
}

void WriteStatus(const RingFile& file, JsonWriter& json) {
  const lg_ring_status& status = file.status;
  json.OpenObject("status");
  json.Wide("published", file.published_untrusted);
  json.Text("producer", file.liveness == Liveness::kAlive ? "alive" : file.liveness == Liveness::kGone ? "gone" : "unknown");
  json.Wide("heartbeatBootNs", status.heartbeat_boot_ns);
  json.Wide("enteredStep", status.entered_step);
  json.Wide("enqueuedStep", status.enqueued_step);
  json.Wide("publishedStep", status.published_step);
  json.Text("lastCall", CallName(status.last_call));
  json.Text("phase", PhaseName(status.phase));
  json.Text("closed", CloseName(status.closed));
  json.CloseObject();
}

void WriteJson(const std::string& path, const RingFile& file, const std::vector<Shown>& records, std::size_t written, Io& io) {
  JsonWriter json(io.out);
  json.OpenObject();
  json.Text("file", path);
  json.Text("state", ring::HeaderStateName(file.state));
  json.Text("explanation", ring::DescribeHeader(file.state, file.file_bytes, file.identity));
  if (file.readable()) {
    WriteHeader(file, json);
    WriteStatus(file, json);
    json.Wide("slotsWritten", std::uint64_t{written});
    json.OpenArray("records");
    for (const Shown& shown : records) {
      json.OpenObject();
      json.Wide("publication", shown.slot.publication);
      json.Text("state", shown.state);
      const bool steps = file.identity.kind == LG_RING_KIND_STEPS;
      const void* record = steps ? static_cast<const void*>(&shown.step) : static_cast<const void*>(&shown.event);
      for (const Field& field : steps ? StepFields() : EventFields()) {
        if (shown.has_fields() && HasField(field, shown.step.present)) json.Raw(field.name, FieldJson(field, record));
      }
      json.CloseObject();
    }
    json.CloseArray();
  }
  json.CloseObject();
}

int Run(const Options& options, Io& io) {
  const std::string& path = options.operand(0);
  const auto file = LoadRingFile(path);
  if (!file.ok()) {
    io.err << "lossgaugectl: " << Printable(std::string(file.status().message())) << "\n";
    return kFailed;
  }
  std::vector<Shown> records;
  for (const Slot& slot : ListSlots(*file)) records.push_back(Show(*file, slot));
  const std::size_t written = records.size();
  const auto count = [&](auto predicate) { return std::count_if(records.begin(), records.end(), predicate); };
  const auto broken = count([](const Shown& one) { return one.broken(); });
  const auto torn = count([](const Shown& one) { return one.slot.state == SlotState::kTorn; });
  const auto tail = static_cast<std::size_t>(options.Integer("tail", kDefaultTail));
  if (tail > 0 && records.size() > tail) records.erase(records.begin(), records.end() - static_cast<std::ptrdiff_t>(tail));

  if (options.Has("json")) {
    WriteJson(path, *file, records, written, io);
    return file->readable() && broken == 0 ? kDone : kFailed;
  }
  if (!file->readable()) {
    io.err << "lossgaugectl: " << Printable(path) << ": " << ring::DescribeHeader(file->state, file->file_bytes, file->identity) << "\n";
    return kFailed;
  }
  io.out << Coloured(io, Tone::kBold, Printable(path)) << ": " << (file->identity.kind == LG_RING_KIND_STEPS ? "step" : "event") << " ring, ABI "
         << file->identity.abi_major << "." << file->identity.abi_minor << "\n";
  PrintHeader(*file, io);
  PrintFact(io, "in the slots", absl::StrCat(static_cast<std::int64_t>(written) - broken - torn, " valid, ", torn, " torn, ", broken, " invalid, ",
                                             file->identity.slot_count - written, " never written"));
  if (records.size() < written) io.out << "The newest " << records.size() << " of " << written << " (--tail=0 shows all):\n";
  for (const Shown& shown : records) PrintRecord(*file, shown, io);
  return broken == 0 ? kDone : kFailed;
}

}  // namespace

Command DumpCommand() {
  return {.name = "dump",
          .operands = "FILE",
          .summary = "print a ring file; no daemon needed, its producer may be dead",
          .details = "FILE is <key>.steps or <key>.events of a ring directory. Shows header, layout, status line and the newest records with all "
                     "their fields; what is torn or does not validate is marked. Exit code 1 if anything is invalid; a torn record is not, it "
                     "is what a killed producer leaves.",
          .flags = {{"tail", FlagKind::kInteger, "N", "only the newest N records, 0 = all (default 10)", 0, LG_MAX_SLOT_COUNT}},
          .remote = false,
          .run = Run};
}

}  // namespace lossgauge::ctl
