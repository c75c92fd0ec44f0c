#include "server/replay/field_names.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "absl/strings/ascii.h"

namespace lossgauge::replay {
namespace {

using Table = std::unordered_map<std::string_view, FieldName>;

// Best first within a meaning.
constexpr std::string_view kSteps[] = {"global_step",   "train_global_step", "trainer_global_step", "step",       "steps",     "current_steps",
                                       "current_step",  "train_step",        "train_steps",         "iteration",  "iterations", "iter",
                                       "iters",         "num_updates",       "train_num_updates",   "update",     "updates",   "num_steps",
                                       "optimizer_step", "it",               "s",                   "batch",      "batches",   "batch_idx",
                                       "minibatch",     "_step"};
constexpr std::string_view kLosses[] = {"loss",          "train_loss",     "lm_loss",      "training_loss",     "trl",
                                        "loss_nats",     "loss_train",     "train_lm_loss", "train_ce_loss",    "ce_loss",
                                        "cross_entropy", "cross_entropy_loss", "train_cross_entropy", "train_cross_entropy_loss", "train_crossentropyloss",
                                        "crossentropyloss", "nll_loss",    "train_nll_loss", "train_inner_loss", "train_loss_step",
                                        "loss_step",     "total_loss",     "train_total_loss", "lm_loss_train",  "avg_loss", "train_avg_loss", "mlm_loss"};
constexpr std::string_view kGradNorms[] = {"grad_norm", "train_grad_norm", "gradient_norm", "global_grad_norm", "gnorm", "grad_norm_total", "total_grad_norm",
                                           "optim_total_grad_norm", "train_gnorm", "train_gradient_norm", "gradnorm", "norm", "gn"};
constexpr std::string_view kRates[] = {"lr", "learning_rate", "train_lr", "train_learning_rate", "current_lr", "learningrate"};
constexpr std::string_view kStepTimes[] = {"step_seconds", "elapsed_time_per_iteration", "dt", "step_time", "iter_time", "iteration_time",
                                           "time_per_step", "seconds_per_step", "train_step_time", "train_iteration_time"};
constexpr std::string_view kEvaluations[] = {"val_loss",  "validation_loss", "valid_loss",      "eval_loss",       "lm_loss_value", "tel",
                                             "loss_val",  "dev_loss",        "evaluation_loss", "lm_loss_validation", "test_loss"};

template <std::size_t N>
void AddAll(const std::string_view (&names)[N], Meaning meaning, Table* table) {
  int rank = 0;
  for (const std::string_view name : names) table->emplace(name, FieldName{meaning, rank++});
}

const Table& Known() {
  static const Table& table = *[] {
    auto* t = new Table;
    AddAll(kSteps, Meaning::kStep, t);
    AddAll(kLosses, Meaning::kTrainingLoss, t);
    AddAll(kGradNorms, Meaning::kGradNorm, t);
    AddAll(kRates, Meaning::kLearningRate, t);
    AddAll(kStepTimes, Meaning::kStepSeconds, t);
    AddAll(kEvaluations, Meaning::kEvaluationLoss, t);
    const std::pair<std::string_view, Meaning> single[] = {
        {"epoch", Meaning::kEpoch},
        {"tokens", Meaning::kTokens},
        {"num_tokens_per_step", Meaning::kTokens},
        {"unmasked_tokens", Meaning::kUnmaskedTokens},
        {"num_label_tokens", Meaning::kUnmaskedTokens},
        {"finite_tokens", Meaning::kFiniteTokens},
        {"nonfinite_rows", Meaning::kNonfiniteRows},
        {"nonfinite_grad_rows", Meaning::kNonfiniteGradRows},
        {"max_abs_logit", Meaning::kMaxAbsLogit},
        {"log_z_mean_nats", Meaning::kLogZMean},
        {"log_z_max_nats", Meaning::kLogZMax},
        {"log_z_max", Meaning::kLogZMax},
        {"reported_loss_nats", Meaning::kReportedLoss},
        {"reported_loss", Meaning::kReportedLoss},
        {"objective_nats", Meaning::kObjective},
        {"z_loss_nats", Meaning::kZLoss},
        {"target_fingerprint", Meaning::kTargetFingerprint},
        {"mask_fingerprint", Meaning::kMaskFingerprint},
        {"number_of_skipped_iterations", Meaning::kSkippedIterations},
        {"number_of_nan_iterations", Meaning::kNanIterations},
    };
    for (const auto& [name, meaning] : single) t->emplace(name, FieldName{meaning, 0});
    return t;
  }();
  return table;
}

std::vector<std::string_view> Words(std::string_view name) {
  std::vector<std::string_view> words;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find('_'), name.size());
    if (end > 0) words.push_back(name.substr(0, end));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return words;
}

template <std::size_t N>
bool HasAny(const std::vector<std::string_view>& words, const std::array<std::string_view, N>& wanted) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) { return std::find(wanted.begin(), wanted.end(), word) != wanted.end(); });
}

