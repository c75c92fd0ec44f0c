// Four streams, each with a small loss launch a step, one publish a step, 100000 steps: every record's counters are those of its four launches, and the
// totals are exact at the end.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <lossgauge/lossgauge.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/host/fingerprint.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "proto/lossgauge/ring/ring_reader.h"

namespace lossgauge {
namespace {

#define ASSERT_CUDA(x) ASSERT_EQ((x), cudaSuccess) << cudaGetErrorString(cudaGetLastError())
#define ASSERT_LG(x) ASSERT_EQ((x), LG_OK) << lg_last_error()

constexpr int kStreams = 4, kData = 5, kVocab = 1000, kMostRows = 24;
constexpr char kDirectory[] = "/dev/shm/lossgauge-streams-test";
constexpr int kPeriod = 20;  // steps after which the choice of data repeats

int RowsOf(int data) { return 8 + 4 * data; }
int DataOf(int stream, std::int64_t step) { return static_cast<int>((step * (stream + 1) + stream) % kData); }

// What a launch adds, or several.
struct Sums {
  std::uint64_t micro_batches = 0, tokens = 0, unmasked_tokens = 0, correct_tokens = 0, mask_fingerprint = 0, target_fingerprint = 0;
  lg_fixed128 nll{}, objective{}, log_z{}, squares{}, mass{};

