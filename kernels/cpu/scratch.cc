#include "kernels/cpu/scratch.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>

namespace lossgauge::cpu {
namespace {

// As many as there are likely to be loss calls at once. A block's size stands
// in its first line.
constexpr int kKeptBlocks = 4;
constexpr std::size_t kLine = 64;
std::atomic<unsigned char*> kept[kKeptBlocks];

std::size_t SizeOf(const unsigned char* block) {
  std::size_t bytes;
  std::memcpy(&bytes, block, sizeof bytes);
  return bytes;
}
void Free(unsigned char* block) noexcept { ::operator delete (block, std::align_val_t{kLine}); }

}  // namespace

Scratch TakeScratch(std::size_t bytes) {
  // Acquire and release on the slot: whoever takes a block sees what its last
  // owner wrote into its first line.
  for (auto& slot : kept) {
    unsigned char* block = slot.exchange(nullptr, std::memory_order_acquire);
    if (block == nullptr) continue;
    if (SizeOf(block) >= bytes) return {block + kLine, SizeOf(block)};
    Free(block);  // the job has grown: its next launch will be of the new size
  }
  auto* block = static_cast<unsigned char*>(::operator new (bytes + kLine, std::align_val_t{kLine}));
  std::memcpy(block, &bytes, sizeof bytes);
  return {block + kLine, bytes};
}

void KeepScratch(Scratch scratch) noexcept {
  if (scratch.data == nullptr) return;
  unsigned char* block = scratch.data - kLine;
  for (auto& slot : kept) {
    unsigned char* empty = nullptr;
    if (slot.compare_exchange_strong(empty, block, std::memory_order_release, std::memory_order_relaxed)) return;
  }
  Free(block);
}

}  // namespace lossgauge::cpu
