// A GPU writes a ring and another process reads it with the reader of lossgauged: nothing torn is accepted, every lost record is counted, totals are
// right across gaps, and a record is seen within microseconds. The reading process never touches CUDA.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

#include "tests/device/gpu_writer.cuh"

namespace lossgauge::device_test {
namespace {

constexpr int kRounds = 40, kStepsOfARound = 50;

// Between the two processes. Plain words of shared memory.
struct Shared {
  std::atomic<std::uint64_t> finished{0};  // steps published, once all are
  std::atomic<std::uint64_t> reading{0};
  std::atomic<std::uint64_t> seen{0};
  // Host clock minus the GPU's timer, before each round of steps and after the last: bounds from ping-pong.
  std::int64_t least_ns[kRounds + 1], most_ns[kRounds + 1];
};

class Ring : public testing::Test {
 protected:
  Ring() {
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared;
  }
  ~Ring() override { ::munmap(shared_, sizeof(Shared)); }
  std::string Path() const { return "/dev/shm/lossgauge-ring-test-" + std::to_string(::getpid()); }

  static pid_t Fork(const std::function<void()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      body();
      ::_exit(0);
    }
    return child;
  }
  // 0 while the writer runs; afterwards its exit code plus 1.
  static int Ended(pid_t child) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == 0) return 0;
    return WIFEXITED(status) ? 1 + WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  Shared* shared_;
};

struct Totals {
  std::uint64_t next_step = 0, tokens = 0, unmasked_tokens = 0;
  lg_fixed128 nll{};
  void AdvanceThrough(std::uint64_t step) {
    for (; next_step <= step; ++next_step) {
      const StepValues v = ValuesOf(next_step);
      tokens += v.tokens, unmasked_tokens += v.unmasked_tokens, nll = lg_fixed128_add(nll, v.nll);
    }
  }
};

bool IsRecordOf(const lg_step_record& r, std::uint64_t publication, const Totals& t) {
  const StepValues v = ValuesOf(publication - 1);
  return r.step == static_cast<std::int64_t>(publication - 1) && r.micro_batches == 1 && r.tokens == v.tokens && r.unmasked_tokens == v.unmasked_tokens &&
         r.finite_tokens == v.unmasked_tokens && r.mask_fingerprint == v.fingerprint && lg_fixed128_compare(r.nll_sum, v.nll) == 0 &&
         r.total_steps == publication && r.total_tokens == t.tokens && r.total_unmasked_tokens == t.unmasked_tokens &&
         r.total_finite_tokens == t.unmasked_tokens && lg_fixed128_compare(r.total_nll_sum, t.nll) == 0;
}

struct Outcome {
  std::uint64_t delivered = 0, lapped = 0, corrupt = 0, wrong = 0, unsettled = 0;
  bool damaged = false;
};

struct RingCase {
  std::uint32_t slots;
  int graphs;
  bool pauses;  // of the reader, so that it is lapped
};
class RingSizes : public Ring, public testing::WithParamInterface<RingCase> {};

