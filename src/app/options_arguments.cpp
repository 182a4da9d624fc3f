#include "app/options_arguments.h"

namespace vlmtrain::app {

void declare(CLI::App& command, OptionsArguments& arguments) {
  command.add_flag("--markdown", arguments.markdown, "with types, checks and meaning, as docs/config.md");
}

}  // namespace vlmtrain::app
