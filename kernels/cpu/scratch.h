// Memory that launches borrow: a few blocks are kept between calls, so that a
// training step pays neither for malloc nor for fresh pages.
#ifndef LOSSGAUGE_KERNELS_CPU_SCRATCH_H_
#define LOSSGAUGE_KERNELS_CPU_SCRATCH_H_

#include <cstddef>

namespace lossgauge::cpu {

// `bytes` of memory aligned to a cache line; empty = nothing.
struct Scratch {
  unsigned char* data = nullptr;
  std::size_t bytes = 0;
};

// A kept block if one is large enough, else a new one. Throws std::bad_alloc.
// Thread-safe without locks; safe in a forked child.
Scratch TakeScratch(std::size_t bytes);
// Gives it back: kept, or freed if enough are kept already.
void KeepScratch(Scratch scratch) noexcept;

}  // namespace lossgauge::cpu

#endif  // LOSSGAUGE_KERNELS_CPU_SCRATCH_H_
