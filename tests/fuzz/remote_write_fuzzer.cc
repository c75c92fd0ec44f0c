// What is sent to a receiver, read as a receiver reads it: run, labels and steps of any values give a body that decompresses, parses, and says of each
// series what the steps say, in the order that receivers ask for.
#include <snappy.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "prometheus/remote.pb.h"
#include "server/export/receiver_url.h"
#include "server/export/remote_write_sink.h"

namespace {

using namespace lossgauge::export_;

void Require(bool holds) {
  if (!holds) std::abort();
}

// Takes from the front; zeros behind the end.
template <typename T>
T Take(std::string_view* in) {
  T value{};
  const std::size_t size = std::min(sizeof value, in->size());
  if (size != 0) std::memcpy(&value, in->data(), size);
  in->remove_prefix(size);
  return value;
}

std::vector<TimedStep> TakeSteps(std::string_view* in) {
  std::vector<TimedStep> steps;
  std::int64_t timestamp_ms = Take<std::uint32_t>(in);
  while (!in->empty() && steps.size() < 64) {
    auto step = std::make_shared<lossgauge::state::StepSummary>();
    step->step = Take<std::int64_t>(in);
    step->unmasked_tokens = Take<std::uint64_t>(in);
    const auto present = Take<std::uint16_t>(in);
    std::optional<double>* const values[] = {&step->loss_nats, &step->bits_per_byte, &step->objective_nats,   &step->z_loss_nats,    &step->reported_loss_nats,
                                             &step->accuracy,  &step->grad_norm,     &step->logit_grad_norm,  &step->max_abs_logit,  &step->log_z_mean_nats,
                                             &step->log_z_max_nats, &step->learning_rate, &step->step_seconds};
    for (std::size_t i = 0; i < std::size(values); ++i) {
      if (present >> i & 1) *values[i] = Take<double>(in);
    }
    timestamp_ms += 1 + Take<std::uint8_t>(in);
    steps.push_back({step, timestamp_ms});
  }
  return steps;
}

const std::string& LabelOf(const lossgauge::prompb::TimeSeries& series, std::string_view name) {
  static const std::string kNone;
  for (const auto& label : series.labels()) {
    if (label.name() == name) return label.value();
  }
  return kNone;
}

void CheckLabels(const lossgauge::prompb::TimeSeries& series, std::string_view run, const SinkLabels& labels) {
  Require(series.labels_size() == static_cast<int>(labels.size()) + 2);
  for (int i = 1; i < series.labels_size(); ++i) Require(series.labels(i - 1).name() < series.labels(i).name());
  Require(LabelOf(series, "run") == run);
  for (const auto& [name, value] : labels) Require(!value.empty() && LabelOf(series, name) == value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view in(reinterpret_cast<const char*>(data), size);
  const std::size_t label_bytes = std::min<std::size_t>(Take<std::uint8_t>(&in), in.size());
  const auto parsed = ParseLabels(in.substr(0, label_bytes));
  in.remove_prefix(label_bytes);
  const SinkLabels labels = parsed.ok() ? *parsed : SinkLabels();
  std::string run = "r";
  for (int letters = Take<std::uint8_t>(&in) % 8; letters > 0; --letters) run += static_cast<char>(Take<std::uint8_t>(&in) & 127);
  const std::vector<TimedStep> steps = TakeSteps(&in);

  std::uint64_t samples = 0;
  const std::string body = EncodeWriteBody(run, steps, labels, &samples);
  std::string plain;
  lossgauge::prompb::WriteRequest request;
  Require(snappy::Uncompress(body.data(), body.size(), &plain) && request.ParseFromString(plain));
  std::uint64_t seen = 0;
  int next = 0;
  for (const StepSeries& series : AllStepSeries()) {
    std::vector<std::pair<std::int64_t, double>> expected;
    for (const TimedStep& timed : steps) {
      if (const std::optional<double> value = series.value(*timed.step)) expected.emplace_back(timed.timestamp_ms, *value);
    }
    if (expected.empty()) continue;
    Require(next < request.timeseries_size());
    const auto& sent = request.timeseries(next++);
    CheckLabels(sent, run, labels);
    Require(LabelOf(sent, "__name__") == series.name && sent.samples_size() == static_cast<int>(expected.size()));
    for (int i = 0; i < sent.samples_size(); ++i) {
      Require(sent.samples(i).timestamp() == expected[i].first && sent.samples(i).value() == expected[i].second && std::isfinite(sent.samples(i).value()));
      Require(i == 0 || sent.samples(i - 1).timestamp() < sent.samples(i).timestamp());
    }
    seen += expected.size();
  }
  Require(next == request.timeseries_size() && seen == samples);
  return 0;
}
