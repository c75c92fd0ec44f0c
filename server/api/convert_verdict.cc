#include "server/api/convert_verdict.h"

#include "server/api/convert_incident.h"
#include "server/api/convert_step.h"
#include "server/api/text.h"

namespace lossgauge::api {
void ToMessage(const std::string& run, const state::Verdict& verdict, const std::string& instance, v1::Verdict* message) {
  message->set_run(ValidUtf8(run));
  message->set_action(static_cast<v1::Action>(verdict.action));
  message->set_reason(ValidUtf8(verdict.reason));
  for (const std::string& code : verdict.reason_codes) message->add_reason_codes(ValidUtf8(code));
  for (const state::Evidence& evidence : verdict.evidence) ToMessage(evidence, message->add_evidence());
  message->set_policy_version(ValidUtf8(verdict.policy_version));
  SetTimestamp(verdict.evaluated_at_ns, message->mutable_evaluated_at());
  SetTimestamp(verdict.valid_until_ns, message->mutable_valid_until());
  message->set_attempt(ValidUtf8(verdict.attempt));
  if (verdict.last_step) message->set_last_step(*verdict.last_step);
  if (verdict.last_step_age_ns) SetDuration(*verdict.last_step_age_ns, message->mutable_last_step_age());
  if (verdict.last_good_step) message->set_last_good_step(*verdict.last_good_step);
  if (verdict.resume_point) {
    message->mutable_resume_point()->set_step(verdict.resume_point->step);
    message->mutable_resume_point()->set_path(ValidUtf8(verdict.resume_point->path));
  }
  if (verdict.skip) {
    message->mutable_skip()->set_first(verdict.skip->first);
    message->mutable_skip()->set_last(verdict.skip->last);
  }
  if (verdict.rank_at_fault) message->set_rank_at_fault(*verdict.rank_at_fault);
  message->set_escalates(ValidUtf8(verdict.escalates));
  if (verdict.since_ns) SetTimestamp(*verdict.since_ns, message->mutable_since());
  message->set_scope(ValidUtf8(verdict.scope));
  message->set_mode(ValidUtf8(verdict.mode));
  message->set_instance(ValidUtf8(instance));
}

static_assert(static_cast<int>(state::Action::kContinue) == v1::CONTINUE && static_cast<int>(state::Action::kWatch) == v1::WATCH &&
              static_cast<int>(state::Action::kRestart) == v1::RESTART && static_cast<int>(state::Action::kHalt) == v1::HALT &&
              static_cast<int>(state::Action::kUnknown) == v1::UNKNOWN);

std::string ActionName(v1::Action action) {
  return action != v1::ACTION_UNSPECIFIED && v1::Action_IsValid(action) ? v1::Action_Name(action) : "UNKNOWN";
}

int Urgency(v1::Action action) {
  switch (action) {
    case v1::HALT: return 0;
    case v1::RESTART: return 1;
    case v1::WATCH: return 2;
    case v1::CONTINUE: return 4;
    default: return 3;
  }
}

}  // namespace lossgauge::api
