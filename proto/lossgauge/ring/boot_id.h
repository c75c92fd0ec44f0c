// The running kernel's boot id in the words of lg_ring_identity: who writes rings and who compares their clocks must read it alike.
#ifndef LOSSGAUGE_RING_BOOT_ID_H_
#define LOSSGAUGE_RING_BOOT_ID_H_

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>

namespace lossgauge::ring {

// The 32 hex digits of /proc/sys/kernel/random/boot_id, dashes left out, as two words. False, and `id` as it was, where there are not as many.
inline bool ReadBootId(std::uint64_t id[2]) noexcept {
  const int file = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[64];
  const ssize_t length = ::read(file, text, sizeof text);
  ::close(file);
  std::uint64_t words[2] = {0, 0};
  int digits = 0;
  for (ssize_t i = 0; i < length; ++i) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) continue;
    if (digits < 32) words[digits / 16] = words[digits / 16] << 4 | static_cast<std::uint64_t>(digit);
    ++digits;
  }
  if (digits != 32) return false;
  id[0] = words[0];
  id[1] = words[1];
  return true;
}

}  // namespace lossgauge::ring

#endif  // LOSSGAUGE_RING_BOOT_ID_H_
