#include "server/ctl/commands.h"
#include "server/ctl/connection.h"

namespace lossgauge::ctl {
namespace {

void PrintLines(const std::string& text, const char* indent, Io& io) {
  const std::size_t width = io.width > 24 ? io.width - 4 : 20;
  const char* lead = indent;
  for (const std::string& line : Wrap(Printable(text), width)) {
    io.out << lead << line << "\n";
    lead = "    ";
  }
}

void Print(const v1::Explanation& story, Io& io) {
  for (const std::string& line : Wrap(Printable(story.headline()), io.width)) io.out << Coloured(io, Tone::kBold, line) << "\n";
  for (const v1::ExplanationPart& part : story.parts()) {
    io.out << "\n" << Coloured(io, Tone::kBold, Printable(part.title())) << "\n";
    for (const std::string& line : part.lines()) PrintLines(line, "  ", io);
  }
  if (!story.policy_version().empty()) io.out << "\nJudged by policy " << Printable(story.policy_version()) << ".\n";
}

int Run(const Options& options, Io& io) {
  v1::ExplainRequest request;
  request.set_run(options.operand(0));
  if (options.operands().size() > 1) request.set_incident(options.operand(1));
  Connection connection(options, io);
  v1::Explanation story;
  const auto context = connection.NewContext();
  const grpc::Status status = connection.stub().Explain(context.get(), request, &story);
  if (!status.ok()) return connection.Explain(status, io);
  if (options.Has("json")) {
    io.out << ToJson(story, true);
  } else {
    Print(story, io);
  }
  return kDone;
}

}  // namespace

Command ExplainCommand() {
  return {.name = "explain",
          .operands = "RUN [INCIDENT]",
          .summary = "the story of a run or of one incident in plain words",
          .details = "What was seen, since when, the evidence, the rule and its thresholds, what it means for the verdict and what would change it. "
                     "`incidents` gives the ids.",
          .flags = {},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
