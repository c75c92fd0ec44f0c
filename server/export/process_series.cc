#include "server/export/process_series.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace lossgauge::export_ {
namespace {

// Fields of /proc/<pid>/stat, counted after the command, which may itself hold spaces and parentheses.
constexpr int kUserTicks = 11;
constexpr int kSystemTicks = 12;
constexpr int kThreads = 17;
constexpr int kResidentPages = 21;

void AddStat(const std::string& proc_self, FamilyBuilder& page) {
  std::ifstream file(proc_self + "/stat");
  std::string line;
  if (!std::getline(file, line)) return;
  const std::size_t command_end = line.rfind(')');
  if (command_end == std::string::npos) return;
  std::istringstream fields(line.substr(command_end + 1));
  std::string state;
  fields >> state;
  double ticks = 0;
  for (int i = 1; i <= kResidentPages; ++i) {
    double value = 0;
    if (!(fields >> value)) return;
    if (i == kUserTicks || i == kSystemTicks) ticks += value;
    if (i == kSystemTicks) page.Add(Metric::kProcessCpu, {}, ticks / static_cast<double>(sysconf(_SC_CLK_TCK)));
    if (i == kThreads) page.Add(Metric::kProcessThreads, {}, value);
    if (i == kResidentPages) page.Add(Metric::kProcessRss, {}, value * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
}

void AddFiles(const std::string& proc_self, FamilyBuilder& page) {
  std::error_code error;
  double open = 0;
  for (auto it = std::filesystem::directory_iterator(proc_self + "/fd", error); !error && it != std::filesystem::directory_iterator();
       it.increment(error)) {
    ++open;
  }
  if (!error) page.Add(Metric::kProcessFds, {}, open);

  std::ifstream limits(proc_self + "/limits");
  constexpr std::string_view kTitle = "Max open files";
  for (std::string line; std::getline(limits, line);) {
    if (line.compare(0, kTitle.size(), kTitle) != 0) continue;
    std::istringstream rest(line.substr(kTitle.size()));
    double soft = 0;
    if (rest >> soft) page.Add(Metric::kProcessMaxFds, {}, soft);  // "unlimited" is no number and no series
  }
}

}  // namespace

void AddProcessSeries(const std::string& proc_self, FamilyBuilder& page) {
  AddStat(proc_self, page);
  AddFiles(proc_self, page);
}

}  // namespace lossgauge::export_
