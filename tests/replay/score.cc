// Replays labelled logs and prints how they were judged, beside public rules.
//
//     replay_score DIRECTORY [--policy=FILE] [--details]
//
// DIRECTORY holds events.tsv and logs/. Exit code 1 if a target is missed, 2 for wrong use.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/replay/public_rules.h"
#include "tests/replay/scoring.h"

namespace lossgauge::replay {
namespace {

std::string Part(std::uint64_t found, std::uint64_t all) { return all == 0 ? "-" : absl::StrCat(found, "/", all); }

std::string Delays(const std::vector<std::int64_t>& delays) {
  if (delays.empty()) return "-";
  return absl::StrCat(delays[delays.size() / 2], " (", delays.front(), "..", delays.back(), ")");
}

void PrintRow(const LogScore& score) {
  Totals totals;
  Add(score.ours, &totals);
  const std::string right = score.right_verdicts.empty() ? "not scored" : absl::StrJoin(score.right_verdicts, "|");
  absl::PrintF("%-44s %-16s %7u %7s %7s %7s %-14s %6u  %-8s %-12s %s\n", score.file, score.format, score.ours.points, Part(totals.spikes_found, totals.spikes),
               Part(totals.damages_found, totals.damages), Part(totals.gradients_found, totals.gradients), Delays(totals.delays), totals.false_detections,
               state::ActionName(score.worst), right, score.wrong_restart ? "WRONG RESTART" : score.verdict_right ? "" : "wrong");
}

void PrintDetails(const LogScore& score) {
  std::string text;
  for (const FoundLabel& label : score.ours.labels) {
    if (label.found || label.label.kind == LabelKind::kBlip) continue;
    const char* how = label.late ? "late  " : "missed";
    absl::StrAppendFormat(&text, "  %s %s at step %d%s: %s\n", how, LabelKindName(label.label.kind), label.step,
                          label.delay_steps ? absl::StrCat(" by ", *label.delay_steps, " steps") : "", label.label.note);
  }
  for (const FalseDetection& one : score.ours.false_detections) {
    absl::StrAppendFormat(&text, "  false  at step %d (point %u to %u): %s\n", one.step, one.detection.onset, one.detection.last, one.detection.what);
  }
  for (const Detection& one : score.ours.others) absl::StrAppendFormat(&text, "  other  point %u: %s\n", one.onset, one.what);
  if (!score.verdict_right) absl::StrAppendFormat(&text, "  worst  %s at step %d: %s\n", state::ActionName(score.worst), score.worst_step, score.worst_reason);
  if (score.wrong_restart) absl::StrAppendFormat(&text, "  wrong  %s\n", score.wrong_restart_text);
  if (!text.empty()) std::cout << score.file << "\n" << text;
}

void PrintTotals(const std::vector<LogScore>& scores) {
  std::cout << "\nAll logs together. Late counts as missed; false: above info, per 10,000 points.\n";
  absl::PrintF("%-38s %9s %21s %9s %14s %7s %8s\n", "", "spikes", "divergence, NaN, 0", "gradient", "delay, steps", "false", "per 10k");
  const auto print = [](const std::string& name, const Totals& t) {
    absl::PrintF("%-38s %9s %21s %9s %14s %7u %8.2f\n", name, Part(t.spikes_found, t.spikes), Part(t.damages_found, t.damages), Part(t.gradients_found, t.gradients),
                 Delays(t.delays), t.false_detections, t.FalsePer10k());
  };
  print("lossgauge", Total(scores));
  const auto rules = MakePublicRules();
  for (std::size_t i = 0; i < rules.size(); ++i) print(rules[i]->name(), TotalOfRule(scores, i));
}

int Run(const std::vector<std::string>& arguments) {
  std::string directory, policy;
  bool details = false;
  for (const std::string& argument : arguments) {
    if (argument == "--details") {
      details = true;
    } else if (argument.rfind("--policy=", 0) == 0) {
      policy = argument.substr(9);
    } else if (directory.empty() && argument[0] != '-') {
      directory = argument;
    } else {
      directory.clear();
      break;
    }
  }
  if (directory.empty()) {
    std::cerr << "usage: replay_score DIRECTORY [--policy=FILE] [--details]\n";
    return 2;
  }
  std::ifstream file(directory + "/events.tsv");
  std::stringstream text;
  text << file.rdbuf();
  const auto labels = ParseLabels(text.str());
  if (!file || !labels.ok()) {
    std::cerr << directory << "/events.tsv: " << (file ? labels.status().ToString() : "cannot be read") << "\n";
    return 2;
  }
  detect::PolicySet policies = detect::DefaultPolicies();
  if (!policy.empty()) {
    auto loaded = detect::LoadPolicy(policy);
    if (!loaded.ok()) {
      std::cerr << loaded.status().ToString() << "\n";
      return 2;
    }
    policies = *loaded;
  }
  std::vector<LogScore> scores;
  bool readable = true;
  absl::PrintF("%-44s %-16s %7s %7s %7s %7s %-14s %6s  %-8s %-12s\n", "log", "format", "points", "spikes", "damage", "grad", "delay, steps", "false", "worst",
               "right");
  for (const auto& [name, labelled] : *labels) {
    auto score = ScoreLog(directory + "/logs/" + name, labelled, policies);
    if (!score.ok()) {
      std::cout << name << ": " << score.status().ToString() << "\n";
      readable = false;
      continue;
    }
    PrintRow(*score);
    scores.push_back(*std::move(score));
  }
  PrintTotals(scores);
  const Totals totals = Total(scores);
  absl::PrintF("\nverdicts: %u of %u logs right, %u with a wrong RESTART or HALT\n", totals.verdicts_right, totals.verdicts, totals.wrong_restarts);
  if (details) {
    std::cout << "\n";
    for (const LogScore& score : scores) PrintDetails(score);
  }
  const bool met = readable && totals.damages_found == totals.damages && totals.spikes_found * 100 >= totals.spikes * 95 &&
                   totals.verdicts_right * 100 >= totals.verdicts * 95 && totals.wrong_restarts == 0 && totals.FalsePer10k() <= 1;
  std::cout << (met ? "\nevery target is met\n" : "\nnot every target is met\n");
  return met ? 0 : 1;
}

}  // namespace
}  // namespace lossgauge::replay

int main(int argc, char** argv) { return lossgauge::replay::Run({argv + 1, argv + argc}); }
