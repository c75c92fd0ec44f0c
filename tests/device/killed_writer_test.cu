// A training process whose GPU publishes as fast as it can is killed at random moments and comes back as a new attempt. The reader, a process that never
// touches CUDA, finds each of its segments, reads only whole records with exact totals, loses nothing uncounted, and never waits for the dead.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <lossgauge/lossgauge.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/ingest/producer_lock.h"
#include "tests/kernels/host/gauge_fixture.h"

namespace lossgauge {
namespace {

constexpr int kKills = 20, kRows = 4, kColumns = 1000;

#define JOB(x)            \
  do {                    \
    if (!(x)) ::_exit(1); \
  } while (0)

// Never returns. Graphs of 100 steps, each of one loss call and one publish on the same data.
[[noreturn]] void Train(const std::string& directory, int attempt) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) ::_exit(77);
  lg_gauge* gauge = nullptr;
  const std::string name = std::to_string(attempt);
  const lg_gauge_options options = Options(directory, "killed", name.c_str());
  JOB(lg_gauge_open(&options, &gauge) == LG_OK);
  std::vector<float> logits(kRows * kColumns);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 37 % 101) * 0.1f;
  const std::vector<std::int64_t> targets = {1, 20, 300, 999};
  cudaStream_t stream;
  void *z, *t, *grad;
  JOB(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  JOB(cudaMalloc(&z, logits.size() * 4) == cudaSuccess && cudaMalloc(&grad, logits.size() * 4) == cudaSuccess && cudaMalloc(&t, 64) == cudaSuccess);
  JOB(cudaMemcpy(z, logits.data(), logits.size() * 4, cudaMemcpyHostToDevice) == cudaSuccess);
  JOB(cudaMemcpy(t, targets.data(), targets.size() * 8, cudaMemcpyHostToDevice) == cudaSuccess);
  lg_cross_entropy_args args;
  lg_cross_entropy_args_init(&args);
  args.logits = z;
  args.rows = kRows;
  args.columns = kColumns;
  args.targets = t;
  args.grad_logits = grad;
  args.denominator = kRows;
  args.gauge = gauge;
  args.stream = stream;
  const auto step = [&] { return lg_cross_entropy(&args) == LG_OK && lg_gauge_publish(gauge, stream) == LG_OK; };
  JOB(step());
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  JOB(cudaStreamSynchronize(stream) == cudaSuccess && cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  for (int i = 0; i < 100; ++i) JOB(step());
  JOB(cudaStreamEndCapture(stream, &graph) == cudaSuccess && cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  for (int i = 0;; ++i) {
    JOB(cudaGraphLaunch(executable, stream) == cudaSuccess);
    if (i % 8 == 7) JOB(cudaStreamSynchronize(stream) == cudaSuccess);
  }
}

// A segment's step ring, mapped read-only for as long as this lives, whoever unlinks it.
class Mapped {
 public:
  // False: no such file, or not ready yet.
  bool Open(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    struct stat status;
    bytes_ = ::fstat(fd, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
    memory_ = bytes_ > 0 ? ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    ::close(fd);
    if (memory_ == MAP_FAILED) return false;
    return ring::ReadHeader(memory_, bytes_, &identity_) == ring::HeaderState::kValid;
  }
  ~Mapped() {
    if (memory_ != MAP_FAILED) ::munmap(memory_, bytes_);
  }
  const void* memory() const { return memory_; }
  const lg_ring_identity& identity() const { return identity_; }

 private:
  void* memory_ = MAP_FAILED;
  std::size_t bytes_ = 0;
  lg_ring_identity identity_{};
};

struct Tally {
  std::uint64_t delivered = 0, lapped = 0, corrupt = 0, wrong = 0;
  bool damaged = false;
  std::uint64_t steps = 0;
  lg_fixed128 total{};
};

// One look; false when there was nothing new.
bool Look(ring::RingReader<lg_step_record>* reader, Tally* tally, lg_fixed128* nll) {
  lg_step_record r;
  const ring::ReadResult result = reader->Next(&r);
  if (result.fate == ring::ReadFate::kEmpty) return false;
  if (result.fate == ring::ReadFate::kLapped) tally->lapped += result.lost;
  if (result.fate == ring::ReadFate::kCorrupt) tally->corrupt += result.lost;
  if (result.fate == ring::ReadFate::kDamaged) {
    tally->damaged = true;
    return false;
  }
  if (result.fate != ring::ReadFate::kRecord) return true;
  ++tally->delivered;
  if (nll->lo == 0 && nll->hi == 0) *nll = r.nll_sum;  // of all steps of all attempts
  for (; tally->steps < result.publication; ++tally->steps) tally->total = lg_fixed128_add(tally->total, *nll);
  const bool right = r.step == static_cast<std::int64_t>(result.publication - 1) && r.micro_batches == 1 && r.tokens == kRows && r.finite_tokens == kRows &&
                     lg_fixed128_compare(r.nll_sum, *nll) == 0 && r.total_steps == result.publication && r.total_tokens == kRows * result.publication &&
                     lg_fixed128_compare(r.total_nll_sum, tally->total) == 0;
  if (!right) ++tally->wrong;
  return true;
}

TEST(KilledWriter, LeavesOnlyWholeRecordsAndComesBackAsANewAttempt) {
  ScratchDirectory directory;
  std::mt19937 random(20);
  std::set<std::string> known;
  lg_fixed128 nll{};
  Tally all;
  int torn = 0;
  for (int attempt = 1; attempt <= kKills; ++attempt) {
    SCOPED_TRACE("attempt " + std::to_string(attempt));
    const pid_t child = ::fork();
    if (child == 0) Train(directory.path(), attempt);
    const auto ended = [&] {
      int status = 0;
      if (::waitpid(child, &status, WNOHANG) == 0) return -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    };
    std::string path;
    Mapped ring;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (path.empty()) {
      if (const int code = ended(); code == 77) GTEST_SKIP() << "no CUDA device";
      else ASSERT_EQ(code, -1) << "the writer failed";
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "no ring";
      for (const std::string& found : StepRings(directory.path())) {
        Mapped candidate;
        if (known.count(found) == 0 && candidate.Open(found)) path = found;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    known.insert(path);
    ASSERT_TRUE(ring.Open(path));
    EXPECT_STREQ(ring.identity().attempt, std::to_string(attempt).c_str());
    ingest::ProducerLock lock(path.substr(0, path.size() - 6) + ".lock");
    EXPECT_EQ(lock.Probe(), ingest::LockState::kHeld);

    ring::RingReader<lg_step_record> reader(ring.memory(), ring.identity());
    Tally tally;
    while (tally.delivered < 200 && std::chrono::steady_clock::now() < deadline) Look(&reader, &tally, &nll);
    ASSERT_GE(tally.delivered, 200u);
    const auto kill_at = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 30000);
    while (std::chrono::steady_clock::now() < kill_at) Look(&reader, &tally, &nll);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    while (Look(&reader, &tally, &nll)) {
    }
    // What is left is at most one record that was never finished.
    EXPECT_EQ(lock.Probe(), ingest::LockState::kFree);
    torn += reader.HasTornRecord();
    EXPECT_FALSE(tally.damaged);
    EXPECT_EQ(tally.wrong, 0u);
    EXPECT_EQ(tally.delivered + tally.lapped + tally.corrupt, reader.next() - 1);
    EXPECT_EQ(reader.next() - 1, reader.published_untrusted()) << "whatever the cursor missed";
    EXPECT_EQ(tally.steps, reader.next() - 1) << "the last record that was whole was not delivered";
    all.delivered += tally.delivered, all.lapped += tally.lapped, all.corrupt += tally.corrupt, all.wrong += tally.wrong;
  }
  std::printf("%d kills: %llu records delivered, %llu lapped, %llu failed their checksum, %llu wrong; %d rings end in an unfinished record\n", kKills,
              static_cast<unsigned long long>(all.delivered), static_cast<unsigned long long>(all.lapped), static_cast<unsigned long long>(all.corrupt),
              static_cast<unsigned long long>(all.wrong), torn);
}

}  // namespace
}  // namespace lossgauge
