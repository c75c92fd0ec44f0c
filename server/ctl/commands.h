// Every command of lossgaugectl, each in its own file.
#ifndef LOSSGAUGE_SERVER_CTL_COMMANDS_H_
#define LOSSGAUGE_SERVER_CTL_COMMANDS_H_

#include <string>
#include <vector>

#include "server/ctl/options.h"
#include "server/ctl/terminal.h"

namespace lossgauge::ctl {

Command RunsCommand();
Command VerdictCommand();
Command StepsCommand();
Command IncidentsCommand();
Command ExplainCommand();
Command ExportCommand();
Command CompareCommand();
Command BundleCommand();
Command WatchCommand();
Command AcknowledgeCommand();
Command ReportCommand();
Command ModeCommand();
Command ReplayCommand();
Command DumpCommand();
Command CompletionCommand();

// In the order of --help.
const std::vector<Command>& Commands();

// The whole program but for the process around it. Never throws; returns the exit code. `arguments` without the program's name.
int RunCtl(const std::vector<std::string>& arguments, Io& io);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_COMMANDS_H_
