// Memory with an unreadable page on both sides: a byte read or written outside of it ends the test.
#ifndef LOSSGAUGE_TESTS_KERNELS_GUARDED_BUFFER_H_
#define LOSSGAUGE_TESTS_KERNELS_GUARDED_BUFFER_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace lossgauge::test {

class GuardedBuffer {
 public:
  // `bytes` usable bytes that end at a guard page, or begin at one; `shift` (below a page) keeps that many bytes of distance.
  explicit GuardedBuffer(std::size_t bytes, bool flush_left = false, std::size_t shift = 0) {
    const std::size_t room = (bytes + shift + kPage - 1) / kPage * kPage;
    mapped_bytes_ = room + 2 * kPage;
    mapped_ = static_cast<unsigned char*>(
        mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (mapped_ == MAP_FAILED || (room != 0 && mprotect(mapped_ + kPage, room, PROT_READ | PROT_WRITE) != 0)) std::abort();
    data_ = flush_left ? mapped_ + kPage + shift : mapped_ + kPage + room - bytes - shift;
    bytes_ = bytes;
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  ~GuardedBuffer() { munmap(mapped_, mapped_bytes_); }

  unsigned char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // All ones: NaN in every floating-point type.
  void FillWithNan() { std::memset(data_, 0xff, bytes_); }
  void Forbid() { mprotect(mapped_ + kPage, mapped_bytes_ - 2 * kPage, PROT_NONE); }
  void ForbidWrites() { mprotect(mapped_ + kPage, mapped_bytes_ - 2 * kPage, PROT_READ); }

 private:
  static constexpr std::size_t kPage = 4096;
  unsigned char* mapped_;
  unsigned char* data_;
  std::size_t mapped_bytes_, bytes_;
};

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_GUARDED_BUFFER_H_
