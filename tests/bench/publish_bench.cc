// What a step pays for being seen: publish on the host (fold, record, checksum, ring), the ring alone, and the calls around it.
//   publish_bench [--benchmark_filter=...]
#include <benchmark/benchmark.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/include/lossgauge/lossgauge.h"
#include "proto/lossgauge/ring/ring_reader.h"
#include "proto/lossgauge/ring/ring_writer.h"

namespace {

// A gauge in /dev/shm, where jobs have theirs.
class OpenGauge {
 public:
  OpenGauge() {
    char pattern[] = "/dev/shm/lossgauge-bench-XXXXXX";
    directory_ = ::mkdtemp(pattern);
    lg_gauge_options options;
    lg_gauge_options_init(&options);
    options.run = "bench";
    options.world_size = 1;
    options.rank = 0;
    options.ring_dir = directory_.c_str();
    if (lg_gauge_open(&options, &gauge_) != LG_OK) std::fprintf(stderr, "publish_bench: %s\n", lg_last_error());
  }
  ~OpenGauge() {
    lg_gauge_close(gauge_, nullptr);
    std::filesystem::remove_all(directory_);
  }
  lg_gauge* get() { return gauge_; }

 private:
  std::string directory_;
  lg_gauge* gauge_ = nullptr;
};

lg_observation OneMicroBatch() {
  lg_observation observation;
  lg_observation_init(&observation);
  observation.nll_sum = 1234.5;
  observation.tokens = 2048;
  observation.unmasked_tokens = 2000;
  observation.denominator = 2000;
  return observation;
}

// A whole step of a job: one launch's counters, grad norm, learning rate, publish.
void Step(benchmark::State& state) {
  OpenGauge gauge;
  const lg_observation observation = OneMicroBatch();
  for (auto _ : state) {
    lg_gauge_observe(gauge.get(), &observation);
    lg_gauge_set_scalar(gauge.get(), LG_GRAD_NORM, 0.5);
    lg_gauge_set_scalar(gauge.get(), LG_LEARNING_RATE, 1e-4);
    lg_gauge_publish(gauge.get(), nullptr);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(Step);

void Publish(benchmark::State& state) {
  OpenGauge gauge;
  for (auto _ : state) lg_gauge_publish(gauge.get(), nullptr);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(Publish);

void PublishWithTelemetryOff(benchmark::State& state) {
  lg_gauge_options options;
  lg_gauge_options_init(&options);
  options.run = "bench";
  options.world_size = 1;
  options.ring_dir = "/proc/nowhere";
  lg_gauge* gauge = nullptr;
  if (lg_gauge_open(&options, &gauge) == LG_OK) state.SkipWithError("telemetry came up");
  for (auto _ : state) lg_gauge_publish(gauge, nullptr);
  lg_gauge_close(gauge, nullptr);
}
BENCHMARK(PublishWithTelemetryOff);

void Observe(benchmark::State& state) {
  OpenGauge gauge;
  const lg_observation observation = OneMicroBatch();
  for (auto _ : state) lg_gauge_observe(gauge.get(), &observation);
}
BENCHMARK(Observe);

// The ring in plain memory: what copy, validation and order cost without tmpfs and without the gauge.
struct PlainRing {
  PlainRing() : words(lossgauge::ring::RingFileBytes(LG_STEP_SLOT_BYTES, LG_STEP_SLOT_COUNT) / 8) {
    lossgauge::ring::SetFormat(&identity, LG_RING_KIND_STEPS);
    writer = std::make_unique<lossgauge::ring::RingWriter<>>(words.data(), identity);
  }
  lg_ring_identity identity{};
  std::vector<std::uint64_t> words;
  std::unique_ptr<lossgauge::ring::RingWriter<>> writer;
};

void RingWrite(benchmark::State& state) {
  PlainRing ring;
  const lg_step_record record{};
  for (auto _ : state) benchmark::DoNotOptimize(ring.writer->Publish(record));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(RingWrite);

void RingReadCopyAndValidate(benchmark::State& state) {
  PlainRing ring;
  for (std::uint32_t i = 0; i < LG_STEP_SLOT_COUNT; ++i) ring.writer->Publish(lg_step_record{});
  lg_step_record record;
  std::int64_t records = 0;
  for (auto _ : state) {
    lossgauge::ring::RingReader<lg_step_record> reader(ring.words.data(), ring.identity);
    while (reader.Next(&record).fate == lossgauge::ring::ReadFate::kRecord) {
      benchmark::DoNotOptimize(lossgauge::ring::ValidateRecord(record));
      ++records;
    }
  }
  state.SetItemsProcessed(records);
}
BENCHMARK(RingReadCopyAndValidate);

}  // namespace

BENCHMARK_MAIN();