TEST_P(RingSizes, EveryRecordOfAGpuIsReadWholeOrCountedLost) {
  const RingCase c = GetParam();
  constexpr int kStepsOfAGraph = 1000;
  const std::uint64_t steps = static_cast<std::uint64_t>(c.graphs) * kStepsOfAGraph;
  RingFile file(Path(), c.slots);
  ASSERT_TRUE(file.ok());
  const pid_t child = Fork([&] {
    GpuWriter writer(file);
    const cudaGraphExec_t graph = writer.Capture(kStepsOfAGraph);
    for (int i = 0; i < c.graphs; ++i) {
      WRITER_CUDA(cudaGraphLaunch(graph, writer.stream));
      if (i % 50 == 49) WRITER_CUDA(cudaStreamSynchronize(writer.stream));
    }
    WRITER_CUDA(cudaStreamSynchronize(writer.stream));
    shared_->finished.store(steps, std::memory_order_release);
  });

  ring::RingReader<lg_step_record> reader(file.read_only(), file.identity());
  lg_step_record record;
  Totals totals;
  Outcome o;
  int ended = 0;
  for (std::uint64_t looks = 0; !o.damaged;) {
    const bool finished = shared_->finished.load(std::memory_order_acquire) != 0;  // before the look: what was written by then will be found
    const ring::ReadResult result = reader.Next(&record);
    if (result.fate == ring::ReadFate::kRecord) {
      totals.AdvanceThrough(result.publication - 1);
      ++o.delivered;
      if (!IsRecordOf(record, result.publication, totals)) ++o.wrong;
      if (c.pauses && o.delivered % 1000 == 0) ::usleep(5000);
    } else if (result.fate == ring::ReadFate::kLapped) {
      o.lapped += result.lost;
    } else if (result.fate == ring::ReadFate::kCorrupt) {
      o.corrupt += result.lost;
    } else if (result.fate == ring::ReadFate::kDamaged) {
      o.damaged = true;
    } else if (result.fate == ring::ReadFate::kUnsettled) {
      ++o.unsettled;
    } else if (finished) {
      break;
    } else if (++looks % 4096 == 0 && ended == 0 && (ended = Ended(child)) > 1) {
      break;
    }
  }
  while (ended == 0) ended = Ended(child);
  if (ended == 1 + 77) GTEST_SKIP() << "no CUDA device";
  ASSERT_EQ(ended, 1) << "the writer failed";
  std::printf("ring of %u slots: %llu published, %llu delivered, %llu lapped, %llu failed their checksum, %llu calls left it open\n", c.slots,
              static_cast<unsigned long long>(steps), static_cast<unsigned long long>(o.delivered), static_cast<unsigned long long>(o.lapped),
              static_cast<unsigned long long>(o.corrupt), static_cast<unsigned long long>(o.unsettled));
  EXPECT_FALSE(o.damaged);
  EXPECT_EQ(o.wrong, 0u);
  EXPECT_EQ(reader.published_untrusted(), steps);
  EXPECT_EQ(o.delivered + o.lapped + o.corrupt, steps);
  EXPECT_EQ(totals.next_step, steps) << "the last record was not delivered";
  if (c.pauses) EXPECT_GT(o.lapped, 0u) << "this case is about being lapped";
  if (c.slots == LG_MAX_SLOT_COUNT) EXPECT_EQ(o.delivered, steps);
}

// A ring of one and of four slots is lapped all the time; the last is never lapped unless the reader sleeps for half a second.
INSTANTIATE_TEST_SUITE_P(Sizes, RingSizes,
                         testing::Values(RingCase{1, 100, false}, RingCase{4, 1000, true}, RingCase{LG_STEP_SLOT_COUNT, 200, true},
                                         RingCase{LG_MAX_SLOT_COUNT, 1000, false}),
                         [](const auto& info) { return "Of" + std::to_string(info.param.slots); });

// Waits for each value of *ping and answers with the time at which it saw it.
__global__ void Pong(const unsigned long long* ping, unsigned long long* pong, unsigned long long* at, int count) {
  for (int i = 1; i <= count; ++i) {
    unsigned long long seen = 0;
    for (long long tries = 0; seen < static_cast<unsigned long long>(i); ++tries) {
      if (tries > 20000000) return;  // the host is gone
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(ping) : "memory");
    }
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(now) : "memory");
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(pong), "l"(static_cast<unsigned long long>(i)) : "memory");
  }
}

// Bounds of host clock - GPU timer: the GPU read its timer after the ping was sent and before the pong was seen.
void Calibrate(GpuWriter* writer, unsigned long long* host, unsigned long long* device, std::int64_t* least, std::int64_t* most) {
  constexpr int kPings = 100;
  for (int i = 0; i < 24; ++i) __atomic_store_n(host + i, 0ull, __ATOMIC_RELEASE);
  Pong<<<1, 1, 0, writer->stream>>>(device, device + 8, device + 16, kPings);
  WRITER_CUDA(cudaGetLastError());
  *least = INT64_MIN;
  *most = INT64_MAX;
  for (unsigned long long i = 1; i <= kPings; ++i) {
    const std::int64_t sent = NowNs();
    __atomic_store_n(host, i, __ATOMIC_RELEASE);
    while (__atomic_load_n(host + 8, __ATOMIC_ACQUIRE) != i) {
      if (NowNs() - sent > 2000000000) ::_exit(2);
    }
    const std::int64_t received = NowNs();
    const auto at = static_cast<std::int64_t>(__atomic_load_n(host + 16, __ATOMIC_RELAXED));
    *least = std::max(*least, sent - at);
    *most = std::min(*most, received - at);
  }
  WRITER_CUDA(cudaStreamSynchronize(writer->stream));
}

