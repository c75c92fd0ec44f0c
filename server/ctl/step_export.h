// Steps in the formats of others. A value that was not measured is no value there either: an empty cell, a missing key, no point. NaN and
// infinities stay what they are. Names are those of lossgauge.v1.
#ifndef LOSSGAUGE_SERVER_CTL_STEP_EXPORT_H_
#define LOSSGAUGE_SERVER_CTL_STEP_EXPORT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lossgauge/v1/lossgauge.pb.h"

namespace lossgauge::ctl {

// Turns steps, in the order of their sequence, into bytes of one file.
class StepExport {
 public:
  virtual ~StepExport() = default;
  // What stands before the first step.
  virtual void Begin(std::string* out) = 0;
  // Nothing if only one rank is wanted and the step has no values of it.
  virtual void Add(const v1::Step& step, std::string* out) = 0;
};

// `rank`: that rank's own values, one row a step, instead of those over all ranks; the steps must hold theirs.
// RFC 4180, "\n" at the end of a line, a header line. Times as in JSON.
std::unique_ptr<StepExport> MakeCsvExport(std::optional<std::uint32_t> rank);
// One object a line. Values that are not finite are strings, as in protobuf's JSON, and so are fingerprints, which readers of numbers would round.
std::unique_ptr<StepExport> MakeJsonlExport(std::optional<std::uint32_t> rank);
// A TensorBoard event file: a scalar for each value, as 32-bit floats, at the time when the step was received. Where an attempt goes back in
// steps, a session start lets TensorBoard drop what it replaces. `begin_seconds`: since the Unix epoch, of the file's head.
std::unique_ptr<StepExport> MakeTensorboardExport(std::optional<std::uint32_t> rank, double begin_seconds);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_STEP_EXPORT_H_
