#include "server/api/explain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "server/api/explain_rules.h"
#include "server/api/text.h"
#include "server/state/kinds.h"

namespace lossgauge::api {
namespace {

using state::Action;
using state::Incident;
using state::Severity;
using state::TimeNs;
using state::Verdict;

constexpr std::size_t kMostIncidents = 10;

std::string Duration(TimeNs ns) {
  const double seconds = static_cast<double>(std::max<TimeNs>(0, ns)) / 1e9;
  if (seconds < 120) return absl::StrFormat("%.1f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 172'800) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.0f days", seconds / 86'400);
}

std::string Clock(TimeNs ns) { return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixNanos(ns), absl::UTCTimeZone()); }

std::string Number(double value) {
  const bool is_whole = std::fabs(value) < 1e15 && value == std::floor(value);
  return is_whole ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.5g", value);
}

std::string EvidenceLine(const state::Evidence& evidence) {
  std::string name = evidence.name;
  std::replace(name.begin(), name.end(), '_', ' ');
  if (evidence.value == 0 && evidence.unit.empty() && !evidence.text.empty()) return absl::StrCat(name, ": ", evidence.text);
  std::string line = absl::StrCat(name, ": ", Number(evidence.value));
  if (!evidence.unit.empty()) absl::StrAppend(&line, " ", evidence.unit);
  if (!evidence.text.empty()) absl::StrAppend(&line, " (", evidence.text, ")");
  return line;
}

class Story {
 public:
  explicit Story(v1::Explanation* out) : out_(out) {}
  void Part(std::string_view title) { title_ = title; }
  // Nothing for an empty line; a part without lines does not appear.
  void Line(std::string_view line) {
    if (line.empty()) return;
    if (!title_.empty()) out_->add_parts()->set_title(ValidUtf8(title_));
    title_.clear();
    out_->mutable_parts(out_->parts_size() - 1)->add_lines(ValidUtf8(line));
  }

