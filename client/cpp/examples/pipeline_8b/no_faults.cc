#include "client/cpp/examples/pipeline_8b/faults.h"

namespace lossgauge::pipeline_8b {

std::string CheckFault(const std::string& name, int) { return name == "none" ? "" : "--fault=" + name + ": this build has no faults"; }
std::string FaultHelp() { return ""; }
std::unique_ptr<Faults> MakeFaults(const Options&) { return nullptr; }

}  // namespace lossgauge::pipeline_8b
