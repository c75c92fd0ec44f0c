// What each condition means, by which rule it is found, and what would change it: the texts that explanations are made of.
#ifndef LOSSGAUGE_SERVER_API_EXPLAIN_RULES_H_
#define LOSSGAUGE_SERVER_API_EXPLAIN_RULES_H_

#include <string>
#include <string_view>

#include "server/state/incident.h"
#include "server/state/policy_view.h"

namespace lossgauge::api {

// Texts hold thresholds as {section.key} of the policy.
struct ExplainedRule {
  std::string_view meaning;  // what it is, and what it is not
  std::string_view rule;     // when it is found
  std::string_view ends;     // what closes it
  std::string_view becomes;  // what it does to the verdict, now and if it goes on
};

// Of every condition.
const ExplainedRule& RuleOf(state::Condition condition);

// "{loss.close_steps}" becomes "30 (loss.close_steps)", or the name alone where the policy is not known.
std::string FillIn(std::string_view text, const state::PolicyView* policy);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_EXPLAIN_RULES_H_
