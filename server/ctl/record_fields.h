// The fields of ring records by name, so that a dump shows each of them and a test can see that none is missing.
#ifndef LOSSGAUGE_SERVER_CTL_RECORD_FIELDS_H_
#define LOSSGAUGE_SERVER_CTL_RECORD_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::ctl {

enum class FieldType { kUnsigned, kSigned, kDouble, kFixed128, kHex, kTime, kPhase, kDtype, kEventKind, kPresent, kEventText };

struct Field {
  const char* name;
  std::size_t offset;  // bytes
  FieldType type;
  std::uint64_t present;  // LG_HAS_* without which the field means nothing; 0 = always there
};

// All between sequence and checksum but the reserved words.
std::span<const Field> StepFields();
std::span<const Field> EventFields();

// Words of a record that a field takes.
std::size_t FieldWords(FieldType type);
// Whether `record` says that the field carries a value.
bool HasField(const Field& field, std::uint64_t present);
// For a person: exact, control characters escaped.
std::string FieldText(const Field& field, const void* record);
// The same as a JSON value.
std::string FieldJson(const Field& field, const void* record);

std::string PhaseName(std::uint64_t phase);  // "train", ..., "phase 17" for what this version does not know
std::string CallName(std::uint64_t call);
std::string CloseName(std::uint64_t closed);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_RECORD_FIELDS_H_
