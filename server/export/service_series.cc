#include "server/export/service_series.h"

#include <cstddef>
#include <cstdint>

namespace lossgauge::export_ {
namespace {

double Count(std::uint64_t value) { return static_cast<double>(value); }

void AddSink(const char* sink, const state::ShipCounters& counters, FamilyBuilder& page) {
  if (counters.in_use) page.Add(Metric::kSinkPending, {sink}, Count(counters.pending_steps));
  page.Add(Metric::kSinkSteps, {sink}, Count(counters.sent_steps));
  page.Add(Metric::kSinkSamples, {sink}, Count(counters.sent_samples));
  for (std::size_t i = 0; i < counters.dropped_steps.size(); ++i) {
    page.Add(Metric::kSinkDropped, {sink, state::kShipDropNames[i]}, Count(counters.dropped_steps[i]));
  }
  for (std::size_t i = 0; i < counters.requests.size(); ++i) {
    page.Add(Metric::kSinkRequests, {sink, state::kShipResultNames[i]}, Count(counters.requests[i]));
  }
  page.Add(Metric::kSinkMoved, {sink}, Count(counters.moved_timestamps));
  if (counters.last_sent_s != 0) page.Add(Metric::kSinkLastSent, {sink}, static_cast<double>(counters.last_sent_s));
}

}  // namespace

void AddServiceSeries(const state::ServiceCounters& counters, FamilyBuilder& page) {
  for (std::size_t i = 0; i < counters.exposed.size(); ++i) {
    const char* protocol = state::kProtocolNames[i];
    page.Add(Metric::kListeningWithoutTls, {protocol}, Count(counters.exposed[i]));
    for (std::size_t cause = 0; cause < counters.refused[i].size(); ++cause) {
      page.Add(Metric::kRequestsRefused, {protocol, state::kRefusalNames[cause]}, Count(counters.refused[i][cause]));
    }
  }
  if (counters.certificate_expiry_s != 0) page.Add(Metric::kCertificateExpiry, {}, static_cast<double>(counters.certificate_expiry_s));
  page.Add(Metric::kTlsReloads, {}, Count(counters.tls_reloads));
  page.Add(Metric::kTlsReloadErrors, {}, Count(counters.tls_reload_errors));
  for (std::size_t i = 0; i < counters.sinks.size(); ++i) AddSink(state::kSinkNames[i], counters.sinks[i], page);
}

}  // namespace lossgauge::export_