  static Sums Of(const lg_step_record& r) {
    return {r.micro_batches, r.tokens, r.unmasked_tokens, r.correct_tokens, r.mask_fingerprint, r.target_fingerprint,
            r.nll_sum, r.objective_sum, r.log_z_sum, r.logit_grad_sq_sum, r.probability_mass};
  }
  void Add(const Sums& x) {
    micro_batches += x.micro_batches, tokens += x.tokens, unmasked_tokens += x.unmasked_tokens, correct_tokens += x.correct_tokens;
    mask_fingerprint += x.mask_fingerprint, target_fingerprint += x.target_fingerprint;
    nll = lg_fixed128_add(nll, x.nll), objective = lg_fixed128_add(objective, x.objective), log_z = lg_fixed128_add(log_z, x.log_z);
    squares = lg_fixed128_add(squares, x.squares), mass = lg_fixed128_add(mass, x.mass);
  }
  bool operator==(const Sums& x) const {
    const auto same = [](const lg_fixed128& a, const lg_fixed128& b) { return lg_fixed128_compare(a, b) == 0; };
    return micro_batches == x.micro_batches && tokens == x.tokens && unmasked_tokens == x.unmasked_tokens && correct_tokens == x.correct_tokens &&
           mask_fingerprint == x.mask_fingerprint && target_fingerprint == x.target_fingerprint && same(nll, x.nll) && same(objective, x.objective) &&
           same(log_z, x.log_z) && same(squares, x.squares) && same(mass, x.mass);
  }
};

class Streams : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
    lg_gauge_options options;
    lg_gauge_options_init(&options);
    options.run = "streams_test";
    options.attempt = "1";
    options.world_size = 1;
    options.rank = 0;
    options.vocab_size = kVocab;
    options.ring_dir = kDirectory;
    ASSERT_LG(lg_gauge_open(&options, &gauge_));
    lg_gauge_state state{};
    state.struct_size = sizeof state;
    ASSERT_LG(lg_gauge_get_state(gauge_, &state));
    const int fd = ::open(state.steps_path, O_RDONLY);
    struct stat status;
    ASSERT_EQ(::fstat(fd, &status), 0);
    bytes_ = static_cast<std::size_t>(status.st_size);
    ring_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    ASSERT_NE(ring_, MAP_FAILED);
    lg_ring_identity identity;
    ASSERT_EQ(ring::ReadHeader(ring_, bytes_, &identity), ring::HeaderState::kValid);
    reader_ = std::make_unique<ring::RingReader<lg_step_record>>(ring_, identity);
    for (int i = 0; i < kStreams; ++i) {
      ASSERT_CUDA(cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking));
      ASSERT_CUDA(cudaMalloc(&grad_[i], kMostRows * kVocab * 2));
      ASSERT_CUDA(cudaMalloc(&losses_[i], kMostRows * 4));
    }
    ASSERT_CUDA(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming));
    for (int d = 0; d < kData; ++d) MakeData(d);
  }
  void TearDown() override {
    if (gauge_ == nullptr) return;
    EXPECT_EQ(lg_gauge_close(gauge_, nullptr), LG_OK);
    ::munmap(ring_, bytes_);
    std::filesystem::remove_all(kDirectory);
    for (int i = 0; i < kStreams; ++i) cudaStreamDestroy(streams_[i]), cudaFree(grad_[i]), cudaFree(losses_[i]);
    for (int d = 0; d < kData; ++d) cudaFree(logits_[d]), cudaFree(targets_[d]);
  }

  void MakeData(int d) {
    const int rows = RowsOf(d);
    std::vector<__nv_bfloat16> logits(static_cast<std::size_t>(rows) * kVocab);
    std::uint64_t state = 77 + static_cast<std::uint64_t>(d);
    for (auto& z : logits) z = __float2bfloat16(static_cast<float>(lg_ring_mix(++state) >> 40) * (12.f / 16777216.f) - 6.f);
    host_targets_[d].resize(static_cast<std::size_t>(rows));
    nll_[d] = 0;
    for (int row = 0; row < rows; ++row) {
      const int target = row % 5 == 3 ? -100 : static_cast<int>(lg_ring_mix(++state) % kVocab);
      host_targets_[d][static_cast<std::size_t>(row)] = target;
      if (target < 0) continue;
      double sum = 0;
      for (int i = 0; i < kVocab; ++i) sum += std::exp(static_cast<double>(__bfloat162float(logits[static_cast<std::size_t>(row * kVocab + i)])));
      nll_[d] += std::log(sum) - static_cast<double>(__bfloat162float(logits[static_cast<std::size_t>(row * kVocab + target)]));
    }
    ASSERT_CUDA(cudaMalloc(&logits_[d], logits.size() * 2));
    ASSERT_CUDA(cudaMalloc(&targets_[d], static_cast<std::size_t>(rows) * 4));
    ASSERT_CUDA(cudaMemcpy(logits_[d], logits.data(), logits.size() * 2, cudaMemcpyHostToDevice));
    ASSERT_CUDA(cudaMemcpy(targets_[d], host_targets_[d].data(), static_cast<std::size_t>(rows) * 4, cudaMemcpyHostToDevice));
  }

  void Launch(int stream, int data) {
    lg_cross_entropy_args args;
    lg_cross_entropy_args_init(&args);
    args.logits = logits_[data];
    args.logits_dtype = LG_BF16;
    args.rows = RowsOf(data);
    args.columns = kVocab;
    args.targets = targets_[data];
    args.target_dtype = LG_INT32;
    args.denominator = 16;
    args.losses = losses_[stream];
    args.grad_logits = grad_[stream];
    args.position_base = 1000 * stream;
    args.gauge = gauge_;
    args.stream = streams_[stream];
    ASSERT_LG(lg_cross_entropy(&args));
  }
  void EnqueueStep(std::int64_t step) {
    for (int i = 0; i < kStreams; ++i) Launch(i, DataOf(i, step));
    ASSERT_LG(lg_gauge_publish(gauge_, streams_[0]));
  }

  // False if none comes.
  bool NextRecord(lg_step_record* record) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (unsigned looks = 1; looks % 65536 != 0 || std::chrono::steady_clock::now() < deadline; ++looks) {
      const ring::ReadResult result = reader_->Next(record);
      if (result.fate == ring::ReadFate::kRecord) return true;
      if (result.fate != ring::ReadFate::kEmpty && result.fate != ring::ReadFate::kUnsettled) ++lost_;
    }
    return false;
  }

  // Each launch alone in a step of its own: what it adds. Checked against float64 and the hash on the host.
  void LearnLaunches() {
    for (int i = 0; i < kStreams; ++i) {
      for (int d = 0; d < kData; ++d) {
        Launch(i, d);
        ASSERT_LG(lg_gauge_publish(gauge_, streams_[0]));
        ASSERT_CUDA(cudaDeviceSynchronize());
        lg_step_record r;
        ASSERT_TRUE(NextRecord(&r));
        Sums& of = of_[i][d] = Sums::Of(r);
        std::uint64_t unmasked = 0, mask = 0, target = 0;
        for (int row = 0; row < RowsOf(d); ++row) {
          const int t = host_targets_[d][static_cast<std::size_t>(row)];
          if (t < 0) continue;
          ++unmasked, mask += lg_position_hash(1000 * i + row, t), target += lg_target_hash(t);
        }
        ASSERT_EQ(of.micro_batches, 1u);
        ASSERT_EQ(of.tokens, static_cast<std::uint64_t>(RowsOf(d)));
        ASSERT_EQ(of.unmasked_tokens, unmasked);
        ASSERT_EQ(of.mask_fingerprint, mask);
        ASSERT_EQ(of.target_fingerprint, target);
        ASSERT_NEAR(lg_fixed128_to_double(of.nll), nll_[d], 1e-6 * nll_[d]);
        ASSERT_NEAR(lg_fixed128_to_double(of.mass), static_cast<double>(unmasked), 1e-4);
        total_steps_ += 1, total_.Add(of);
      }
    }
    for (int s = 0; s < kPeriod; ++s) {
      expected_[s] = {};
      for (int i = 0; i < kStreams; ++i) expected_[s].Add(of_[i][DataOf(i, s)]);
    }
  }

  // Reads and judges `steps` records, beside the launches.
  void ReadSteps(std::int64_t steps) {
    for (std::int64_t step = 0; step < steps; ++step) {
      lg_step_record r;
      if (!NextRecord(&r)) break;
      const Sums& expected = expected_[step % kPeriod];
      total_steps_ += 1, total_.Add(expected);
      const bool totals = r.total_steps == total_steps_ && r.total_tokens == total_.tokens && r.total_unmasked_tokens == total_.unmasked_tokens &&
                          r.total_correct_tokens == total_.correct_tokens && lg_fixed128_compare(r.total_nll_sum, total_.nll) == 0;
      if (!(Sums::Of(r) == expected) || !totals || r.finite_tokens != r.unmasked_tokens) {
        if (wrong_++ == 0) first_wrong_ = step;
      }
      read_.store(step + 1, std::memory_order_release);
    }
    last_step_ = total_steps_;
    read_.store(INT64_MAX / 2, std::memory_order_release);  // whatever came of it, nobody waits on
  }
  // So far ahead of the reader that the ring would be lapped: the test waits, the library does not.
  void WaitForReader(std::int64_t enqueued) {
    while (enqueued - read_.load(std::memory_order_acquire) > static_cast<std::int64_t>(LG_STEP_SLOT_COUNT) * 3 / 4) std::this_thread::yield();
  }

  lg_gauge* gauge_ = nullptr;
  void* ring_ = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<ring::RingReader<lg_step_record>> reader_;
  cudaStream_t streams_[kStreams]{};
  cudaEvent_t fork_ = nullptr;
  void *grad_[kStreams]{}, *logits_[kData]{}, *targets_[kData]{};
  float* losses_[kStreams]{};
  std::vector<int> host_targets_[kData];
  double nll_[kData]{};
  Sums of_[kStreams][kData], expected_[kPeriod], total_;
  std::uint64_t total_steps_ = 0, last_step_ = 0, wrong_ = 0, lost_ = 0;
  std::int64_t first_wrong_ = -1;
  std::atomic<std::int64_t> read_{0};
};

