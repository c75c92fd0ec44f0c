// Words of a verdict: durations, factors, and when a condition that is only watched becomes more.
#ifndef LOSSGAUGE_SERVER_DETECT_VERDICT_WORDS_H_
#define LOSSGAUGE_SERVER_DETECT_VERDICT_WORDS_H_

#include <string>

#include "server/detect/policy.h"
#include "server/state/incident.h"

namespace lossgauge::detect {

// "45 s", "12 min", "3.4 h". Below 0 counts as 0.
std::string Duration(state::TimeNs ns);
// "2.50 x usual", "9.6e+29 x usual".
std::string TimesUsual(double factor);
// "" if it never does.
std::string Escalation(const state::Incident& incident, const Policy& policy, double median_step_seconds);

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_VERDICT_WORDS_H_
