// observe_only: a job with a loss of its own that lets lossgauge see it. What needs no logits works: loss, perplexity, spikes, divergence,
// stalls, accounting, verdict. Here the "model" is one coin whose bias is learnt from 512 tosses a step.
//
//   observe_only [RING_DIRECTORY]
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>

#include "lossgauge/gauge.hpp"

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
    std::fprintf(stderr, "usage: observe_only [RING_DIRECTORY]\n");
    return 2;
  }
  lossgauge::GaugeOptions options;
  options.run = "observe_only";
  if (argc > 1) options.ring_dir = argv[1];
  lossgauge::Gauge gauge(options);
  if (!gauge.status().ok()) std::fprintf(stderr, "telemetry is off: %s\n", gauge.status().message().c_str());

  std::mt19937_64 random(1);
  std::bernoulli_distribution coin(0.9);
  constexpr std::int64_t kTosses = 512;
  double logit = 0;
  for (int step = 0; step < 200; ++step) {
    double nll_sum = 0, gradient = 0;
    for (std::int64_t i = 0; i < kTosses; ++i) {
      const double heads = coin(random) ? 1 : 0, p = 1 / (1 + std::exp(-logit));
      nll_sum -= std::log(heads > 0 ? p : 1 - p);
      gradient += (p - heads) / static_cast<double>(kTosses);
    }
    gauge.Observe(nll_sum, kTosses, kTosses, static_cast<double>(kTosses)).IgnoreError();  // the two lines that
    gauge.SetGradNorm(std::fabs(gradient)).IgnoreError();
    gauge.Publish().IgnoreError();  // attach a job
    logit -= 0.5 * gradient;
  }
  std::printf("learnt p = %.3f, published %llu steps\n", 1 / (1 + std::exp(-logit)), static_cast<unsigned long long>(gauge.State().published));
}
