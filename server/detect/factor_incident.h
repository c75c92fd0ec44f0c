// The life of an incident of a series that jumped by a factor: opened at the first high value, closed after ten that are not (in sparse logs: three).
#ifndef LOSSGAUGE_SERVER_DETECT_FACTOR_INCIDENT_H_
#define LOSSGAUGE_SERVER_DETECT_FACTOR_INCIDENT_H_

#include <cstdint>

#include "server/detect/incident_book.h"
#include "server/detect/state_codec.h"

namespace lossgauge::detect {

class FactorIncident {
 public:
  // A value of the series, `factor` times its usual one. Not high: counts towards the end. `names` are those of the evidence.
  struct Names {
    IncidentBook::Slot slot;
    const char* value;  // "grad_norm"
    const char* peak;   // "peak_grad_norm"
  };
  void OnQuiet(const Names& names, const Moment& moment, std::int64_t interval_steps, IncidentBook& book);
  // Returns the finding to be completed (summary, rank, further evidence) and reported by the detector.
  Finding OnHigh(const Names& names, double value, double factor, const Moment& moment, const IncidentBook& book);
  void OnAttempt() { *this = FactorIncident(); }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  std::int64_t onset_step_ = 0;
  std::int32_t clean_ = 0;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_FACTOR_INCIDENT_H_
