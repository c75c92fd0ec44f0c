// File names of a segment: "<16 hex digits: hash of run>-r<rank>-<32 hex digits: segment id>" + ".steps", ".events", ".lock".
#ifndef LOSSGAUGE_KERNELS_HOST_SEGMENT_NAME_H_
#define LOSSGAUGE_KERNELS_HOST_SEGMENT_NAME_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace lossgauge {

// FNV-1a with the ring's finaliser. Only a file name depends on it: two runs of one hash are told apart by their headers.
std::uint64_t HashText(std::string_view text);
// 16 lower-case hex digits.
std::string HexOf(std::uint64_t value);

// "<hash>-r<rank>-": what all segments of a run and rank begin with.
std::string SegmentPrefix(std::string_view run, std::uint32_t rank);
// The prefix and the id: a segment's key.
std::string SegmentKey(std::string_view run, std::uint32_t rank, const std::uint64_t segment_id[2]);
// The key in the name of a segment's file; "" if the name is something else.
std::string_view KeyOfFile(std::string_view file_name);

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_SEGMENT_NAME_H_
