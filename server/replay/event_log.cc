#include "server/replay/event_log.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "proto/tensorboard/record_framing.h"
#include "tensorboard/event.pb.h"

namespace lossgauge::replay {
namespace {

using tensorboard::kRecordHeadBytes;
using tensorboard::kRecordTailBytes;

constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{16} << 20;
constexpr std::size_t kChunkBytes = std::size_t{64} << 10;

// A window over the source: what is needed is made available, what was used is dropped.
class Window {
 public:
  explicit Window(ByteSource* source) : source_(source) {}
  // Makes `size` bytes available if there are as many.
  bool Want(std::size_t size) {
    while (buffer_.size() - begin_ < size) {
      if (begin_ > 0) buffer_.erase(0, begin_);
      begin_ = 0;
      const std::size_t kept = buffer_.size();
      const std::size_t chunk = std::max(kChunkBytes, size - kept);
      buffer_.resize(kept + chunk);
      const std::size_t got = source_->Read(buffer_.data() + kept, chunk);
      buffer_.resize(kept + got);
      if (got == 0) return false;
    }
    return true;
  }
  std::string_view View(std::size_t offset, std::size_t size) const { return std::string_view(buffer_).substr(begin_ + offset, size); }
  std::size_t size() const { return buffer_.size() - begin_; }
  void Drop(std::size_t size) { begin_ += std::min(size, buffer_.size() - begin_); }
  // More than is kept in memory at once. False: there was less.
  bool Skip(std::uint64_t size) {
    while (size > 0 && Want(1)) {
      const std::size_t now = static_cast<std::size_t>(std::min<std::uint64_t>(size, this->size()));
      Drop(now);
      size -= now;
    }
    return size == 0;
  }

