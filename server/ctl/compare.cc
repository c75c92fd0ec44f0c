#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

// Differences are small beside what they are differences of: six digits behind the point.
std::string Band(const v1::Difference& difference, const char* unit) {
  std::string text = absl::StrFormat("%+.6f%s  (a %.6f, b %.6f)", difference.difference(), unit, difference.a(), difference.b());
  if (difference.has_low() && difference.has_high()) {
    absl::StrAppendFormat(&text, ", 95 %% band %+.6f to %+.6f", difference.low(), difference.high());
  }
  return text;
}

std::string Counts(const v1::Comparison& answer) {
  std::string text = absl::StrCat(answer.compared(), " compared");
  if (answer.has_first_step()) absl::StrAppend(&text, ", from ", answer.first_step(), " to ", answer.last_step());
  if (answer.differing() > 0) absl::StrAppend(&text, "; ", answer.differing(), " with other targets left out");
  if (answer.without_loss() > 0) absl::StrAppend(&text, "; ", answer.without_loss(), " without a finite loss in both");
  if (answer.only_in_a() > 0) absl::StrAppend(&text, "; ", answer.only_in_a(), " only in a");
  if (answer.only_in_b() > 0) absl::StrAppend(&text, "; ", answer.only_in_b(), " only in b");
  return text;
}

std::string Finding(const v1::Difference& loss) {
  if (!loss.has_low()) return "too few steps to say how sure that is";
  if (loss.low() > 0) return "b has the higher loss: 0 lies outside of the band";
  if (loss.high() < 0) return "b has the lower loss: 0 lies outside of the band";
  return "no difference that stands out of the noise: 0 lies within the band";
}

void Print(const v1::Comparison& answer, Io& io) {
  io.out << Coloured(io, Tone::kBold, absl::StrCat("a ", Printable(answer.a()), "   b ", Printable(answer.b()))) << "\n";
  if (!answer.comparable()) {
    PrintFact(io, "result", Printable(answer.reason()));
    PrintFact(io, "steps", Counts(answer));
    return;
  }
  PrintFact(io, "loss b - a", Band(answer.loss(), " nats"));
  PrintFact(io, "perplexity", Band(answer.perplexity(), ""));
  PrintFact(io, "result", Finding(answer.loss()));
  if (answer.correlated()) PrintFact(io, "careful", "neighbouring stretches still depend on each other: the band may be too narrow");
  PrintFact(io, "steps", Counts(answer));
  PrintFact(io, "matched by", Printable(answer.matched_by()));
  if (answer.has_first_differing_step()) {
    PrintFact(io, "first other", absl::StrCat("step ", answer.first_differing_step(), ", ", Printable(answer.first_difference())));
  }
}

int Run(const Options& options, Io& io) {
  v1::CompareRunsRequest request;
  request.set_a(options.operand(0));
  request.set_b(options.operand(1));
  request.set_attempt_a(options.Text("attempt-a"));
  request.set_attempt_b(options.Text("attempt-b"));
  if (const auto first = options.Integer("from")) request.set_first_step(*first);
  if (const auto last = options.Integer("to")) request.set_last_step(*last);
  Connection connection(options, io);
  v1::Comparison answer;
  const auto context = connection.NewContext();
  const grpc::Status status = connection.stub().CompareRuns(context.get(), request, &answer);
  if (!status.ok()) return connection.Explain(status, io);
  if (options.Has("json")) {
    io.out << ToJson(answer, true);
  } else {
    Print(answer, io);
  }
  return answer.comparable() ? kDone : kFailed;
}

}  // namespace

Command CompareCommand() {
  return {.name = "compare",
          .operands = "A B",
          .summary = "two runs over the same data: which has the lower loss, and how sure is that",
          .details = "Step by step, over those steps where both saw the same targets; others are left out, and the first is named. The band is made of "
                     "means over stretches of consecutive steps, long enough not to depend on each other. Exit code 1 if nothing could be compared.",
          .flags = {{"attempt-a", FlagKind::kText, "NAME", "only this attempt of A (default: each step's newest pass)"},
                    {"attempt-b", FlagKind::kText, "NAME", "only this attempt of B"},
                    {"from", FlagKind::kInteger, "STEP", "from this step on"},
                    {"to", FlagKind::kInteger, "STEP", "up to this step, included"}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
