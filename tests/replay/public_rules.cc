#include "tests/replay/public_rules.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace lossgauge::replay {
namespace {

class SixSigma final : public PublicRule {
 public:
  std::string name() const override { return "mean + 6 sigma over 128"; }
  void BeginAttempt() override { values_.clear(); }
  bool Flags(const LogPoint& point) override {
    if (!point.loss) return false;
    bool flags = false;
    if (values_.size() >= 64) {
      double sum = 0, squares = 0;
      for (const double value : values_) sum += value;
      const double mean = sum / static_cast<double>(values_.size());
      for (const double value : values_) squares += (value - mean) * (value - mean);
      flags = *point.loss - mean > 6 * std::sqrt(squares / static_cast<double>(values_.size() - 1));
    }
    values_.push_back(*point.loss);
    if (values_.size() > 128) values_.pop_front();
    return flags;
  }

 private:
  std::deque<double> values_;
};

class TenTimesMaximum final : public PublicRule {
 public:
  std::string name() const override { return "10 x maximum of the first 100"; }
  void BeginAttempt() override { seen_ = 0; }
  bool Flags(const LogPoint& point) override {
    if (!point.loss) return false;
    if (seen_ < 100) {
      largest_ = seen_ == 0 ? *point.loss : std::max(largest_, *point.loss);
      ++seen_;
      return false;
    }
    return *point.loss >= 10 * largest_;
  }

 private:
  int seen_ = 0;
  double largest_ = 0;
};

class TwiceInitial final : public PublicRule {
 public:
  std::string name() const override { return "2 x the first loss"; }
  void BeginAttempt() override { first_.reset(); }
  bool Flags(const LogPoint& point) override {
    if (!point.loss) return false;
    if (!first_) first_ = *point.loss;
    return *point.loss > 2 * *first_;
  }

 private:
  std::optional<double> first_;
};

class GradientEma final : public PublicRule {
 public:
  std::string name() const override { return "z-score of the gradient norm's EMA"; }
  void BeginAttempt() override {
    warmup_.clear();
    ready_ = false;
  }
  bool Flags(const LogPoint& point) override {
    if (!point.grad_norm) return false;
    double norm = *point.grad_norm;
    if (!ready_) {
      warmup_.push_back(norm);
      if (warmup_.size() < 25) return false;
      double sum = 0, squares = 0;
      for (const double value : warmup_) sum += value;
      mean_ = sum / static_cast<double>(warmup_.size());
      for (const double value : warmup_) squares += (value - mean_) * (value - mean_);
      variance_ = squares / static_cast<double>(warmup_.size());
      ready_ = true;
      return false;
    }
    const double deviation = std::sqrt(variance_);
    const double z = (norm - mean_) / (deviation + 1e-6);
    const bool flags = z > 2.5;
    if (flags) norm = mean_ + 2.5 * deviation / (z / 2.5);
    mean_ = 0.97 * mean_ + 0.03 * norm;
    variance_ = 0.97 * variance_ + 0.03 * (norm - mean_) * (norm - mean_);
    return flags;
  }

 private:
  std::vector<double> warmup_;
  bool ready_ = false;
  double mean_ = 0, variance_ = 0;
};

}  // namespace

std::unique_ptr<PublicRule> MakeSixSigmaRule() { return std::make_unique<SixSigma>(); }
std::unique_ptr<PublicRule> MakeTenTimesMaximumRule() { return std::make_unique<TenTimesMaximum>(); }
std::unique_ptr<PublicRule> MakeTwiceInitialRule() { return std::make_unique<TwiceInitial>(); }
std::unique_ptr<PublicRule> MakeGradientEmaRule() { return std::make_unique<GradientEma>(); }

std::vector<std::unique_ptr<PublicRule>> MakePublicRules() {
  std::vector<std::unique_ptr<PublicRule>> rules;
  rules.push_back(MakeSixSigmaRule());
  rules.push_back(MakeTenTimesMaximumRule());
  rules.push_back(MakeTwiceInitialRule());
  rules.push_back(MakeGradientEmaRule());
  return rules;
}

}  // namespace lossgauge::replay