// Names with "loss" in them that are no loss of the model: settings, counts, copies over another axis, spreads.
constexpr std::array<std::string_view, 22> kNoLoss = {"scale",  "scaler", "scaling", "coef",  "coeff",  "coefficient", "weight", "window", "samples", "ppl", "perplexity",
                                                      "accuracy", "acc",   "mask",    "fusion", "split", "max",         "min",    "std",    "tokens",  "spiky", "ratio"};
constexpr std::array<std::string_view, 18> kSide = {"aux",  "auxiliary", "z",     "balance", "balancing", "mtp",    "kl",     "nsp",  "cri",
                                                    "critic", "value",   "entropy", "router", "moe",     "reward", "unsuper", "indexer", "sop"};
constexpr std::array<std::string_view, 11> kNoNorm = {"max", "param", "params", "clip", "clipping", "weight", "num", "samples", "logit", "hidden", "head"};

FieldName Guess(std::string_view name) {
  const std::vector<std::string_view> words = Words(name);
  const auto has = [&](std::string_view word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  const bool is_loss = std::any_of(words.begin(), words.end(), [](std::string_view word) { return word.ends_with("loss"); });
  if (is_loss && !HasAny(words, kNoLoss)) {
    if (std::any_of(words.begin(), words.end(), IsEvaluationWord)) return {Meaning::kEvaluationLoss, has("test") ? 200 : 100};
    const bool is_side = HasAny(words, kSide) && name.find("cross_entropy") == std::string_view::npos;
    return {Meaning::kTrainingLoss, is_side ? kSideLoss : kSomeLoss};
  }
  if (has("grad") && has("norm") && !HasAny(words, kNoNorm)) return {Meaning::kGradNorm, 100};
  if (name.find("learning_rate") != std::string_view::npos && !HasAny(words, kNoLoss)) return {Meaning::kLearningRate, 100};
  if (words.size() > 1 && words[0] == "lr" && words[1] != "mul") return {Meaning::kLearningRate, 101};
  return {};
}

}  // namespace

bool IsEvaluationWord(std::string_view word) {
  constexpr std::string_view kWords[] = {"val", "valid", "validation", "eval", "evaluation", "evaluate", "test", "dev"};
  return std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords);
}

bool IsCount(Meaning meaning) {
  switch (meaning) {
    case Meaning::kStep:
    case Meaning::kTokens:
    case Meaning::kUnmaskedTokens:
    case Meaning::kFiniteTokens:
    case Meaning::kNonfiniteRows:
    case Meaning::kNonfiniteGradRows:
    case Meaning::kTargetFingerprint:
    case Meaning::kMaskFingerprint:
    case Meaning::kSkippedIterations:
    case Meaning::kNanIterations: return true;
    default: return false;
  }
}

std::string NormalName(std::string_view name) {
  std::string normal;
  normal.reserve(name.size());
  bool gap = false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    if (c == '(' || c == '[') break;  // a unit, or a remark
    if (absl::ascii_isalnum(c) || c >= 0x80) {
      const bool is_hump = absl::ascii_isupper(c) && i > 0 && absl::ascii_islower(static_cast<unsigned char>(name[i - 1]));
      if ((gap || is_hump) && !normal.empty()) normal.push_back('_');
      gap = false;
      normal.push_back(static_cast<char>(absl::ascii_tolower(c)));
    } else if (c == '_' && normal.empty() && !gap) {
      normal.push_back('_');
    } else {
      gap = true;
    }
  }
  return normal;
}

FieldName LookUpName(std::string_view name) {
  const Table& known = Known();
  if (const auto found = known.find(name); found != known.end()) return found->second;
  for (const std::string_view unit : {"_ms", "_s", "_seconds", "_sec"}) {
    if (!name.ends_with(unit)) continue;
    const auto found = known.find(name.substr(0, name.size() - unit.size()));
    if (found != known.end() && found->second.meaning == Meaning::kStepSeconds) return found->second;
  }
  return Guess(name);
}

std::string_view UnitInName(std::string_view name) {
  if (name.find("(ms)") != std::string_view::npos || name.ends_with("_ms")) return "ms";
  return "";
}

}  // namespace lossgauge::replay
