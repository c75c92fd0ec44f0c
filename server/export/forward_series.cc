#include "server/export/forward_series.h"

#include <string>
#include <string_view>

namespace lossgauge::export_ {
namespace {

// What a daemon refuses of senders, so that each exists at 0 before it first happens.
constexpr std::string_view kRefusals[] = {"bad_batch",           "bad_hello",   "bad_producer", "bad_record", "malformed",   "max_producers",
                                          "max_runs_per_client", "max_runs_per_sender", "max_senders", "max_streams",  "newer_minor", "oversize", "producer", "second_sender"};
constexpr std::string_view kRefusedPrefix = "refused/";

void AddSender(const state::ForwardView& forward, FamilyBuilder& page) {
  int place = 0;
  for (const state::ForwardView::Target& target : forward.targets) {
    const std::string daemon = std::to_string(++place);  // addresses change; the set of labels does not
    page.Add(Metric::kForwardConnected, {daemon}, target.connected ? 1.0 : 0.0);
    page.Add(Metric::kForwardSent, {daemon}, static_cast<double>(target.records_sent));
    page.Add(Metric::kForwardAcknowledged, {daemon}, static_cast<double>(target.records_acknowledged));
    page.Add(Metric::kForwardDropped, {daemon}, static_cast<double>(target.records_dropped));
    page.Add(Metric::kForwardFailures, {daemon}, static_cast<double>(target.failures));
  }
  page.Add(Metric::kForwardSpoolBytes, {}, static_cast<double>(forward.spool_bytes));
  page.Add(Metric::kForwardSpoolErrors, {}, static_cast<double>(forward.spool_write_errors));
}

void AddReceiver(const std::map<std::string, std::uint64_t>& counts, FamilyBuilder& page) {
  const auto count = [&counts](std::string_view name) {
    const auto found = counts.find(std::string(name));
    return found == counts.end() ? 0.0 : static_cast<double>(found->second);
  };
  page.Add(Metric::kIngestSenders, {}, count("senders"));
  page.Add(Metric::kIngestBatches, {}, count("batches"));
  page.Add(Metric::kIngestRepeated, {}, count("records_repeated"));
  page.Add(Metric::kIngestRecordsRefused, {}, count("records_refused"));
  for (const std::string_view cause : kRefusals) page.Add(Metric::kIngestRefused, {cause}, count(std::string(kRefusedPrefix) + std::string(cause)));
}

}  // namespace

void AddForwardSeries(const state::SelfView& self, FamilyBuilder& page) {
  if (self.forward) AddSender(*self.forward, page);
  if (!self.ingest.empty()) AddReceiver(self.ingest, page);
}

}  // namespace lossgauge::export_