 private:
  ByteSource* const source_;
  std::string buffer_;
  std::size_t begin_ = 0;
};

double HalfToDouble(std::uint32_t bits) {
  const int sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = static_cast<int>((bits >> 10) & 31);
  const int fraction = static_cast<int>(bits & 1023);
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

double BrainToDouble(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }

std::optional<double> ScalarOf(const tensorboard::TensorProto& tensor) {
  enum { kFloat = 1, kDouble = 2, kInt32 = 3, kInt64 = 9, kBrain = 14, kHalf = 19 };
  const std::string& content = tensor.tensor_content();
  const auto whole = [&]<class Word>(Word) { return tensorboard::LoadLittleEndian<Word>(content.data()); };
  switch (tensor.dtype()) {
    case kFloat:
      if (tensor.float_val_size() == 1) return tensor.float_val(0);
      if (content.size() == 4) return std::bit_cast<float>(whole(std::uint32_t{}));
      break;
    case kDouble:
      if (tensor.double_val_size() == 1) return tensor.double_val(0);
      if (content.size() == 8) return std::bit_cast<double>(whole(std::uint64_t{}));
      break;
    case kInt32:
      if (tensor.int_val_size() == 1) return tensor.int_val(0);
      if (content.size() == 4) return static_cast<std::int32_t>(whole(std::uint32_t{}));
      break;
    case kInt64:
      if (tensor.int64_val_size() == 1) return static_cast<double>(tensor.int64_val(0));
      if (content.size() == 8) return static_cast<double>(static_cast<std::int64_t>(whole(std::uint64_t{})));
      break;
    case kBrain:
    case kHalf: {
      std::uint32_t bits = 0;
      if (tensor.half_val_size() == 1) {
        bits = static_cast<std::uint32_t>(tensor.half_val(0)) & 0xffffu;
      } else if (content.size() == 2) {
        bits = whole(std::uint16_t{});
      } else {
        break;
      }
      return tensor.dtype() == kHalf ? HalfToDouble(bits) : BrainToDouble(bits);
    }
    default: break;
  }
  return std::nullopt;
}

// Gathers the scalars of a step until another step's come.
class StepGatherer {
 public:
  explicit StepGatherer(PointMaker* points) : points_(points) { record_.shape = kShapeEvents; }
  void OnEvent(const tensorboard::Event& event, std::uint64_t number) {
    if (event.has_session_log()) {
      if (event.session_log().status() == tensorboard::SessionLog::CHECKPOINT && event.step() >= 0) {
        points_->OnCheckpoint({number, event.step(), event.session_log().checkpoint_path()});
      }
      return;
    }
    if (!event.has_summary()) return;
    for (const tensorboard::Summary::Value& value : event.summary().value()) {
      const std::string name = NormalName(value.tag());
      const Meaning meaning = LookUpName(name).meaning;
      // Curves over another axis ("... vs samples") stand between those of a step. A step among the scalars is a copy of the event's.
      if (meaning == Meaning::kNone || meaning == Meaning::kStep) continue;
      std::optional<double> scalar;
      if (value.value_case() == tensorboard::Summary::Value::kSimpleValue) scalar = value.simple_value();
      if (value.value_case() == tensorboard::Summary::Value::kTensor) scalar = ScalarOf(value.tensor());
      if (!scalar) continue;
      // A tag for the second time is another point of the same step, or of the next run in the file.
      if (event.step() != step_ || record_.Named(name) != nullptr) Flush();
      if (!has_step_) {
        has_step_ = true;
        step_ = event.step();
        record_.line = number;
        record_.Add("global_step", static_cast<double>(step_));
      }
      record_.Add(value.tag(), *scalar);
    }
  }
  void Flush() {
    if (has_step_ && record_.fields.size() > 1) points_->OnRecord(record_);
    record_.Clear();
    has_step_ = false;
  }

 private:
  PointMaker* const points_;
  LogRecord record_;
  bool has_step_ = false;
  std::int64_t step_ = 0;
};

}  // namespace

bool IsEventFile(std::string_view head) {
  std::uint64_t size = 0;
  if (head.size() >= kRecordHeadBytes && tensorboard::ReadRecordHead(head.substr(0, kRecordHeadBytes), &size)) return true;
  return head.find("brain.Event:") != std::string_view::npos;
}

void ReadEventFile(ByteSource* source, PointMaker* points, LogReport* report) {
  report->format = "tensorboard";
  report->encoding = "binary";
  Window window(source);
  StepGatherer gatherer(points);
  tensorboard::Event event;
  std::uint64_t number = 0;
  bool searching = false;
  while (window.Want(kRecordHeadBytes)) {
    std::uint64_t size = 0;
    if (!tensorboard::ReadRecordHead(window.View(0, kRecordHeadBytes), &size)) {
      if (!searching) report->Count(Oddity::kChecksum, number + 1);
      searching = true;
      window.Drop(1);
      continue;
    }
    searching = false;
    ++number;
    if (size > kMaxRecordBytes) {
      report->Count(Oddity::kOverlongRecord, number);
      if (!window.Skip(kRecordHeadBytes) || !window.Skip(size) || !window.Skip(kRecordTailBytes)) report->Count(Oddity::kCutOff, number);
      continue;
    }
    const auto payload_bytes = static_cast<std::size_t>(size);
    if (!window.Want(kRecordHeadBytes + payload_bytes + kRecordTailBytes)) {
      report->Count(Oddity::kCutOff, number);
      window.Drop(window.size());
      break;
    }
    const std::string_view payload = window.View(kRecordHeadBytes, payload_bytes);
    if (!tensorboard::PayloadMatches(payload, window.View(kRecordHeadBytes + payload_bytes, kRecordTailBytes))) {
      report->Count(Oddity::kChecksum, number);
    } else if (!event.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
      report->Count(Oddity::kUnreadable, number);
    } else {
      gatherer.OnEvent(event, number);
    }
    window.Drop(kRecordHeadBytes + payload_bytes + kRecordTailBytes);
  }
  if (window.size() > 0) report->Count(Oddity::kCutOff, number + 1);
  gatherer.Flush();
  report->lines = number;
}

}  // namespace lossgauge::replay
