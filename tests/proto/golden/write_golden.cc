// Writes the golden bytes of the present ABI minor: write_golden DIRECTORY. Run once, when a minor is released; the files of
// older minors are never written again.
#include <cstdio>
#include <string>
#include <vector>

#include "tests/proto/golden/golden_records.h"

namespace {

using namespace lossgauge::ring;

bool WriteFile(const std::string& path, const std::vector<std::uint64_t>& words) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return false;
  const bool written = std::fwrite(words.data(), 8, words.size(), file) == words.size();
  return std::fclose(file) == 0 && written;
}

template <class Record>
bool WriteRing(const std::string& path, std::uint32_t kind, Record (*make)(std::uint64_t)) {
  const lg_ring_identity identity = GoldenIdentity(kind);
  std::vector<std::uint64_t> words(RingFileBytes(identity.slot_bytes, identity.slot_count) / 8);
  RingWriter<> writer(words.data(), identity);
  for (std::uint64_t n = 1; n <= kGoldenPublications; ++n) writer.Publish(make(n));
  return WriteFile(path, words);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_golden DIRECTORY\n");
    return 2;
  }
  const std::string prefix =
      std::string(argv[1]) + "/abi_" + std::to_string(LG_RING_ABI_MAJOR) + "_" + std::to_string(LG_RING_ABI_MINOR);
  const bool written = WriteRing(prefix + ".steps", LG_RING_KIND_STEPS, &GoldenStep) &&
                       WriteRing(prefix + ".events", LG_RING_KIND_EVENTS, &GoldenEvent);
  if (!written) std::perror(prefix.c_str());
  return written ? 0 : 1;
}
