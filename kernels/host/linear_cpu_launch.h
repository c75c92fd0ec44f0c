// A call of linear cross-entropy on the CPU, chunk by chunk, over a head that is whole or over one rank's part of it.
#ifndef LOSSGAUGE_KERNELS_HOST_LINEAR_CPU_LAUNCH_H_
#define LOSSGAUGE_KERNELS_HOST_LINEAR_CPU_LAUNCH_H_

#include <cstdint>

#include "kernels/cpu/linear_job.h"
#include "kernels/cpu/scratch.h"
#include "kernels/host/cpu_launch.h"
#include "kernels/host/linear_cpu_sizes.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

// Cuts a block of memory into parts.
class Carver {
 public:
  explicit Carver(unsigned char* at) : at_(at) {}
  unsigned char* Take(std::int64_t bytes) {
    unsigned char* const part = at_;
    at_ += RoundUp(bytes, kLine);
    return part;
  }
  template <class T>
  T* Take(std::int64_t count) {
    return count == 0 ? nullptr : reinterpret_cast<T*>(Take(count * static_cast<std::int64_t>(sizeof(T))));
  }

 private:
  unsigned char* at_;
};

// A call walks over its rows once: unmasked ones are gathered until a chunk is full, then the chunk's logits, their gradient in place, and the products
// with that gradient follow. Masked rows are only ever looked at by their target.
class LinearLaunch {
 public:
  // Of checked arguments, with a plan of theirs and the memory that it asks for. `classes`: targets are in [0, classes).
  LinearLaunch(const lg_linear_cross_entropy_args& args, const LinearSizes& sizes, const lg_linear_plan& plan, std::int64_t classes, unsigned char* workspace);
  virtual ~LinearLaunch() = default;
  LinearLaunch(const LinearLaunch&) = delete;
  LinearLaunch& operator=(const LinearLaunch&) = delete;

  // Returns an lg_code.
  int Run(LossPurpose purpose);

 protected:
  // How many chunks there are if so many rows are unmasked; further ones have no rows.
  virtual std::int64_t ChunksOf(std::int64_t live) const;
  // Loss of the chunk's first `rows` rows and the gradient of their logits, in place. Also of chunks without rows. Returns an lg_code.
  virtual int RunLoss(std::int64_t chunk, std::int64_t rows);
  // What the launch vouches for beyond its own.
  virtual void AddCounts(LaunchCounters*) const {}
  // grad_hidden is whole after the call.
  virtual bool OwnsHiddenGradient() const { return true; }

  const cpu::CrossEntropyJob& job() const { return job_; }
  CpuLaunch* rows_launch() { return &launch_; }
  std::int64_t chunk_rows() const { return chunk_rows_; }
  std::int64_t* targets() const { return targets_; }  // of the chunk
  Carver* rest() { return &carver_; }                 // of the workspace

 private:
  struct alignas(64) Own {
    cpu::LinearScratch scratch{};
    cpu::LinearSums sums;
  };

  const cpu::LinearKernels& kernels() const { return *launch_.variant->linear; }
  void SetSignals(bool counted);
  void AddSignals(std::int64_t live, LaunchCounters* total) const;
  // Unmasked rows from next_row_ on until a chunk is full; masked ones on the way are dealt with here.
  void Gather();
  int RunChunk(std::int64_t chunk);
  // The head's gradient from row `first` on, which no chunk has written: padding, or all of it.
  void ClearHead(std::int64_t first) const;

  const lg_linear_cross_entropy_args& args_;
  cpu::CrossEntropyJob whole_;  // as the caller has it: for its targets
  cpu::CrossEntropyJob job_{};  // over the chunk
  cpu::LinearJob linear_{};
  const int threads_;
  const std::int64_t chunk_rows_;
  Carver carver_;
  std::int64_t next_row_ = 0;
  LaunchCounters passed_;  // of rows that no chunk has
  std::int64_t *targets_, *places_, *positions_;
  float *losses_, *log_z_, *upstream_;
  CpuLaunch launch_;
  Own own_[cpu::kMostThreads];
};

// The caller's workspace, or one that is kept between calls.
class LinearWorkspace {
 public:
  LinearWorkspace(const lg_linear_cross_entropy_args& args, std::int64_t bytes) {
    if (args.workspace == nullptr) own_ = cpu::TakeScratch(static_cast<std::size_t>(bytes));
    data_ = args.workspace != nullptr ? static_cast<unsigned char*>(args.workspace) : own_.data;
  }
  LinearWorkspace(const LinearWorkspace&) = delete;
  LinearWorkspace& operator=(const LinearWorkspace&) = delete;
  ~LinearWorkspace() { cpu::KeepScratch(own_); }
  unsigned char* data() const { return data_; }

 private:
  cpu::Scratch own_;
  unsigned char* data_;
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_LINEAR_CPU_LAUNCH_H_
