#include "absl/strings/str_cat.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

int ExitCode(v1::Action action) {
  switch (action) {
    case v1::CONTINUE: return 0;
    case v1::WATCH: return 10;
    case v1::RESTART: return 20;
    case v1::HALT: return 30;
    default: return 40;
  }
}

void PrintAdvice(const v1::Verdict& verdict, Io& io) {
  if (verdict.has_resume_point()) {
    PrintFact(io, "resume from", absl::StrCat("step ", verdict.resume_point().step(), "  ", Printable(verdict.resume_point().path())));
  }
  if (verdict.has_skip()) PrintFact(io, "skip steps", absl::StrCat(verdict.skip().first(), " to ", verdict.skip().last()));
  if (verdict.has_last_good_step()) PrintFact(io, "last good", absl::StrCat("step ", verdict.last_good_step()));
  if (verdict.has_rank_at_fault()) PrintFact(io, "at fault", absl::StrCat("rank ", verdict.rank_at_fault()));
  if (!verdict.escalates().empty()) PrintFact(io, "escalates", Printable(verdict.escalates()));
}

void PrintVerdict(const v1::Verdict& verdict, Io& io) {
  io.out << Coloured(io, ToneOf(verdict.action()), ActionName(verdict.action())) << "  "
         << Coloured(io, Tone::kBold, Printable(verdict.run()));
  if (!verdict.attempt().empty()) io.out << "  attempt " << Printable(verdict.attempt());
  if (verdict.mode() == "shadow") io.out << "  (shadow: judged and shown, alerts stay calm)";
  io.out << "\n";
  PrintFact(io, "reason", Printable(verdict.reason()));
  std::string codes;
  for (const std::string& code : verdict.reason_codes()) absl::StrAppend(&codes, codes.empty() ? "" : ", ", Printable(code));
  if (!codes.empty()) PrintFact(io, "codes", codes);
  PrintAdvice(verdict, io);
  if (verdict.has_last_step()) {
    std::string text = absl::StrCat(verdict.last_step());
    if (verdict.has_last_step_age()) absl::StrAppend(&text, ", ", Span(ToDuration(verdict.last_step_age())), " old");
    PrintFact(io, "last step", text);
  }
  if (verdict.has_since()) PrintFact(io, "since", Clock(ToTime(verdict.since())));
  for (const v1::Evidence& evidence : verdict.evidence()) PrintFact(io, Printable(evidence.name()), EvidenceText(evidence));
  if (verdict.has_valid_until()) {
    const absl::Duration term = ToTime(verdict.valid_until()) - ToTime(verdict.evaluated_at());
    PrintFact(io, "valid", absl::StrCat(Span(term), ", until ", Clock(ToTime(verdict.valid_until()))));
  }
  PrintFact(io, "judged by", absl::StrCat("policy ", Printable(verdict.policy_version()), ", scope ", Printable(verdict.scope()), ", instance ",
                                          Printable(verdict.instance())));
}

int Run(const Options& options, Io& io) {
  Connection connection(options, io);
  v1::GetVerdictRequest request;
  request.set_run(options.operand(0));
  v1::Verdict verdict;
  const auto context = connection.NewContext();
  const grpc::Status status = connection.stub().GetVerdict(context.get(), request, &verdict);
  if (!status.ok()) return connection.Explain(status, io);
  if (options.Has("json")) {
    io.out << ToJson(verdict, true);
  } else {
    PrintVerdict(verdict, io);
  }
  return ExitCode(verdict.action());
}

}  // namespace

Command VerdictCommand() {
  return {.name = "verdict",
          .operands = "RUN",
          .summary = "what to do with a run, and why; the exit code says it too",
          .details = "The exit code is 0 for CONTINUE, 10 WATCH, 20 RESTART, 30 HALT, 40 UNKNOWN (no data, stale, "
                     "warming up, ended). 1 and 2 mean that there is no verdict: treat them as UNKNOWN.",
          .flags = {},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