TEST_F(Streams, TotalsOfFourStreamsAreExactOver100000StepsOfGraphs) {
  ASSERT_NO_FATAL_FAILURE(LearnLaunches());
  constexpr int kStepsOfAGraph = 100, kReplays = 1000;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  ASSERT_CUDA(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal));
  ASSERT_CUDA(cudaEventRecord(fork_, streams_[0]));
  for (int i = 1; i < kStreams; ++i) ASSERT_CUDA(cudaStreamWaitEvent(streams_[i], fork_, 0));
  for (int step = 0; step < kStepsOfAGraph; ++step) ASSERT_NO_FATAL_FAILURE(EnqueueStep(step));
  ASSERT_CUDA(cudaStreamEndCapture(streams_[0], &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  std::thread reading([&] { ReadSteps(std::int64_t{kReplays} * kStepsOfAGraph); });
  for (int i = 0; i < kReplays; ++i) {
    WaitForReader(std::int64_t{i + 1} * kStepsOfAGraph);
    EXPECT_EQ(cudaGraphLaunch(executable, streams_[0]), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  reading.join();
  EXPECT_EQ(wrong_, 0u) << "first at step " << first_wrong_;
  EXPECT_EQ(lost_, 0u);
  EXPECT_EQ(last_step_, std::uint64_t{kStreams * kData} + kReplays * kStepsOfAGraph);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_F(Streams, TotalsOfFourStreamsAreExactInDirectCalls) {
  ASSERT_NO_FATAL_FAILURE(LearnLaunches());
  constexpr int kSteps = 5000;
  std::thread reading([&] { ReadSteps(kSteps); });
  for (int step = 0; step < kSteps && !HasFatalFailure(); ++step) {
    WaitForReader(step + 1);
    EnqueueStep(step);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  reading.join();
  EXPECT_EQ(wrong_, 0u) << "first at step " << first_wrong_;
  EXPECT_EQ(lost_, 0u);
  EXPECT_EQ(last_step_, std::uint64_t{kStreams * kData} + kSteps);
}

}  // namespace
}  // namespace lossgauge