 private:
  v1::Explanation* const out_;
  std::string title_;
};

std::string Where(const Incident& incident) {
  std::string text = absl::StrCat(ReasonCode(incident), ", severity ", std::string(state::SeverityName(incident.severity)));
  if (incident.onset_step == incident.last_step) {
    absl::StrAppend(&text, ", at step ", incident.onset_step);
  } else {
    absl::StrAppend(&text, ", steps ", incident.onset_step, " to ", incident.last_step, ", worst at ", incident.peak_step);
  }
  if (incident.rank) absl::StrAppend(&text, ", rank ", *incident.rank);
  if (!incident.attempt.empty()) absl::StrAppend(&text, ", attempt ", incident.attempt);
  return text + ".";
}

std::string SinceWhen(const Incident& incident, TimeNs now_ns) {
  if (incident.open) return absl::StrCat("Open since ", Clock(incident.onset_time_ns), ", for ", Duration(now_ns - incident.onset_time_ns), ".");
  std::string text = absl::StrCat("From ", Clock(incident.onset_time_ns), " to ", Clock(incident.resolved_time_ns), ", ",
                                  Duration(incident.resolved_time_ns - incident.onset_time_ns));
  if (incident.steps_to_recover) absl::StrAppend(&text, "; recovered after ", *incident.steps_to_recover, " steps");
  return text + ".";
}

bool IsReasonOf(const Verdict& verdict, const Incident& incident) {
  return std::find(verdict.reason_codes.begin(), verdict.reason_codes.end(), ReasonCode(incident)) != verdict.reason_codes.end();
}

void TellAdvice(const Verdict& verdict, Story* story) {
  if (verdict.resume_point) story->Line(absl::StrCat("Resume from the checkpoint of step ", verdict.resume_point->step, ": ", verdict.resume_point->path));
  if (verdict.skip) story->Line(absl::StrCat("Do not train again on the data of steps ", verdict.skip->first, " to ", verdict.skip->last, "."));
  if (verdict.last_good_step) story->Line(absl::StrCat("The last step that nothing speaks against is ", *verdict.last_good_step, "."));
  if (verdict.rank_at_fault) story->Line(absl::StrCat("Look at rank ", *verdict.rank_at_fault, " first."));
}

std::string Capital(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text.empty() || text.back() == '.' ? text : text + ".";
}

// What would change a verdict that no incident explains.
std::string_view ChangeOf(const Verdict& verdict) {
  const std::string_view code = verdict.reason_codes.empty() ? std::string_view() : std::string_view(verdict.reason_codes[0]);
  switch (verdict.action) {
    case Action::kContinue:
      return "An incident above information makes it WATCH or worse; no step for {time.fresh_seconds} s and {time.fresh_median_steps} usual step times "
             "makes it WATCH or UNKNOWN.";
    case Action::kUnknown:
      if (code == state::kReasonEnded) return "Only a new attempt of this run.";
      if (code == state::kReasonWarming) return "{loss.baseline_steps} steps that can be judged; what is exact, such as NaN, is judged from the first.";
      return "A fresh step, or a look at the job's processes no older than {time.presence_seconds} s.";
    case Action::kWatch:
      return "A step, or the end of the phase; a phase longer than {time.phase_limit_seconds} s counts as a stall.";
    case Action::kRestart:
    case Action::kHalt:
      return "A new attempt that gets further. Tell lossgauged what was done (lossgaugectl report), so that it knows.";
  }
  return "";
}

std::string ShadowNote(const Verdict& verdict) {
  return verdict.mode == "shadow" ? "The run is in shadow mode: it is judged and shown, but health and alerts stay calm." : "";
}

// Thresholds are those of the policy that judged, where it is kept; else of the one that is loaded, which may be another.
std::string PolicyNote(const state::PolicyView* policy, const std::vector<std::string>& judged_by) {
  if (judged_by.empty() || (policy != nullptr && judged_by.size() == 1 && judged_by[0] == policy->version)) return "";
  const std::string by = absl::StrCat("judged by policy ", absl::StrJoin(judged_by, ", "));
  if (policy != nullptr && judged_by[0] == policy->version) {
    return absl::StrCat("It was ", by, "; numbers are those of ", policy->version, ", the last of them.");
  }
  if (policy == nullptr) return absl::StrCat("It was ", by, ", whose numbers are not known any more.");
  return absl::StrCat("Numbers are those of policy ", policy->version, ", which is loaded now; it was ", by, ", whose numbers may have been others.");
}

}  // namespace

bool IsOfItsTime(const Verdict& verdict, TimeNs until_ns, const Incident& incident) {
  const TimeNs end = incident.open ? std::numeric_limits<TimeNs>::max() : incident.resolved_time_ns;
  return verdict.evaluated_at_ns <= end && until_ns > incident.onset_time_ns;
}

v1::Explanation ExplainIncident(const ExplainedRun& run, const Incident& incident) {
  v1::Explanation out;
  out.set_run(ValidUtf8(run.run));
  out.set_incident(ValidUtf8(incident.id));
  if (run.policy != nullptr) out.set_policy_version(ValidUtf8(run.policy->version));
  const ExplainedRule& rule = RuleOf(incident.condition);
  out.set_headline(ValidUtf8(incident.summary.empty() ? Where(incident) : incident.summary));
  Story story(&out);
  story.Part("What was seen");
  story.Line(Where(incident));
  story.Line(rule.meaning);
  story.Part("Since when");
  story.Line(SinceWhen(incident, run.now_ns));
  if (incident.acknowledged) {
    story.Line(absl::StrCat("Acknowledged by ", incident.acknowledged->by,
                            incident.acknowledged->comment.empty() ? std::string() : absl::StrCat(": ", incident.acknowledged->comment)));
  }
  story.Part("Evidence");
  for (const state::Evidence& evidence : incident.evidence) story.Line(EvidenceLine(evidence));
  story.Part("Rule");
  story.Line(FillIn(rule.rule, run.policy));
  story.Line(PolicyNote(run.policy, run.judged_by));
  story.Part("What it means for the verdict");
  if (!incident.open) {
    story.Line("Nothing any more: it is resolved.");
  } else {
    if (!incident.hidden_by.empty()) {
      story.Line(absl::StrCat("It is a symptom of incident ", incident.hidden_by, ", which speaks for it."));
    } else if (run.verdict && IsReasonOf(*run.verdict, incident)) {
      story.Line(absl::StrCat("It is a reason of the present verdict, ", std::string(state::ActionName(run.verdict->action)), "."));
    } else if (run.verdict) {
      story.Line(absl::StrCat("The present verdict, ", std::string(state::ActionName(run.verdict->action)), ", has another reason: ",
                              Capital(run.verdict->reason)));
    }
    story.Line(FillIn(rule.becomes, run.policy));
    story.Part("What would change that");
    story.Line(FillIn(rule.ends, run.policy));
    if (run.verdict && IsReasonOf(*run.verdict, incident)) story.Line(Capital(run.verdict->escalates));
  }
  return out;
}

v1::Explanation ExplainRun(const ExplainedRun& run) {
  v1::Explanation out;
  out.set_run(ValidUtf8(run.run));
  Story story(&out);
  if (!run.verdict) {
    out.set_headline("No verdict of this run was kept.");
    return out;
  }
  const Verdict& verdict = *run.verdict;
  out.set_policy_version(ValidUtf8(verdict.policy_version));
  const std::string action(state::ActionName(verdict.action));
  out.set_headline(ValidUtf8(absl::StrCat(action, ": ", verdict.reason)));
  story.Part("Since when");
  if (run.is_past) story.Line(absl::StrCat("The run is only in the history; this was its last verdict, of ", Clock(verdict.evaluated_at_ns), "."));
  if (!run.is_past && run.verdict_since_ns) {
    story.Line(absl::StrCat(action, " for this reason since ", Clock(*run.verdict_since_ns), ", for ", Duration(run.now_ns - *run.verdict_since_ns), "."));
  }
  if (verdict.last_step) {
    std::string line = absl::StrCat("The last step is ", *verdict.last_step);
    if (verdict.last_step_age_ns) absl::StrAppend(&line, ", ", Duration(*verdict.last_step_age_ns), run.is_past ? " old at that time" : " old");
    story.Line(line + ".");
  }
  story.Part("Evidence");
  for (const state::Evidence& evidence : verdict.evidence) story.Line(EvidenceLine(evidence));
  story.Part("What to do");
  TellAdvice(verdict, &story);
  story.Line(ShadowNote(verdict));
  std::vector<const Incident*> shown;
  for (const Incident& incident : run.open) {
    if (incident.hidden_by.empty()) shown.push_back(&incident);
  }
  std::stable_sort(shown.begin(), shown.end(), [](const Incident* a, const Incident* b) { return a->severity > b->severity; });
  story.Part("What would change it");
  story.Line(PolicyNote(run.policy, {verdict.policy_version}));
  story.Line(Capital(verdict.escalates));
  bool is_explained = false;
  for (const Incident* incident : shown) {
    if (!IsReasonOf(verdict, *incident)) continue;
    is_explained = true;
    story.Line(absl::StrCat(ReasonCode(*incident), ": ", FillIn(RuleOf(incident->condition).ends, run.policy)));
  }
  if (!is_explained) story.Line(FillIn(ChangeOf(verdict), run.policy));
  for (std::size_t i = 0; i < shown.size() && i < kMostIncidents; ++i) {
    const Incident& incident = *shown[i];
    story.Part(absl::StrCat("Open: ", ReasonCode(incident), " since step ", incident.onset_step, " (", incident.id, ")"));
    story.Line(incident.summary);
    story.Line(RuleOf(incident.condition).meaning);
    story.Line(FillIn(RuleOf(incident.condition).rule, run.policy));
    story.Line(FillIn(RuleOf(incident.condition).becomes, run.policy));
  }
  if (shown.size() > kMostIncidents) story.Line(absl::StrCat(shown.size() - kMostIncidents, " more open incidents are not told here."));
  return out;
}

}  // namespace lossgauge::api
