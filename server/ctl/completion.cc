// Completion for bash, made from the same declarations as --help.
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"

namespace lossgauge::ctl {
namespace {

int Run(const Options& options, Io& io) {
  if (options.operand(0) != "bash") {
    io.err << "lossgaugectl completion: only bash is known, not \"" << Printable(options.operand(0)) << "\"\n";
    return kWrongUse;
  }
  io.out << "_lossgaugectl() {\n"
            "  local word=\"${COMP_WORDS[COMP_CWORD]}\" flags=\"\"\n"
            "  if ((COMP_CWORD == 1)); then\n"
            "    mapfile -t COMPREPLY < <(compgen -W '";
  for (const Command& command : Commands()) io.out << command.name << ' ';
  io.out << "--help --version' -- \"$word\")\n"
            "    return\n"
            "  fi\n"
            "  case \"${COMP_WORDS[1]}\" in\n";
  for (const Command& command : Commands()) {
    io.out << "    " << command.name << ") flags='";
    const char* separator = "";
    for (const Flag& flag : AllFlags(command)) {
      io.out << separator << "--" << flag.name << (flag.kind == FlagKind::kSwitch ? "" : "=");
      separator = " ";
    }
    io.out << "' ;;\n";
  }
  io.out << "  esac\n"
            "  if [[ $word != -* && ( ${COMP_WORDS[1]} == dump || ${COMP_WORDS[1]} == replay ) ]]; then\n"
            "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
            "  else\n"
            "    mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$word\")\n"
            "  fi\n"
            "}\n"
            "complete -o nospace -F _lossgaugectl lossgaugectl\n";
  return kDone;
}

}  // namespace

Command CompletionCommand() {
  return {.name = "completion",
          .operands = "SHELL",
          .summary = "print completion for a shell (bash)",
          .details = "In ~/.bashrc:  source <(lossgaugectl completion bash)",
          .flags = {},
          .remote = false,
          .run = Run};
}

}  // namespace lossgauge::ctl
