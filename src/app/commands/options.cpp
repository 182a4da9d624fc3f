#include "app/commands/commands.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

ExitCode list_options(const OptionsArguments& arguments) {
  train::Config config;
  const OptionTable table = train::declare_options(config);
  fmt::print("{}", arguments.markdown ? table.to_markdown() : table.to_yaml());
  return ExitCode::kSuccess;
}

}  // namespace vlmtrain::app
