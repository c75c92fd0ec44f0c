#include "kernels/host/segment_name.h"

#include <algorithm>

#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge {

std::uint64_t HashText(std::string_view text) {
  std::uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * UINT64_C(0x100000001b3);
  return lg_ring_mix(hash);
}

std::string HexOf(std::uint64_t value) {
  std::string digits(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) digits[static_cast<std::size_t>(i)] = "0123456789abcdef"[value & 15];
  return digits;
}

std::string SegmentPrefix(std::string_view run, std::uint32_t rank) {
  return HexOf(HashText(run)) + "-r" + std::to_string(rank) + "-";
}

std::string SegmentKey(std::string_view run, std::uint32_t rank, const std::uint64_t segment_id[2]) {
  return SegmentPrefix(run, rank) + HexOf(segment_id[0]) + HexOf(segment_id[1]);
}

std::string_view KeyOfFile(std::string_view file_name) {
  const std::size_t dot = file_name.find('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view suffix = file_name.substr(dot);
  if (suffix != ".steps" && suffix != ".events" && suffix != ".lock") return {};
  const std::string_view key = file_name.substr(0, dot);
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  constexpr std::size_t kRun = 16, kId = 32, kRankAt = kRun + 2;  // "<hash>-r<rank>-<id>"
  if (key.size() < kRankAt + 1 + 1 + kId) return {};
  const std::size_t id_at = key.size() - kId;
  const auto all = [key](std::size_t from, std::size_t to, auto is) {
    return std::all_of(key.begin() + from, key.begin() + to, is);
  };
  const bool well_formed = all(0, kRun, is_hex) && key.substr(kRun, 2) == "-r" && all(kRankAt, id_at - 1, is_digit) &&
                           key[id_at - 1] == '-' && all(id_at, key.size(), is_hex);
  return well_formed ? key : std::string_view();
}

}  // namespace lossgauge