TEST_F(Ring, AReaderSeesARecordWithinFiveMicrosecondsOfItsMaking) {
  RingFile file(Path(), LG_STEP_SLOT_COUNT);
  ASSERT_TRUE(file.ok());
  const pid_t child = Fork([&] {
    GpuWriter writer(file);
    void *host = nullptr, *device = nullptr;
    WRITER_CUDA(cudaHostAlloc(&host, 4096, cudaHostAllocMapped));
    WRITER_CUDA(cudaHostGetDevicePointer(&device, host, 0));
    while (shared_->reading.load(std::memory_order_acquire) == 0) ::usleep(100);
    for (int round = 0; round <= kRounds; ++round) {
      Calibrate(&writer, static_cast<unsigned long long*>(host), static_cast<unsigned long long*>(device), &shared_->least_ns[round],
                &shared_->most_ns[round]);
      for (int i = 0; i < kStepsOfARound && round < kRounds; ++i) {
        writer.EnqueueStep();
        WRITER_CUDA(cudaStreamSynchronize(writer.stream));
      }
    }
    shared_->finished.store(kRounds * kStepsOfARound, std::memory_order_release);
  });
  ring::RingReader<lg_step_record> reader(file.read_only(), file.identity());
  std::vector<std::int64_t> seen_ns(kRounds * kStepsOfARound), made_ns(seen_ns.size());
  shared_->reading.store(1, std::memory_order_release);
  int ended = 0;
  std::size_t count = 0;
  const std::int64_t begin = NowNs();
  for (std::uint64_t looks = 0; count < seen_ns.size() && NowNs() - begin < 30000000000;) {
    lg_step_record record;
    const ring::ReadResult result = reader.Next(&record);
    if (result.fate == ring::ReadFate::kRecord) {
      seen_ns[count] = NowNs();
      made_ns[count++] = record.wall_ns;  // the GPU's timer as the kernel builds the record: before its first store
    } else if (++looks % 65536 == 0 && ended == 0 && (ended = Ended(child)) != 0) {
      break;
    }
  }
  while (ended == 0) ended = Ended(child);
  if (ended == 1 + 77) GTEST_SKIP() << "no CUDA device";
  ASSERT_EQ(ended, 1) << "the writer failed";
  ASSERT_EQ(count, seen_ns.size());
  std::vector<double> worst, middle, windows;
  for (std::size_t i = 0; i < count; ++i) {
    // Clocks drift: bounds of the calibrations on both sides of the round, loosened to hold for both.
    const std::size_t round = i / kStepsOfARound;
    const std::int64_t least = std::min(shared_->least_ns[round], shared_->least_ns[round + 1]);
    const std::int64_t most = std::max(shared_->most_ns[round], shared_->most_ns[round + 1]);
    ASSERT_LE(shared_->least_ns[round], shared_->most_ns[round]) << "the clocks do not keep step for a millisecond";
    worst.push_back(1e-3 * static_cast<double>(seen_ns[i] - made_ns[i] - least));
    middle.push_back(1e-3 * (static_cast<double>(seen_ns[i] - made_ns[i]) - 0.5 * static_cast<double>(least + most)));
    windows.push_back(0.5e-3 * static_cast<double>(most - least));
  }
  const auto quantile = [](std::vector<double> v, double q) {
    std::sort(v.begin(), v.end());
    return v[static_cast<std::size_t>(q * static_cast<double>(v.size() - 1))];
  };
  std::printf("record being built on the GPU -> delivered by the reader: median %.2f us, p99 %.2f us (clocks known to +-%.2f us); at the far bound %.2f us\n",
              quantile(middle, 0.5), quantile(middle, 0.99), quantile(windows, 0.5), quantile(worst, 0.5));
  EXPECT_LE(quantile(worst, 0.5), 5.0);
  EXPECT_GT(quantile(middle, 0.5), -quantile(windows, 0.5)) << "seen before it was made: the calibration is wrong";
}

}  // namespace
}  // namespace lossgauge::device_test
