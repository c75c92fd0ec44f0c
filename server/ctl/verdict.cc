#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/exit_codes.h"
#include "server/ctl/values.h"
#include "server/ctl/verdict_wait.h"

namespace lossgauge::ctl {
namespace {

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

void Print(const v1::Verdict& verdict, const Options& options, Io& io) {
  if (options.Has("json")) {
    io.out << ToJson(verdict, true);
  } else {
    PrintVerdict(verdict, io);
  }
}

bool IsOutOfReach(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE || status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

int AskOnce(Connection& connection, const Options& options, const ExitCodes& codes, Io& io) {
  v1::GetVerdictRequest request;
  request.set_run(options.operand(0));
  v1::Verdict verdict;
  const auto context = connection.NewContext();
  grpc::Status status = connection.stub().GetVerdict(context.get(), request, &verdict);
  if (status.ok()) status = CheckAnswer(options.operand(0), verdict);
  if (!status.ok()) {
    const int failed = connection.Explain(status, io);
    return IsOutOfReach(status) ? codes.Of(Outcome::kUnreachable) : failed;
  }
  Print(verdict, options, io);
  return codes.Of(OutcomeOf(verdict));
}

absl::StatusOr<WaitOptions> ReadWaitOptions(const Options& options) {
  WaitOptions wait;
  for (const absl::string_view word : absl::StrSplit(options.Text("for", "restart,halt,ended"), ',')) {
    const Outcome outcome = FindOutcome(std::string(word));
    if (outcome >= Outcome::kTimeout) {
      return absl::InvalidArgumentError(absl::StrCat("--for takes some of continue, watch, restart, halt, unknown and ended, with commas between, not \"",
                                                     std::string(word), "\""));
    }
    wait.wanted.insert(outcome);
  }
  wait.attempt = options.Text("attempt");
  if (options.Has("wait-timeout")) absl::ParseDuration(options.Text("wait-timeout"), &wait.limit);
  if (options.Has("patience")) absl::ParseDuration(options.Text("patience"), &wait.patience);
  return wait;
}

int WaitAndSay(Connection& connection, const WaitOptions& wait, const Options& options, const ExitCodes& codes, Io& io) {
  const WaitResult result = WaitForVerdict(connection, options.operand(0), wait);
  if (result.failed) return connection.Explain(*result.failed, io);
  if (result.outcome == Outcome::kUnreachable) {
    connection.Explain(result.last_error, io);
    return codes.Of(Outcome::kUnreachable);
  }
  if (result.outcome == Outcome::kTimeout) {
    io.err << "lossgaugectl: no verdict of those waited for (" << options.Text("for", "restart,halt,ended") << ") within "
           << absl::FormatDuration(wait.limit) << "; this is the last one\n";
  }
  Print(*result.verdict, options, io);
  return codes.Of(result.outcome);
}

int Run(const Options& options, Io& io) {
  const auto wrong_use = [&io](const std::string& what) {
    io.err << "lossgaugectl verdict: " << Printable(what) << "\n";
    return kWrongUse;
  };
  const absl::StatusOr<ExitCodes> codes = ExitCodes::Parse(options.Text("exit-codes"));
  if (!codes.ok()) return wrong_use(std::string(codes.status().message()));
  for (const char* flag : {"for", "attempt", "wait-timeout", "patience"}) {
    if (options.Has(flag) && !options.Has("wait")) return wrong_use(absl::StrCat("--", flag, " goes with --wait"));
  }
  const absl::StatusOr<WaitOptions> wait = ReadWaitOptions(options);
  if (!wait.ok()) return wrong_use(std::string(wait.status().message()));
  Connection connection(options, io);
  return options.Has("wait") ? WaitAndSay(connection, *wait, options, *codes, io) : AskOnce(connection, options, *codes, io);
}

}  // namespace

Command VerdictCommand() {
  return {.name = "verdict",
          .operands = "RUN",
          .summary = "what to do with a run, and why; the exit code says it too",
          .details = "The exit code is 0 for CONTINUE, 10 WATCH, 20 RESTART, 30 HALT, 40 UNKNOWN (no data, stale, warming up, ended), 60 where "
                     "lossgauged is out of reach; with --wait 50 where the time is up. 1 and 2 mean that there is no verdict. Treat all that is no "
                     "verdict as UNKNOWN. RESTART and HALT of a run in shadow mode give the code of WATCH: nobody is to act on them.",
          .flags = {{"wait", FlagKind::kSwitch, "", "wait for a verdict that --for names; lossgauged may go away meanwhile and come back"},
                    {"for", FlagKind::kText, "NAMES", "what ends the wait: some of continue, watch, restart, halt, unknown, ended (default restart,halt,ended)"},
                    {"attempt", FlagKind::kText, "NAME", "with --wait: only verdicts on this attempt count; until it is seen, the verdict is the one on the attempt before"},
                    {"wait-timeout", FlagKind::kDuration, "TIME", "wait no longer than this, such as 10m (default: no limit)"},
                    {"patience", FlagKind::kDuration, "TIME", "how long lossgauged may be out of reach, or not know the run (default 1m)"},
                    {"exit-codes", FlagKind::kText, "LIST", "other exit codes, such as restart=93,halt=94; further names: continue, watch, unknown, ended, timeout, unreachable"}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
