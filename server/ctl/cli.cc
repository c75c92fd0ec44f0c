// Which command, and what --help says.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/api/nearest_name.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"

namespace lossgauge::ctl {
namespace {

constexpr std::size_t kHelpWidth = 80;
constexpr std::size_t kTermWidth = 22;

constexpr char kExitCodes[] =
    "Exit codes: 0 done; 1 no answer, not found, or an unreadable file; 2 wrong use. `verdict` has its own: 0 CONTINUE, 10 WATCH, "
    "20 RESTART, 30 HALT, 40 UNKNOWN, 50 not yet (--wait), 60 out of reach, and 1 and 2 where there is no verdict to be had.";

void PrintWrapped(std::ostream& out, const std::string& text) {
  for (const std::string& line : Wrap(text, kHelpWidth)) out << line << "\n";
}

// "  term        explanation", the explanation wrapped beside the term.
void PrintTerm(std::ostream& out, const std::string& term, const std::string& explanation) {
  std::string head = absl::StrCat("  ", term);
  if (head.size() + 2 > kTermWidth) {
    out << head << "\n";
    head.clear();
  }
  head.resize(kTermWidth, ' ');
  for (const std::string& line : Wrap(explanation, kHelpWidth - kTermWidth)) {
    out << head << line << "\n";
    head.assign(kTermWidth, ' ');
  }
}

void PrintUsage(std::ostream& out) {
  out << "lossgaugectl: asks lossgauged about training runs, and reads ring files\nand training logs without it.\n\n"
         "usage: lossgaugectl COMMAND [OPERANDS] [FLAGS]\n\n";
  for (const Command& command : Commands()) PrintTerm(out, absl::StrCat(command.name, " ", command.operands), command.summary);
  out << "\n";
  PrintWrapped(out, "lossgaugectl COMMAND --help explains one. Each takes --json; those that ask lossgauged take --address=HOST:PORT (else "
                    "LOSSGAUGE_ADDRESS, else 127.0.0.1:9789) and --timeout=TIME (5s). Colour only on a terminal, never with NO_COLOR.");
  out << "\n";
  PrintWrapped(out, kExitCodes);
}

void PrintHelp(const Command& command, std::ostream& out) {
  out << "usage: lossgaugectl " << command.name << (command.operands.empty() ? "" : " ") << command.operands << " [FLAGS]\n\n";
  PrintWrapped(out, command.summary);
  if (!command.details.empty()) {
    out << "\n";
    PrintWrapped(out, command.details);
  }
  out << "\nFlags:\n";
  for (const Flag& flag : AllFlags(command)) {
    PrintTerm(out, absl::StrCat("--", flag.name, flag.placeholder.empty() ? "" : "=", flag.placeholder), flag.help);
  }
  out << "\n";
  PrintWrapped(out, kExitCodes);
}

}  // namespace

const std::vector<Command>& Commands() {
  static const auto& commands = *new std::vector<Command>{
      RunsCommand(), VerdictCommand(), StepsCommand(), IncidentsCommand(), ExplainCommand(), ExportCommand(), CompareCommand(),
      BundleCommand(), WatchCommand(), AcknowledgeCommand(), ReportCommand(), ModeCommand(),
      ReplayCommand(), DumpCommand(), CompletionCommand()};
  return commands;
}

int RunCtl(const std::vector<std::string>& arguments, Io& io) {
  if (arguments.empty()) {
    PrintUsage(io.err);
    return kWrongUse;
  }
  const std::string& name = arguments[0];
  if (name == "--help" || name == "-h" || name == "help") {
    PrintUsage(io.out);
    return kDone;
  }
  if (name == "--version") {
    io.out << "lossgaugectl " << LOSSGAUGE_VERSION << "\n";
    return kDone;
  }
  const auto& commands = Commands();
  const auto command = std::find_if(commands.begin(), commands.end(), [&](const Command& one) { return one.name == name; });
  if (command == commands.end()) {
    std::vector<std::string> names;
    for (const Command& one : commands) names.push_back(one.name);
    const std::string nearest = api::Nearest(name, names);
    io.err << "lossgaugectl: no command \"" << Printable(name) << "\"";
    if (!nearest.empty()) io.err << ", did you mean " << nearest << "?";
    io.err << "\nlossgaugectl --help lists the commands. The command comes first, its flags after it.\n";
    return kWrongUse;
  }
  const auto options = ParseOptions(*command, {arguments.begin() + 1, arguments.end()});
  if (!options.ok()) {
    io.err << "lossgaugectl " << name << ": " << Printable(std::string(options.status().message())) << "\n"
           << "usage: lossgaugectl " << name << (command->operands.empty() ? "" : " ") << command->operands << " [FLAGS], see --help\n";
    return kWrongUse;
  }
  if (options->Has("help")) {
    PrintHelp(*command, io.out);
    return kDone;
  }
  return command->run(*options, io);
}

}  // namespace lossgauge::ctl
